"""The comparer finds every planted fault, names it exactly, and finds none in equal bits."""

import numpy as np
import pytest
from bit_arrays import BFLOAT16, LAYOUTS, random_bits
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from crosscheck.bits import BitsDiffer, assert_bits_equal, compare, to_bits

BOOL = np.dtype(bool)
FLOATS = (BFLOAT16, np.dtype("f2"), np.dtype("f4"), np.dtype("f8"))
INTEGERS = tuple(np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8))
SHAPES = ((), (1,), (7,), (3, 4), (2, 3, 5))


def float32(*bits: int) -> NDArray[np.float32]:
    return np.array(bits, np.uint32).view(np.float32)


# Planted faults -----------------------------------------------------------------------------------------
@given(
    dtype=st.sampled_from(FLOATS + INTEGERS), shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**32), data=st.data()
)
def test_one_flipped_bit_is_found_and_named(dtype, shape, seed, data):
    expected = random_bits(dtype, shape, seed)
    index = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    actual = expected.copy()
    to_bits(actual)[index] ^= to_bits(actual).dtype.type(1 << data.draw(st.integers(0, 8 * dtype.itemsize - 1)))

    difference = compare(actual, expected)

    assert difference is not None
    found = (difference.kind, difference.count, difference.total, difference.index)
    assert found == ("bits", 1, expected.size, index)
    patterns = tuple(f"0x{int(to_bits(x)[index]):0{2 * dtype.itemsize}X}" for x in (actual, expected))
    assert (difference.actual_bits, difference.expected_bits) == patterns


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + (BOOL,), ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (0,), (0, 3)], ids=str)
def test_equal_bits_are_equal(dtype, shape):
    x = random_bits(dtype, shape) if dtype != BOOL else np.ones(shape, bool)
    assert compare(x, x.copy()) is None


def test_positive_and_negative_zero_differ():
    difference = compare(np.array([1, 0.0], "f4"), np.array([1, -0.0], "f4"))
    assert difference is not None
    assert (difference.index, difference.actual_bits, difference.expected_bits) == ((1,), "0x00000000", "0x80000000")


def test_nan_equals_the_same_nan():
    assert compare(float32(0x7FC00000), float32(0x7FC00000)) is None


def test_nan_differs_from_another_payload():
    difference = compare(float32(0x7FC00000), float32(0x7FC00001))
    assert difference is not None
    assert (difference.actual_bits, difference.expected_bits) == ("0x7FC00000", "0x7FC00001")


@pytest.mark.parametrize(
    "dtypes", [("f4", "f8"), ("f4", BFLOAT16), ("f2", BFLOAT16), ("i4", "u4"), ("i4", "f4")], ids=str
)
def test_another_dtype_differs(dtypes):
    difference = compare(*(np.zeros(3, dtype) for dtype in dtypes))
    assert difference is not None and difference.kind == "dtype"


@pytest.mark.parametrize(
    "shapes", [((), (1,)), ((0,), ()), ((2, 3), (3, 2)), ((6,), (2, 3)), ((0, 3), (3, 0))], ids=str
)
def test_another_shape_of_the_same_bytes_differs(shapes):
    difference = compare(*(np.zeros(shape, np.float32) for shape in shapes))
    assert difference is not None and difference.kind == "shape"


def test_every_difference_is_counted_and_the_first_is_shown():
    expected = np.zeros((3, 4), np.float16)
    actual = expected.copy()
    actual[1, 2], actual[2, 0], actual[2, 3] = 1, 2, 3
    difference = compare(actual, expected)
    assert difference is not None
    assert (difference.count, difference.total, difference.index) == (3, 12, (1, 2))


# Layout -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_is_no_difference(layout, dtype):
    x = random_bits(dtype, (5, 6))
    assert compare(LAYOUTS[layout](x), x) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fault_is_found_in_every_layout(layout):
    x = random_bits(np.dtype("f4"), (5, 6))
    faulty = x.copy()
    faulty[3, 4] = 0
    difference = compare(LAYOUTS[layout](faulty), x)
    assert difference is not None and difference.index == (3, 4)


def test_expanded_rows_equal_their_copies():
    row = random_bits(np.dtype("f4"), (1, 6))
    assert compare(np.broadcast_to(row, (5, 6)), np.repeat(row, 5, axis=0)) is None


