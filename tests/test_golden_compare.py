"""Two goldens are equal where dtype, shape and every bit of every output are, and a difference is named."""

from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.flax
import safetensors.torch
import torch
from golden_files import MAKER, answered, changed_manifest, crosscheck, write
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_alone

from crosscheck import assert_bits_equal, compare, digest, golden_arrays
from crosscheck.golden_arrays import Blocks, Whole, difference
from crosscheck.golden_write import write_golden
from crosscheck.goldens import open_golden


def compared(tmp_path, actual, expected, **options):
    return crosscheck("compare", write(tmp_path / "a", actual, **options), write(tmp_path / "b", expected, **options))


def nan(*patterns: int):
    return np.uint32(patterns).view(np.float32)


# One pair of arrays ------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"whole_up_to": 0}], ids=["whole", "blocks"])
@pytest.mark.parametrize(
    "array",
    [
        np.float32([[np.nan, 0, -0.0, 1e-40]]), np.float32(2), np.zeros((0, 3), np.float16), nan(0x7FC00001),
        np.arange(6, dtype=np.uint16).reshape(2, 3), np.array([True, False]), np.arange(3, dtype=np.int64),
        np.ones((2, 3, 4), ml_dtypes.bfloat16), np.zeros(4, ">f4"), np.arange(12.0).reshape(3, 4).T,
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)  # fmt: skip
def test_the_same_bits_are_equal(tmp_path, array, options):
    result = compared(tmp_path, array, array.copy(), **options)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        0,
        "EQUAL: every output has the same bits (1 case)",
    )
    assert open_golden(tmp_path / "a").cases["planted"].arrays["outputs.result"].sha256 == digest(array)


@pytest.mark.parametrize("options", [{}, {"whole_up_to": 0}], ids=["whole", "blocks"])
@pytest.mark.parametrize(
    ("actual", "expected", "said"),
    [
        (np.float32([1, 0.0]), np.float32([1, -0.0]), "actual 0.0 (0x00000000), expected -0.0 (0x80000000), 0 ULP"),
        (nan(0x7FC00000), nan(0x7FC00001), "(0x7FC00000), expected nan (0x7FC00001), NaN has no ULP distance"),
        (np.float32([1]), np.float64([1]), "dtype is float32; expected float64"),
        (np.float32(1), np.float32([1]), "shape is (); expected (1,)"),
        (np.float32([]), np.float32(1), "shape is (0,); expected ()"),
        (np.zeros((2, 3)), np.zeros((3, 2)), "shape is (2, 3); expected (3, 2)"),
        (np.int16([5]), np.uint16([5]), "dtype is int16; expected uint16"),
        (
            np.array([1, 1], ml_dtypes.bfloat16),
            np.array([1, 1.0078125], ml_dtypes.bfloat16),
            "actual 1 (0x3F80), expected 1.00781 (0x3F81), 1 ULP apart",
        ),
    ],
)
def test_other_bits_differ_and_both_patterns_are_shown(tmp_path, actual, expected, said, options):
    result = compared(tmp_path, actual, expected, **options)
    assert result.exit_code == 1
    assert said in result.stdout
    assert result.stdout.splitlines()[-1] == "DIFFERENT: 1 output of 1 case with other bits"


@pytest.mark.parametrize(
    "made",
    [lambda x: torch.tensor(x, dtype=torch.bfloat16), lambda x: jnp.array(x, jnp.bfloat16)],
    ids=["torch", "jax"],
)
def test_bfloat16_survives_from_each_framework(tmp_path, made):
    array = made([1.5, -0.0, float("nan")])
    folder = write(tmp_path / "g", array)
    stored = open_golden(folder).array("planted", "outputs.result")
    assert stored.dtype == ml_dtypes.bfloat16
    assert_bits_equal(stored, array)
    file = folder / "planted.safetensors"
    for library in (safetensors.torch, safetensors.flax):
        assert_bits_equal(library.load_file(file)["outputs.result"], array)


