"""A gradient's error is that of its window of 27 bits and of one rounding, and where the window holds all, none.

The bound on a dot product of a and b, each of length L, from sections 1 to 3 of the contract: the integers of a
have a unit of at most 2^-26 max|a| and are rounded to half of it, and that only where |a_k| <= max|a| / 8, since a
float32 number has 24 bits and the window 27. So a product is off by at most 2^-27 max|a| max|b| where one factor was
rounded and by 1/8 more where both were; L of them by 9/8 L 2^-27 max|a| max|b|, and the result by half a unit in the
last place (ULP) of float32 more. An aligned sum has one rounded side: L 2^-27 max|a|, and half a ULP.
"""

from typing import Any

import numpy as np
import pytest
from exact_inputs import examples
from frameworks import BFLOAT16, FLOATS, JAX, both
from gradients import gradients, normal
from hypothesis import given
from hypothesis import strategies as st

from crosscheck.bits import assert_bits_equal

SIZES = [(3, 257, 65), (300, 65, 33)]


def largest(x: Any, axis: int) -> Any:
    return np.abs(x.astype(np.float64)).max(axis=axis)


def errors_in_ulps(actual: Any, exact: Any) -> Any:
    """|actual - exact| in units of the last place of float32 at exact's magnitude."""
    _, exponent = np.frexp(exact)
    return np.abs(actual.astype(np.float64) - exact) / np.ldexp(1.0, np.maximum(exponent, -125) - 24)


def assert_within(actual: Any, exact: Any, window: Any, length: int) -> Any:
    """At most half a ULP and the window's own error, window * 2^-27; gives the errors back.

    float64 products and sums are off by less than 2^-50 length * window, and a result whose rounding crosses a power
    of two has the ULP of the larger side: together less than a hundredth of a ULP or of the window's error.
    """
    __tracebackhide__ = True
    errors = errors_in_ulps(actual, exact)
    one_ulp = np.ldexp(1.0, np.maximum(np.frexp(exact)[1], -125) - 24)
    allowed = 0.5 + 1.01 * window * 2.0**-27 / one_ulp + 2.0**-50 * length * window / one_ulp
    assert actual.dtype == np.float32
    worst = np.unravel_index(np.argmax(errors - allowed), errors.shape)
    assert (errors <= allowed).all(), f"{errors[worst]} ULP at {worst}, at most {allowed[worst]} expected"
    return errors


def assert_lm_head_within(framework: Any, hidden: Any, weight: Any, grad: Any) -> list[Any]:
    """All three gradients lie within their bounds; gives their errors in ULPs."""
    __tracebackhide__ = True
    count, vocab = len(hidden), len(weight)
    bias = np.zeros(vocab, np.float32)
    of_hidden, of_weight, of_bias = gradients(
        framework, "lm_head", hidden, weight, bias, grad=grad, compiled=framework is JAX
    )
    h, w, g = (x.astype(np.float64) for x in (hidden, weight, grad))
    dots = (
        9 / 8 * vocab * largest(g, 1)[:, None] * largest(w, 0),
        9 / 8 * count * largest(g, 0)[:, None] * largest(h, 0),
    )
    return [
        assert_within(of_hidden, g @ w, dots[0], vocab),
        assert_within(of_weight, g.T @ h, dots[1], count),
        assert_within(of_bias, g.sum(0), count * largest(g, 0), count),
    ]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "N{}-V{}-K{}".format(*size))
@both
def test_normal_inputs_stay_within_the_bound(framework, size):
    """Most errors are far below the bound: half of all are no larger than the rounding that nothing can avoid."""
    count, vocab, width = size
    errors = assert_lm_head_within(
        framework, normal(count, width), normal(vocab, width, seed=1), normal(count, vocab, seed=2)
    )
    for of in errors:
        assert np.median(of) <= 0.5


@examples(10)
@given(st.integers(0, 2**32), st.sampled_from([2.0**-40, 1.0, 2.0**40]))
@both
def test_outliers_stay_within_the_bound(framework, seed, scale):
    """Each vector has its own window: an element a million times the others costs them bits, within the bound."""
    hidden, weight, grad = normal(17, 5, seed=seed), normal(33, 5, seed=seed + 1), normal(17, 33, seed=seed + 2)
    rng = np.random.default_rng(seed)
    for x in (hidden, weight, grad):
        x *= np.where(rng.random(x.shape) < 0.05, np.float32(2**20), np.float32(1))
    assert_lm_head_within(framework, hidden, weight, grad * np.float32(scale))


