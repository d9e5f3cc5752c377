"""Guards the NumPy contract's selected log-probabilities: every bit as the exact reference gives it."""

import bisect
from fractions import Fraction

import exact_logprob
import exact_reference as exact
import numpy as np
import pytest
from exact_inputs import (
    FLOAT_NAMES,
    ID_TYPES,
    any_patterns,
    assert_bits,
    dtypes,
    examples,
    generated,
    rows,
    special_patterns,
    to_array,
)
from exact_reference import Matrix, Vector
from hypothesis import example, given
from hypothesis import strategies as st

from crosscheck import contract

MANY, SOME, FEW = examples(400), examples(150), examples(30)
LONG_KINDS = st.sampled_from(["normal", "outliers", "wide", "same-sign"])


def numbers_row(dtype, values):
    """Patterns of the nearest values of the type."""
    return [exact.encode(Fraction(value), dtype) for value in values]


@st.composite
def logit_rows(draw, dtype, width):
    """A row of logits: any pattern, a moderate spread, ties, near 32 below the largest, or with infinities."""
    family = draw(st.sampled_from(["patterns", "moderate", "ties", "cutoff", "infinities"]))
    if family == "patterns":
        return draw(rows(dtype, width, 4))
    spread = draw(st.sampled_from([Fraction(1, 2**20), Fraction(1, 100), Fraction(1), Fraction(8), Fraction(40)]))
    centre = draw(st.sampled_from([0, 0, 1, -5, 100, 2**15]))
    steps = st.integers(-(2**20), 2**20).map(lambda i: centre + spread * i / 2**20)
    if family == "ties":
        steps = st.sampled_from(draw(st.lists(steps, min_size=1, max_size=2)))
    if family == "cutoff":
        steps = st.one_of(st.just(0), st.integers(-40, 40).map(lambda i: -32 + Fraction(i, 2**19)), steps)
    values = draw(st.lists(steps, min_size=width, max_size=width))
    row = numbers_row(dtype, values)
    if family == "infinities":
        special = ["-inf"] * 6 + ["inf", "nan"]
        for _ in range(draw(st.integers(1, width))):
            row[draw(st.integers(0, width - 1))] = exact.encode(draw(st.sampled_from(special)), dtype)
    return row


@st.composite
def problems(draw):
    """Logits [T, V] as a Matrix, valid targets, and V."""
    dtype, width, count = draw(dtypes), draw(st.integers(1, 12)), draw(st.integers(0, 3))
    logits = Matrix(dtype, [draw(logit_rows(dtype, width)) for _ in range(count)])
    return logits, [draw(st.integers(0, width - 1)) for _ in range(count)], width


def assert_logprob(logits, targets, width):
    """The log-probabilities have the exact reference's bits."""
    __tracebackhide__ = True
    count = len(targets)
    array = to_array(logits.dtype, logits.rows, (count, width))
    actual = contract.selected_logprob(array, np.array(targets, np.int64))
    expected = [
        exact_logprob.selected_logprob(Vector(logits.dtype, row), target)
        for row, target in zip(logits.rows, targets, strict=True)
    ]
    assert_bits(actual, "float32", (count,), expected)


def assert_grad(logits, targets, width, upstream):
    """The gradients of the logits for upstream float32 patterns have the exact reference's bits."""
    __tracebackhide__ = True
    count = len(targets)
    array = to_array(logits.dtype, logits.rows, (count, width))
    upstream_array = to_array("float32", upstream, (count,))
    actual = contract.selected_logprob_grad(array, np.array(targets, np.int64), upstream_array)
    expected = [
        exact_logprob.selected_logprob_grad(Vector(logits.dtype, row), target, g)
        for row, target, g in zip(logits.rows, targets, upstream, strict=True)
    ]
    assert_bits(actual, logits.dtype, (count, width), expected)


@MANY
@given(problems())
def test_logprob_is_exact(problem):
    assert_logprob(*problem)


