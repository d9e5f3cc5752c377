"""Bit patterns for the tests against the exact reference: NumPy arrays from them, comparison, and how to draw them.

Rows come from families that each press on one part of the contract: any pattern at all (extreme exponents,
subnormals, NaN, infinities, -0), the special patterns alone, exponents from a narrow band, ties of the alignment
rounding, and products that cancel.
"""

from fractions import Fraction

import ml_dtypes
import numpy as np
from exact_reference import FORMATS, Matrix, Vector, encode, power_of_two
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

NUMPY_TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
UNSIGNED = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16}
FLOAT_NAMES = list(FORMATS)
ID_TYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]

dtypes = st.sampled_from(FLOAT_NAMES)
digit_counts = st.sampled_from([2, 3, 4])


def examples(count):
    """The same `count` examples in every run, however slow the machine."""
    return settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def to_array(dtype, bits, shape):
    """A NumPy array of the named float type with these bit patterns."""
    return np.array(bits, UNSIGNED[dtype]).reshape(shape).view(NUMPY_TYPES[dtype])


def matrix_array(matrix, width):
    """A Matrix as an array [rows, width]."""
    return to_array(matrix.dtype, matrix.rows, (len(matrix.rows), width))


def vector_array(vector):
    """A Vector as an array [length], or None."""
    return None if vector is None else to_array(vector.dtype, vector.bits, len(vector.bits))


def assert_bits(actual, dtype, shape, expected):
    """`actual` has this dtype, this shape and these (nested lists of) bit patterns."""
    __tracebackhide__ = True
    wanted = np.array(expected, UNSIGNED[dtype]).reshape(shape)
    assert actual.dtype == NUMPY_TYPES[dtype], f"dtype is {actual.dtype}, should be {dtype}"
    assert actual.shape == wanted.shape, f"shape is {actual.shape}, should be {wanted.shape}"
    bits = np.ascontiguousarray(actual).view(UNSIGNED[dtype])
    different = np.argwhere(bits != wanted)
    if len(different):
        first = tuple(different[0].tolist())
        raise AssertionError(
            f"{len(different)} of {wanted.size} differ, first at {first}: "
            f"{int(bits[first]):#x}, should be {int(wanted[first]):#x}"
        )


def sign_bit(dtype):
    """The pattern of -0."""
    return 1 << sum(FORMATS[dtype])


def special_patterns(dtype):
    """Zeros, subnormals, the edges of the exponent range and of the flush, 1, infinities, NaNs; both signs."""
    fraction_bits = FORMATS[dtype][1]
    one, infinity = encode(Fraction(1), dtype), encode("inf", dtype)
    smallest_normal = 1 << fraction_bits
    positive = [0, 1, smallest_normal - 1, smallest_normal, smallest_normal + 1, one - 1, one, one + 1]
    positive += [infinity - 1, infinity, infinity + 1, encode("nan", dtype), 2 * infinity - 1 & sign_bit(dtype) - 1]
    return positive + [bits | sign_bit(dtype) for bits in positive]


def any_patterns(dtype):
    """Every pattern of the type."""
    return st.integers(0, 2 * sign_bit(dtype) - 1)


def finite_patterns(dtype):
    """Every pattern of the type that is neither NaN nor infinite."""
    infinity = encode("inf", dtype)
    return st.builds(
        lambda sign, bits: sign | bits, st.sampled_from([0, sign_bit(dtype)]), st.integers(0, infinity - 1)
    )


@st.composite
def band_patterns(draw, dtype):
    """A strategy for finite patterns whose exponents lie in one narrow band."""
    exponent_bits, fraction_bits = FORMATS[dtype]
    low = draw(st.integers(0, 2**exponent_bits - 2))
    high = draw(st.integers(low, min(low + 30, 2**exponent_bits - 2)))
    magnitudes = st.integers(low << fraction_bits, ((high + 1) << fraction_bits) - 1)
    return st.builds(lambda sign, bits: sign | bits, st.sampled_from([0, sign_bit(dtype)]), magnitudes)


@st.composite
def tie_patterns(draw, dtype, digits):
    """A strategy for values halfway between two integers of the window, for rows whose exponent is e."""
    window = 7 * digits - 1
    exponent_bits, fraction_bits = FORMATS[dtype]
    bias = 2 ** (exponent_bits - 1) - 1
    e = draw(st.integers(2 - bias, bias + 1))
    largest = st.sampled_from([2**window, -(2**window), 2 ** (window + 1) - 1])
    odd = st.integers(0, 2 ** min(fraction_bits, window - 1) - 1).map(lambda k: 2 * k + 1)
    halves = st.one_of(odd, odd.map(lambda k: -k), odd, largest)
    return halves.map(lambda half: encode(half * power_of_two(e - window - 1), dtype))


@st.composite
def rows(draw, dtype, length, digits):
    """One row of patterns from one of the families."""
    family = draw(st.sampled_from(["any", "finite", "special", "band", "ties"]))
    if family == "any":
        elements = any_patterns(dtype)
    elif family == "finite":
        elements = finite_patterns(dtype)
    elif family == "special":
        elements = st.sampled_from(special_patterns(dtype))
    elif family == "band":
        elements = draw(band_patterns(dtype))
    else:
        elements = draw(tie_patterns(dtype, digits))
    return draw(st.lists(elements, min_size=length, max_size=length))


@st.composite
def matrices(draw, dtype, count, width, digits):
    """A Matrix whose rows are drawn each from its own family."""
    return Matrix(dtype, [draw(rows(dtype, width, digits)) for _ in range(count)])


@st.composite
def vectors(draw, dtype, length, digits=4):
    """A Vector from one of the families."""
    return Vector(dtype, draw(rows(dtype, length, digits)))


@st.composite
def cancelling_pairs(draw, hidden_dtype, weight_dtype, half):
    """A hidden row u, u and a weight row w, -w, where one element of the weight may be a last bit off."""
    hidden = draw(st.lists(draw(band_patterns(hidden_dtype)), min_size=half, max_size=half))
    weight = draw(st.lists(draw(band_patterns(weight_dtype)), min_size=half, max_size=half))
    mirrored = [bits ^ sign_bit(weight_dtype) for bits in weight]
    if draw(st.booleans()):
        mirrored[draw(st.integers(0, half - 1))] ^= 1
    return Matrix(hidden_dtype, [hidden + hidden]), Matrix(weight_dtype, [weight + mirrored])


SHAPES_OF_VALUES = ["normal", "outliers", "finite", "same-sign", "wide"]


def generated(kind, dtype, count, width, seed):
    """A Matrix of generated finite patterns, for rows too long to be drawn one element at a time."""
    generator = np.random.default_rng(seed)
    shape = (count, width)
    if kind == "finite":
        bits = generator.integers(0, encode("inf", dtype), shape)
        return Matrix(dtype, (bits | generator.choice([0, sign_bit(dtype)], shape)).tolist())
    if kind == "same-sign":  # the largest sums: every element just below a power of two
        just_below_one = encode(Fraction(1), dtype) - 1
        return Matrix(dtype, (just_below_one - generator.integers(0, 2, shape)).tolist())
    values = generator.standard_normal(shape)
    if kind == "outliers":
        values *= np.where(generator.random(shape) < 0.01, 1000.0, 1.0)
    if kind == "wide":
        values *= np.exp2(generator.integers(-13, 14, shape))
    return Matrix(dtype, values.astype(NUMPY_TYPES[dtype]).view(UNSIGNED[dtype]).tolist())
