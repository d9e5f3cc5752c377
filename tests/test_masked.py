"""Masked sums and means are exact and rounded once: the same bits in both frameworks and in every layout."""

from typing import Any

import jax
import numpy as np
import pytest
from exact_inputs import examples
from frameworks import FLOATS, both
from gradients import value_and_gradients
from hypothesis import given
from hypothesis import strategies as st

import rlk_jax
from crosscheck import masked
from crosscheck.bits import as_numpy, assert_bits_equal

OPS = ["masked_sum", "masked_mean"]
RNG = np.random.default_rng


@st.composite
def problems(draw):
    """Values [3, 11] of mixed exponents with special ones, a mask, an axis, an upstream gradient of any size."""
    rng = RNG(draw(st.integers(0, 2**32 - 1)))
    with np.errstate(over="ignore"):
        wide = rng.standard_normal((3, 11)) * 2.0 ** rng.integers(
            *draw(st.sampled_from([(-3, 3), (-149, 127)])), (3, 11)
        )
        values = wide.astype(draw(st.sampled_from(FLOATS)))
    for value in draw(st.lists(st.sampled_from([np.inf, np.nan, -0.0, 1e-40]), max_size=2)):
        values[rng.integers(0, 3), rng.integers(0, 11)] = value
    mask = rng.random((3, 11)) < draw(st.sampled_from([0.0, 0.1, 0.7, 1.0]))
    axis = draw(st.sampled_from([None, 0, 1, -1]))
    g = np.float32(rng.standard_normal(mask.sum(axis).shape) * 2.0 ** draw(st.integers(-149, 120)))
    return values, mask, axis, g


@pytest.mark.parametrize("op", OPS)
@given(problems())
@examples(60)
@both
def test_any_values_mask_and_upstream_gradient(framework, op, problem):
    values, mask, axis, g = problem
    x, kept = framework.array(values), framework.array(mask)

    def function(x: Any) -> Any:
        return getattr(framework.package, op)(x, kept, axis=axis)

    result, (grad,) = value_and_gradients(framework, function, [x], [0], framework.array(np.asarray(g)))
    assert_bits_equal(as_numpy(result), getattr(masked, op)(values, mask, axis))
    assert_bits_equal(grad, getattr(masked, f"{op}_grad")(mask, g, values.dtype, axis))


@pytest.mark.parametrize("op", OPS)
@both
def test_padding_order_and_layout_change_no_bit(framework, op):
    rng = RNG(0)
    values = (rng.standard_normal(5000) * 2.0 ** rng.integers(-20, 20, 5000)).astype(np.float32)
    function = getattr(framework.package, op)
    alone = as_numpy(function(framework.array(values), framework.array(np.ones(5000, bool))))
    padded = np.full((60, 100), np.nan, np.float32)
    places = rng.permutation(6000)[:5000]
    padded.reshape(-1)[places] = values
    mask = np.zeros((60, 100), bool)
    mask.reshape(-1)[places] = True
    assert_bits_equal(function(framework.array(padded), framework.array(mask)), alone)
    again = framework.compiled(lambda x, kept: function(x, kept))(framework.array(padded), framework.array(mask))
    assert_bits_equal(again, alone)
    assert_bits_equal(alone, getattr(masked, op)(padded, mask))


@both
def test_many_equal_values_have_their_exact_mean(framework):
    third = np.full(3 * 2**16, 1 / 3, np.float32)
    mean = framework.package.masked_mean(framework.array(third), framework.array(np.ones(third.shape, bool)))
    assert_bits_equal(mean, np.float32(1 / 3))


@pytest.mark.parametrize("op", OPS)
@both
def test_a_batch_under_vmap_is_more_rows(framework, op):
    rng = RNG(1)
    values, mask = rng.standard_normal((4, 2, 9)).astype(np.float32), rng.random((4, 2, 9)) < 0.5
    batched = framework.vmap(lambda x, kept: getattr(framework.package, op)(x, kept, axis=-1))
    assert_bits_equal(batched(framework.array(values), framework.array(mask)), getattr(masked, op)(values, mask, -1))


REFUSED = [
    ((np.zeros(2, np.float32), np.zeros(2, np.int32), None), TypeError,
     "mask is int32; expected bool, of the values' shape: compare it with 0 first"),
    ((np.zeros((2, 3), np.float32), np.zeros(3, bool), None), ValueError,
     "mask has shape (3,) and values (2, 3); expected one shape: broadcast the mask"),
    ((np.zeros(2, np.float32), np.zeros(2, bool), 1), ValueError,
     "axis is 1 and values has shape (2,); expected one of its axes or None"),
    ((np.zeros((2, 3), np.float32), np.zeros((2, 3), bool), (0, 1)), TypeError,
     "axis is of type tuple; expected an integer or None, the axis to leave out"),
    ((np.zeros(2, np.int32), np.zeros(2, bool), None), TypeError,
     "values has dtype int32; expected bfloat16, float16 or float32: convert it first"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "text"), REFUSED, ids=[text[:20] for _, _, text in REFUSED])
@pytest.mark.parametrize("op", OPS)
@both
def test_bad_input_is_refused_in_a_sentence(framework, op, arguments, error, text):
    values, mask, axis = arguments
    with pytest.raises(error) as caught:
        getattr(framework.package, op)(framework.array(values), framework.array(mask), axis=axis)
    assert str(caught.value) == text


def test_a_traced_axis_is_refused_in_a_sentence():
    with pytest.raises(TypeError) as caught:
        jax.jit(rlk_jax.masked_mean)(np.zeros(2, np.float32), np.zeros(2, bool), axis=0)
    assert str(caught.value) == "axis is traced; expected an integer or None: name it in static_argnames of jax.jit"


@both
def test_a_mask_that_is_no_array_is_refused_in_a_sentence(framework):
    with pytest.raises(TypeError) as caught:
        framework.package.masked_sum(framework.array(np.zeros(2, np.float32)), [True, False])
    assert str(caught.value) == "mask is of type list; expected an array of the values' shape: convert it first"