@MANY
@given(problems(), st.data())
def test_logprob_gradient_is_exact(problem, data):
    patterns = st.one_of(any_patterns("float32"), st.sampled_from(special_patterns("float32")))
    logits, targets, width = problem
    count = len(targets)
    ordinary = st.integers(0x38000000, 0x48000000)
    upstream = data.draw(st.lists(st.one_of(patterns, ordinary), min_size=count, max_size=count))
    assert_grad(logits, targets, width, upstream)


@FEW
@given(dtypes, st.integers(1, 3000), LONG_KINDS, st.integers(0, 2**32))
@example("float32", 9000, "wide", 0)
@example("bfloat16", 9000, "same-sign", 0)
def test_logprob_over_a_long_vocab_is_exact(dtype, width, kind, seed):
    logits = generated(kind, dtype, 1, width, seed)
    assert_logprob(logits, [seed % width], width)


@FEW
@given(dtypes, st.integers(1, 3000), LONG_KINDS, st.integers(0, 2**32))
def test_logprob_gradient_over_a_long_vocab_is_exact(dtype, width, kind, seed):
    assert_grad(generated(kind, dtype, 1, width, seed), [seed % width], width, [0x3F800000 + seed % 2**23])


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
@pytest.mark.parametrize("kind", ["normal", "wide"])
def test_logprobs_and_gradients_of_many_rows_are_exact(kind, dtype):
    """Enough sums S for those whose reciprocal or logarithm lies on a tie."""
    count = 600
    logits, upstream = generated(kind, dtype, count, 3, 11), generated("finite", "float32", count, 1, 12)
    targets = [i % 3 for i in range(count)]
    assert_logprob(logits, targets, 3)
    assert_grad(logits, targets, 3, [row[0] for row in upstream.rows])


@pytest.mark.parametrize("vocab", [2**16 - 1, 2**16, 151936, 2**18 - 1, 2**18])
def test_logprob_of_equal_logits_is_exact_up_to_the_largest_vocab(vocab):
    actual = contract.selected_logprob(np.zeros((1, vocab), np.float32), np.array([vocab - 1]))
    expected = exact.encode(exact_logprob.logprob_from_sum(Fraction(0), vocab << 44), "float32")
    assert_bits(actual, "float32", (1,), [expected])


def row_whose_exponentials_sum_to(total):
    """float32 logits, 0 the largest, with the sum S = total: zeros, then the largest exponentials that still fit."""
    row = [0] * (total >> 44)
    rest = total - (len(row) << 44)
    while rest:
        fits = bisect.bisect_left(range(0x42000000), True, key=lambda d: exponential_of_pattern(d) <= rest)
        row.append(0x80000000 | fits)
        rest -= exponential_of_pattern(fits)
    return row


def exponential_of_pattern(bits):
    """E of the float32 pattern of d; it falls as d grows."""
    return exact_logprob.exponential(exact.taken(bits, "float32"))


@pytest.mark.parametrize("offset", [-2, -1, 0, 1])
@pytest.mark.parametrize("power", [45, 53, 54, 55, 56])
def test_the_logarithm_of_a_sum_beside_a_power_of_two_is_exact(power, offset):
    row = row_whose_exponentials_sum_to(2**power + offset)
    assert_logprob(Matrix("float32", [row]), [0], len(row))


@pytest.mark.parametrize("offset", [-2, -1, 0, 1])
@pytest.mark.parametrize("power", [45, 53, 54, 55, 56])
def test_the_gradient_for_a_sum_beside_a_power_of_two_is_exact(power, offset):
    row = row_whose_exponentials_sum_to(2**power + offset)
    assert_grad(Matrix("float32", [row]), [0], len(row), [0x3FC00001])


@SOME
@given(st.data(), st.integers(-(2**12), 2**12))
def test_differences_that_tie_in_24_bits_are_rounded_once(data, offset):
    small = data.draw(st.integers(0x3F000000, 0x40000000).map(lambda bits: bits | 1))
    large = exact.encode(Fraction(16 + offset % 7) + Fraction(offset, 2**19), "float32")
    assert_logprob(Matrix("float32", [[large, small, small ^ 0x80000000]]), [1], 3)