# ULP distance -------------------------------------------------------------------------------------------
def test_distance_is_the_count_of_values_between():
    """All float16 values in order: +0 and -0 are one point, so distance is the difference of ranks."""
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = np.unique(values[np.isfinite(values)])
    start = np.random.default_rng(1).integers(0, len(finite), 2000)
    stop = np.random.default_rng(2).integers(0, len(finite), 2000)
    for i, j in zip(start, stop, strict=True):
        difference = compare(finite[i], finite[j])
        assert (difference.ulp if difference else 0) == abs(i - j)


@pytest.mark.parametrize(
    ("actual", "expected", "ulp"),
    [
        (np.float32(1), np.nextafter(np.float32(1), np.float32(2)), 1),
        (np.float32(0.0), np.float32(-0.0), 0),
        (float32(1)[0], float32(0x80000001)[0], 2),  # the two smallest subnormals
        (np.finfo(np.float32).max, np.float32(np.inf), 1),
        (np.float64(-np.inf), np.float64(np.inf), 2 * 0x7FF0000000000000),
        (BFLOAT16.type(1), BFLOAT16.type(2), 128),
        (np.int64(-(2**63)), np.int64(2**63 - 1), 2**64 - 1),
        (np.uint8(3), np.uint8(250), 247),
        (np.float32(np.nan), np.float32(1), None),
        (np.float32(1), np.float32(np.nan), None),
    ],
)
def test_known_distances(actual, expected, ulp):
    difference = compare(actual, expected)
    assert difference is not None and difference.ulp == ulp


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), min_size=1))
@example([(0x7FC00000, 0x7FC00001)])
@example([(0x7FC00000, 0), (1, 2)])
def test_the_largest_distance_is_that_of_one_pair(pairs):
    actual, expected = (float32(*column) for column in zip(*pairs, strict=True))
    single = [compare(a, e) for a, e in zip(actual, expected, strict=True)]
    distances = [d.ulp for d in single if d is not None and d.ulp is not None]
    difference = compare(actual, expected)
    assert (difference.max_ulp if difference else None) == max(distances, default=None)


def test_the_largest_distance_is_found_in_the_last_block():
    expected = np.ones(2**18 + 5, np.float32)
    actual = np.nextafter(expected, np.float32(2))
    actual[-1] = 2
    difference = compare(actual, expected)
    assert difference is not None and (difference.ulp, difference.max_ulp) == (1, 2**23)


# Text ---------------------------------------------------------------------------------------------------
def test_assert_bits_equal_accepts_equal_bits():
    assert_bits_equal(np.array([np.nan, -0.0], "f4"), np.array([np.nan, -0.0], "f4"))


def test_the_failure_says_all_of_it():
    actual, expected = np.array([[1, 2], [3, 0.1]], "f4"), np.array([[1, 2], [5, 0.2]], "f4")
    with pytest.raises(BitsDiffer) as error:
        assert_bits_equal(actual, expected, context="lm_head on jax-cpu")
    assert str(error.value) == (
        "lm_head on jax-cpu: 2 of 4 elements of float32 (2, 2) differ; first at [1, 0]: "
        "actual 3.0 (0x40400000), expected 5.0 (0x40A00000), 6291456 ULP apart, at most 8388608"
    )


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        (np.array([1], "f4"), np.array([1], "f8"), "dtype is float32; expected float64"),
        (np.float32(1), np.array([1], "f4"), "shape is (); expected (1,), float32"),
        (
            float32(0x7FC00000),
            float32(0x7F800001),
            "1 of 1 elements of float32 (1,) differ; first at [0]: actual nan (0x7FC00000), "
            "expected nan (0x7F800001), NaN has no ULP distance",
        ),
        (
            BFLOAT16.type(0.1),
            BFLOAT16.type(0.2),
            "1 of 1 elements of bfloat16 () differ; first at []: actual 0.100098 (0x3DCD), "
            "expected 0.200195 (0x3E4D), 128 ULP apart",
        ),
    ],
    ids=["dtype", "shape", "nan", "bfloat16"],
)
def test_the_sentence_of_each_kind(actual, expected, text):
    with pytest.raises(BitsDiffer) as error:
        assert_bits_equal(actual, expected)
    assert str(error.value) == text


def test_the_failure_carries_the_record():
    with pytest.raises(BitsDiffer) as error:
        assert_bits_equal(np.int8(1), np.int8(3))
    assert (error.value.difference.actual, error.value.difference.expected) == (1, 3)