# Large arrays ------------------------------------------------------------------------------------------
SHAPES = [(5000, 3), (7, 2, 3), (4100,), (2, 2000, 5), (1, 9)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=10)
@given(data=st.data())
def test_blocks_name_the_rows_that_differ(shape, data):
    want = np.random.default_rng(0).integers(0, 99, shape).astype(np.int32)
    got = want.copy()
    places = data.draw(st.sets(st.integers(0, want.size - 1), max_size=4))
    got.reshape(-1)[list(places)] += 1
    rows, block = golden_arrays.rows_and_width(shape), golden_arrays.block_rows(shape)
    blocks = {place // rows[1] // block for place in places}
    pairs = [(Whole.of(got), Whole.of(want).blocks(3)), (Whole.of(got).blocks(2), Whole.of(want))]
    for text in (difference(*pair) for pair in [*pairs, (pairs[1][0], pairs[0][1])]):
        assert (text is None) == (not places)
        assert not places or text.startswith(f"{len(blocks)} of {-(-rows[0] // block)} ")
        assert not places or f" {min(blocks) * block}" in text.partition("differ: ")[2]
    if places:
        first = [int(i) for i in np.unravel_index(min(places), shape)]
        assert f"first at {first}: " in difference(Whole.of(got), Whole.of(want))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 64])
def test_parts_of_a_file_are_its_rows(tmp_path, monkeypatch, shape, chunk):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if array.size > 10_000:
        array = array[:, :40]
    write(tmp_path / "g", array)
    monkeypatch.setattr(golden_arrays, "CHUNK", chunk)
    stored = open_golden(tmp_path / "g").load("planted", "outputs.result")
    assert_bits_equal(np.concatenate([part for _, part in stored.parts()]).reshape(array.shape), array)


@pytest.mark.parametrize("chunk", [1, 40, 10**6])
def test_parts_are_compared_as_one_array(monkeypatch, chunk):
    want = np.random.default_rng(0).standard_normal((3, 7, 5)).astype(np.float32)
    bits = want.view(np.uint32).copy()
    bits[1, 2, 3] += 4
    bits[2, 0, 0] += 9
    bits[2, 6, 4] += 1
    monkeypatch.setattr(golden_arrays, "CHUNK", chunk)
    got = bits.view(np.float32)
    found = compare(got, want)
    assert "first at [1, 2, 3]" in found.describe() and "4 ULP apart, at most 9" in found.describe()
    assert difference(Whole.of(got), Whole.of(want)) == found.describe()


def test_large_outputs_cost_kilobytes(tmp_path):
    write(tmp_path / "g", np.zeros((2048, 20_000), np.uint16))
    assert sum(file.stat().st_size for file in (tmp_path / "g").iterdir()) < 200_000
    assert isinstance(open_golden(tmp_path / "g").load("planted", "outputs.result"), Blocks)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="not run: no /proc, which has the peak of a process")
def test_comparing_takes_less_memory_than_one_of_the_arrays(tmp_path):
    """The peak of a process that compares 128 MiB on each side, beyond that of one that compares next to nothing."""
    peaks = {}
    for size in (1, 2048):
        array = np.zeros((size, 32768), np.uint16)
        write(tmp_path / f"a{size}", array, whole_up_to=2**40)
        array[:, 7] ^= 1
        write(tmp_path / f"b{size}", array, whole_up_to=2**40)
        program = "\n".join([
            "from pathlib import Path; from golden_files import crosscheck",
            f"result = crosscheck('compare', {str(tmp_path / f'a{size}')!r}, {str(tmp_path / f'b{size}')!r})",
            f"assert '{size} of {size * 32768} elements' in result.stdout",
            "print(next(x for x in Path('/proc/self/status').read_text().splitlines() if x.startswith('VmHWM')))",
        ])  # fmt: skip
        peaks[size] = int(run_alone(program).split()[1])
    assert peaks[2048] - peaks[1] < 128 * 1024, peaks