@pytest.mark.parametrize("upstream", [0x00FFFFFF, 0x80FFFFFF, 0x00FFFFFE, 0x01000000, 0x007FFFFF, 0x00800000])
@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_gradients_near_the_smallest_are_rounded_without_limits_before_the_flush(dtype, upstream):
    assert_grad(Matrix(dtype, [[0, 0]]), [0], 2, [upstream])


@pytest.mark.parametrize("second", [0xBF657212, 0xBF4578D5, 0xBF423D7A, 0xBF6A7AB2], ids=hex)
def test_the_reciprocal_is_that_of_the_sum_cut_to_31_bits(second):
    """R = floor(2^61 / (S >> (b - 30))) rounds to another float32 than floor(2^(31+b) / S)."""
    assert_grad(Matrix("float32", [[0x00000000, second]]), [0], 2, [0x3F800000])


def test_a_subnormal_upstream_is_taken_exactly():
    """The probability is 1 + 2^-23 by its roundings, which lifts the largest subnormal to 2^-126."""
    assert_grad(Matrix("float32", [[0x00000000, 0xBEE39441, 0xFF800000]]), [2], 3, [0x007FFFFF])


@SOME
@given(problems(), st.data())
def test_gradients_at_the_flush_are_exact(problem, data):
    logits, targets, width = problem
    count = len(targets)
    upstream = data.draw(st.lists(st.integers(0x00000000, 0x03000000), min_size=count, max_size=count))
    assert_grad(logits, targets, width, upstream)


@pytest.mark.parametrize("leading", [(), (0,), (2, 0), (2, 1, 2)])
def test_leading_axes_are_kept(leading):
    count = int(np.prod(leading, dtype=int))
    logits = generated("normal", "bfloat16", count, 5, 3)
    array = to_array("bfloat16", logits.rows, (*leading, 5))
    targets = np.full(leading, 4)
    logprobs = [exact_logprob.selected_logprob(Vector("bfloat16", row), 4) for row in logits.rows]
    grads = [exact_logprob.selected_logprob_grad(Vector("bfloat16", row), 4, 0x3FC00000) for row in logits.rows]
    assert_bits(contract.selected_logprob(array, targets), "float32", leading, logprobs)
    upstream = np.full(leading, 1.5, np.float32)
    assert_bits(contract.selected_logprob_grad(array, targets, upstream), "bfloat16", (*leading, 5), grads)


OPERATIONS = {
    "logprob": contract.selected_logprob,
    "gradient": lambda logits, ids: contract.selected_logprob_grad(logits, ids, np.ones(np.shape(ids), np.float32)),
}
BOTH = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


@BOTH
@pytest.mark.parametrize("id_type", ID_TYPES)
def test_every_integer_type_of_targets_selects_the_same(operation, id_type):
    logits = np.arange(6, dtype=np.float32).reshape(2, 3)
    actual, expected = (operation(logits, np.array([2, 1], t)) for t in (id_type, np.int64))
    assert_bits(actual, "float32", expected.shape, expected.view(np.uint32))


@BOTH
@pytest.mark.parametrize("target", [-1, 3, -3, 2**31 - 1, 2**32 + 1, -(2**63)])
def test_bad_targets_raise(operation, target):
    with pytest.raises(IndexError):
        operation(np.zeros((1, 3), np.float32), np.array([target]))


@BOTH
@pytest.mark.parametrize("id_type", [np.bool_, np.float32])
def test_targets_that_are_not_integers_are_refused(operation, id_type):
    with pytest.raises(TypeError):
        operation(np.zeros((1, 3), np.float32), np.ones(1, id_type))


@BOTH
def test_a_vocab_beyond_the_exact_sum_is_refused(operation):
    with pytest.raises(ValueError, match="262144"):
        operation(np.zeros((1, 2**18 + 1), np.float32), np.array([0]))