@both
def test_the_gradient_of_a_table_stays_within_the_bound(framework):
    ids, grad = np.random.default_rng(0).integers(0, 9, 600, np.int32), normal(600, 65)
    grad[::7] *= 1000
    (actual,) = gradients(framework, "embedding", ids, np.zeros((9, 65), np.float32), grad=grad)
    for token in range(9):
        members = grad[ids == token].astype(np.float64)
        assert_within(actual[token], members.sum(0), len(members) * largest(members, 0), len(members))


@both
def test_where_the_window_holds_every_bit_the_gradient_is_the_exact_one_rounded_once(framework):
    """16-bit operands on a grid of 2^-16: products and sums have fewer than 53 bits, so float64 is exact too."""
    hidden, grad = (
        (np.rint(normal(*s, seed=n) * 2**16) / 2**16).astype(BFLOAT16) for n, s in enumerate([(257, 17), (257, 33)])
    )
    weight = np.zeros((33, 17), np.float32)
    of_weight, of_bias = gradients(
        framework, "lm_head", hidden, weight, np.zeros(33, np.float32), grad=grad, compiled=framework is JAX
    )[1:]
    h, g = hidden.astype(np.float64), grad.astype(np.float64)
    assert_bits_equal(of_weight, (g.T @ h).astype(np.float32))
    assert_bits_equal(of_bias, g.sum(0).astype(np.float32))


CLOSED = (129, 200, 17)  # rows, vocab, width: one size, so that JAX compiles once


# Closed forms ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@both
def test_ones_count_the_vocab_and_the_rows(framework, dtype):
    count, vocab, width = CLOSED
    ones = np.ones((count, width), dtype), np.ones((vocab, width), dtype), np.ones(vocab, dtype)
    of_hidden, of_weight, of_bias = gradients(
        framework, "lm_head", *ones, grad=np.ones((count, vocab), dtype), compiled=framework is JAX
    )
    assert_bits_equal(of_hidden, np.full((count, width), vocab, dtype))
    assert_bits_equal(of_weight, np.full((vocab, width), count, dtype))
    assert_bits_equal(of_bias, np.full(vocab, count, dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@both
def test_a_one_in_the_upstream_gradient_gives_the_row_itself(framework, dtype):
    """Magnitudes within a factor of 8 keep all bits of float32 in the window; those of 16 bits have room to spare."""
    (count, vocab, width), low = CLOSED, 1 / 4 if dtype == np.float32 else 2.0**-8
    rng = np.random.default_rng(0)
    hidden, weight = (
        (rng.uniform(low, 1, (n, width)) * rng.choice([-1, 1], (n, width))).astype(dtype) for n in (count, vocab)
    )
    for n, v in ((0, 0), (3, 199)):
        grad = np.zeros((count, vocab), dtype)
        grad[n, v] = 1
        bias = np.zeros(vocab, dtype)
        actual = gradients(framework, "lm_head", hidden, weight, bias, grad=grad, compiled=framework is JAX)
        for of, at, row in zip(actual, (n, v, v), (weight[v], hidden[n], 1), strict=True):
            expected = np.zeros_like(of)
            expected[at] = row
            assert_bits_equal(of, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@both
def test_an_id_that_occurs_once_gets_its_gradient_itself(framework, dtype):
    """But for -0, which a sum makes +0, and what is below 2^-126, which counts as 0."""
    grad = normal(5, 4, dtype=dtype)
    grad[0, :2] = [-0.0, 2.0**-130]
    expected = np.zeros((7, 4), dtype)
    ids = np.array([6, 0, 3, 1, 2], np.int32)
    expected[ids] = grad
    expected[6, :2] = 0  # in float16, 2^-130 is 0 from the start
    assert_bits_equal(gradients(framework, "embedding", ids, np.zeros((7, 4), dtype), grad=grad)[0], expected)


@both
def test_what_cancels_leaves_plus_zero(framework):
    grad = np.float32([[1, -1], [-1, 1], [0.5, -0.0]])
    hidden, weight = np.ones((3, 2), np.float32), np.ones((2, 2), np.float32)
    of_hidden, _, of_bias = gradients(framework, "lm_head", hidden, weight, np.zeros(2, np.float32), grad=grad)
    assert_bits_equal(of_hidden, np.float32([[0, 0], [0, 0], [0.5, 0.5]]))
    assert_bits_equal(of_bias, np.float32([0.5, 0]))