def test_a_whole_array_and_its_blocks_are_equal(tmp_path):
    array = np.arange(600, dtype=np.float32).reshape(2, 100, 3)
    a, b = write(tmp_path / "a", array), write(tmp_path / "b", array, whole_up_to=0, sample_rows=5)
    assert crosscheck("compare", a, b).exit_code == 0
    assert crosscheck("compare", b, a).exit_code == 0


def test_a_difference_outside_the_sampled_rows_says_so(tmp_path):
    want = np.zeros((9, 2), np.float32)
    got = want.copy()
    got[[2, 3, 6]] = 1
    result = compared(tmp_path, got, want, whole_up_to=0)
    assert "3 of 9 rows of float32 (9, 2) differ: rows 2-3, 6; none of them is a sampled row" in result.stdout


# Several cases -----------------------------------------------------------------------------------------
def several(folder, *ids, result=1.0, **options):
    write_golden(folder, [answered(np.float32([result]), id=name, **options) for name in ids], MAKER)
    return folder


def test_missing_and_extra_cases_are_named(tmp_path):
    a, b = several(tmp_path / "a", "one", "two"), several(tmp_path / "b", "two", "three")
    result = crosscheck("compare", a, b)
    assert result.exit_code == 2
    assert f"UNUSABLE one: it is missing from {b}" in result.stdout
    assert f"UNUSABLE three: it is missing from {a}" in result.stdout
    assert result.stdout.splitlines()[-1] == "UNUSABLE: 2 cases not comparable, 1 case equal"
    assert crosscheck("compare", a, b, "--filter", "two").exit_code == 0


def test_a_difference_counts_more_than_a_missing_case(tmp_path):
    a, b = several(tmp_path / "a", "one", "two"), several(tmp_path / "b", "two", result=2.0)
    assert crosscheck("compare", a, b).exit_code == 1


@pytest.mark.parametrize(("ids", "pattern"), [([], "*"), (["one"], "no-such-case")])
def test_nothing_on_both_sides_is_unusable(tmp_path, ids, pattern):
    a, b = several(tmp_path / "a", *ids), several(tmp_path / "b", *ids)
    result = crosscheck("compare", a, b, "--filter", pattern)
    assert (result.exit_code, "nothing compared" in result.stderr) == (2, True)
    assert crosscheck("golden", "verify", a, "--filter", pattern).exit_code == 2


def test_other_inputs_are_said_and_their_outputs_are_not_compared(tmp_path):
    inputs = {"hidden": np.float32([[1, 2]]), "weight": np.float32([[3, 5]])}
    a, b = write(tmp_path / "a", np.float32([1])), write(tmp_path / "b", np.float32([2]), inputs)
    result = crosscheck("compare", a, b)
    assert result.exit_code == 2
    assert "planted: the inputs are not the same: inputs.weight: 1 of 2 elements" in result.stdout
    assert "outputs.result" not in result.stdout


def test_other_digits_are_another_call(tmp_path):
    a, b = several(tmp_path / "a", "one"), several(tmp_path / "b", "one", digits=4)
    result = crosscheck("compare", a, b)
    assert (result.exit_code, "digits is 3 in" in result.stdout) == (2, True)


@pytest.mark.parametrize(
    ("field", "said"), [("schema", "expected 'crosscheck-golden/1'"), ("contract", "record both again")]
)
def test_another_schema_or_contract_is_refused(tmp_path, field, said):
    a, b = several(tmp_path / "a", "one"), several(tmp_path / "b", "one")
    changed_manifest(b, lambda manifest: manifest.update({field: "another/2"}))
    result = crosscheck("compare", a, b)
    assert (result.exit_code, said in result.stderr, "another/2" in result.stderr) == (2, True, True)
    assert crosscheck("golden", "verify", b).exit_code == 2
