"""Where elements differ, and by how much: every differing element is counted once, in the right place."""

import base64
import struct
import zlib

import ml_dtypes
import numpy as np
import planted
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reported import CASES, verdicts

from crosscheck.bits import compare, to_bits
from crosscheck.cases import Case
from crosscheck.histogram import DISTANCES, ERRORS, histogram
from crosscheck.judge import expected_answer, judge
from crosscheck.report_plots import bars, bit_fields, heat_map
from crosscheck.spread import COLUMNS, ROWS, spread
from crosscheck.verdict import Verdict


def arrays(shape: tuple[int, ...], dtype=np.float32, *places: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Ones, and ones of which the given elements are one ULP larger."""
    actual, expected = np.ones(shape, dtype), np.ones(shape, dtype)
    for place in places:
        to_bits(actual)[place] += 1
    return actual, expected


# Histograms ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bounds", [ERRORS, DISTANCES])
@given(values=st.lists(st.floats(0, allow_nan=False)))
def test_every_value_is_in_the_bin_whose_bounds_it_is_between(bounds, values):
    counts = histogram(values, bounds)
    below = [-1.0, *bounds]
    assert counts == [sum(below[i] < value <= bound for value in values) for i, bound in enumerate(bounds)]
    assert sum(counts) == len(values)


def test_bars_go_from_the_first_bin_with_a_count_to_the_last_and_skip_none():
    shown = bars((0, 1, 2, 4, float("inf")), [0, 3, 0, 6, 0])
    assert [(bar.label, bar.counts, bar.shares) for bar in shown] == [
        ("≤ 1", (3,), (0.5,)), ("≤ 2", (0,), (0.0,)), ("≤ 4", (6,), (1.0,)),
    ]  # fmt: skip
    assert bars((0, float("inf")), [0, 0]) == []


def test_bins_of_whole_numbers_are_named_by_their_ends():
    counts = [1] * len(DISTANCES)
    labels = [bar.label for bar in bars(DISTANCES, counts, whole=True, nan=1)]
    assert labels[:6] == ["0", "1", "2", "3 – 4", "5 – 8", "9 – 16"]
    assert labels[-2:] == ["> 16777216", "NaN"]


# Spread ----------------------------------------------------------------------------------------------------
def test_one_element_is_one_count_in_its_place():
    found = spread(*arrays((3, 9), np.float32, (1, 8)))
    assert found.grid == [[0] * 9, [0] * 8 + [1], [0] * 9]
    assert (found.shape, found.rows, found.columns, found.nan) == ([3, 9], 1, 1, 0)
    assert dict(zip(DISTANCES, found.distances, strict=True))[1.0] == sum(found.distances) == 1


@given(rows=st.integers(1, 70), width=st.integers(1, 150), seed=st.integers(0, 100))
def test_the_counts_of_grid_and_distances_are_those_of_the_difference(rows, width, seed):
    rng = np.random.default_rng(seed)
    expected = rng.standard_normal((rows, width)).astype(np.float16)
    noise = rng.integers(0, 2**16, expected.shape) * (rng.random(expected.shape) < 0.3)
    actual = (to_bits(expected) ^ noise.astype(np.uint16)).view(np.float16)
    found, difference = spread(actual, expected), compare(actual, expected)
    assert (found is None) == (difference is None)
    if found is not None:
        grid = np.array(found.grid)
        assert grid.shape == (min(rows, ROWS), min(width, COLUMNS))
        assert grid.sum() == difference.count == sum(found.distances) + found.nan
        differs = to_bits(actual) != to_bits(expected)
        i, j = np.arange(rows) * len(grid) // rows, np.arange(width) * grid.shape[1] // width
        for a, b in ((0, 0), (len(grid) - 1, grid.shape[1] - 1), (len(grid) // 2, grid.shape[1] // 2)):
            assert grid[a, b] == differs[np.ix_(i == a, j == b)].sum()


def test_leading_axes_are_rows():
    found = spread(*arrays((2, 3, 4), np.float32, (1, 2, 3)))
    assert found.shape == [6, 4] and found.grid[5][3] == 1


def test_nan_has_no_distance_and_is_counted_all_the_same():
    found = spread(np.array([[np.nan, 2, 1]], np.float32), np.array([[1, 1, 1]], np.float32))
    assert found.nan == 1 and sum(found.distances) == 1


@pytest.mark.parametrize("shape", [(), (4,), (0, 3), (3, 0)])
def test_any_shape_can_be_looked_at(shape):
    assert spread(*arrays(shape)) is None
    if all(shape):
        assert spread(*arrays(shape, np.float32, (0,) * len(shape))).grid[0][0] == 1


def test_another_dtype_or_shape_has_no_elements_to_compare():
    one = np.ones((2, 2), np.float32)
    assert spread(one, one.astype(np.float16)) is None
    assert spread(one, one[:1]) is None


# In verdicts -----------------------------------------------------------------------------------------------
def spreads(verdict: Verdict) -> list[tuple[str, str, dict]]:
    return [
        (name, failure.trial, failure.spread)
        for name, check in verdict.checks.items()
        for failure in check.failed
        if failure.spread is not None
    ]


@pytest.mark.parametrize(
    ("fault", "column", "trial"),
    [
        (planted.FlipsBits, "bits", "the call itself"),
        (planted.SpoilsPadding, "padding", "zero rows after"),
        (planted.FlipsOneGradientBit, "grad", "the call itself, gradient of weight"),
    ],
)
def test_the_first_failure_of_a_verdict_has_the_spread_and_no_other(fault, column, trial):
    case = Case("lm_head", "bf16", (3,), 16, 9, 3)
    verdict = judge(fault("cpu", 1), "planted", case, "eager", expected_answer(case))
    ((where, what, found),) = spreads(verdict)
    assert (where, what) == (column, trial)
    (failure, *_) = verdict.checks[column].failed
    assert sum(map(sum, found["grid"])) == failure.difference["count"]


def test_a_verdict_with_a_spread_survives_json():
    verdict = next(v for v in verdicts() if v.backend == "FlipsBits")
    again = Verdict.from_json(verdict.to_json())
    assert again == verdict and spreads(again) == spreads(verdict) != []


def test_the_errors_of_a_verdict_are_all_in_its_histograms():
    judged = [v for v in verdicts() if v.backend == "Planted" and v.op == "lm_head"]
    assert len(judged) == sum(case.op == "lm_head" for case in CASES)
    for verdict in judged:
        assert {name: sum(counts) for name, counts in verdict.accuracy.histogram.items()} == {
            "ulp": verdict.accuracy.samples, "scaled": verdict.accuracy.samples,
        }  # fmt: skip


# Figures ---------------------------------------------------------------------------------------------------
def levels(uri: str) -> list[list[int]]:
    """The levels of opacity, 4 bits each, of a PNG that has one chunk of data."""
    data = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        name, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size]) == (zlib.crc32(name + content),)
        chunks[name], at = content, at + 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines, stride = zlib.decompress(chunks[b"IDAT"]), 1 + (width + 1) // 2
    rows = [lines[i * stride + 1 : (i + 1) * stride] for i in range(height)]
    return [[half for byte in row for half in (byte >> 4, byte & 15)][:width] for row in rows]


def test_a_heat_map_has_a_pixel_for_each_bin_and_ink_where_something_differs():
    pixels = levels(heat_map([[0, 1, 2], [2, 0, 1]], [2, 6]))
    assert pixels == [[0, 9, 15], [15, 0, 9]]


def test_one_element_of_a_large_bin_leaves_a_mark():
    grid = [[0] * 64 for _ in range(32)]
    grid[31][63] = 1
    pixels = levels(heat_map(grid, [32_000, 151_936]))
    assert pixels[31][63] > 2 and sum(map(sum, pixels)) == pixels[31][63]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_both_patterns_are_shown_digit_by_digit_and_marked_where_they_differ(dtype):
    actual, expected = np.array([-1.5], dtype), np.array([1.25], dtype)
    difference = compare(actual, expected)
    patterns = bit_fields(difference.actual_bits, difference.expected_bits, difference.actual_dtype)
    for pattern, x in zip(patterns, (actual, expected), strict=True):
        sign, exponent, fraction = pattern
        digits = "".join(run for field in pattern for run, _ in field)
        assert digits == np.binary_repr(int(to_bits(x)[0]), 8 * x.itemsize)
        assert sign[0][1] is True and not any(differs for _, differs in exponent)
        assert fraction[0] == ({-1.5: "10", 1.25: "01"}[float(x[0])], True)
