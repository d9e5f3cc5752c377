"""Sums and means of what a mask leaves, exact and rounded once, so that no layout of the batch changes a bit.

The aligned sum of section 6 of docs/contract.md. The twin is rlk_torch/masked.py.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rlk_jax.alignment import exponents, integers
from rlk_jax.checks import check_floats, check_same_device, dtype_name
from rlk_jax.differentiable import Term, differentiable, gradient_only
from rlk_jax.floats import INFINITY, SMALLEST_NORMAL, magnitude, narrowed, widened
from rlk_jax.words import Words, difference, divided, length, shifted_up, to_float32, total

_WINDOW = 27


def masked_sum(values: Array | np.ndarray, mask: Array | np.ndarray, *, axis: int | None = None) -> Array:
    """The sum of the values where the mask is true.

    Arguments:
        values: bfloat16, float16 or float32 of any shape; what is masked out does not count, whatever it is.
        mask: bool of the same shape.
        axis: the one to sum along; None sums all.

    Returns:
        float32, without the axis: the exact sum of the values, each rounded to 27 bits below the largest, rounded once;
        below 2^-126, and where nothing is masked in, +0. NaN where a value that counts is not finite.

    The gradient of values is the upstream gradient where the mask is true, and +0 elsewhere.

    Raises:
        TypeError: another dtype, or an axis that is no integer.
        ValueError: shapes that differ, an axis that is not there, arguments on several devices.
        NotImplementedError: forward mode, or a second derivative.

    Example:
        >>> masked_sum(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([True, True, False])).item()
        3.0
    """
    return _reduced("masked_sum", values, mask, axis)


def masked_mean(values: Array | np.ndarray, mask: Array | np.ndarray, *, axis: int | None = None) -> Array:
    """The mean of the values where the mask is true.

    Arguments:
        values: bfloat16, float16 or float32 of any shape; what is masked out does not count, whatever it is.
        mask: bool of the same shape.
        axis: the one to average along; None averages all.

    Returns:
        float32, without the axis: the exact sum as in `masked_sum` over the number of true elements, rounded once; NaN
        where there are none.

    The gradient of values is the upstream gradient over that number, rounded once, where the mask is true, and +0
    elsewhere.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `masked_sum`.

    Example:
        >>> masked_mean(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([True, True, False])).item()
        1.5
    """
    return _reduced("masked_mean", values, mask, axis)


def _reduced(name: str, values: Array | np.ndarray, mask: Array | np.ndarray, axis: int | None) -> Array:
    check_floats("values", values, "[...]")
    if not isinstance(mask, Array | np.ndarray):
        raise TypeError(
            f"mask is of type {type(mask).__name__}; expected an array of the values' shape: convert it first"
        )
    if mask.dtype != jnp.bool:
        raise TypeError(f"mask is {dtype_name(mask)}; expected bool, of the values' shape: compare it with 0 first")
    if mask.shape != values.shape:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} and values {tuple(values.shape)}; expected one shape: "
            "broadcast the mask"
        )
    check_same_device(values, "values", mask=mask)
    x, kept = jnp.asarray(values), jnp.asarray(mask)
    if isinstance(axis, jax.core.Tracer):
        raise TypeError("axis is traced; expected an integer or None: name it in static_argnames of jax.jit")
    if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
        raise TypeError(f"axis is of type {type(axis).__name__}; expected an integer or None, the axis to leave out")
    if axis is None:
        x, kept, axis = x.reshape(-1), kept.reshape(-1), 0
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis} and values has shape {tuple(x.shape)}; expected one of its axes or None")
    x, kept = jnp.moveaxis(x, axis, -1), jnp.moveaxis(kept, axis, -1)
    shape, count = x.shape[:-1], int(np.prod(x.shape[:-1], dtype=np.int64))
    rows = (part.reshape(count, x.shape[-1]) for part in (x, kept))
    return _operator(name)(*rows).reshape(shape)


@cache
def _operator(name: str) -> Callable[..., Array]:
    """values [N, L], mask [N, L] -> [N], with its gradient."""
    mean = name == "masked_mean"

    @cache  # an eager transformation compiles anew for each new function
    def gradient(dtype: Any) -> Callable[..., Array]:
        return gradient_only(lambda grad, mask: _spread(grad, mask, dtype, mean), name)

    def transpose(grad: Array, values: Any, mask: Array) -> Array:
        return gradient(jnp.dtype(values.dtype))(grad, mask)

    def shape(own: Any, mask: Any) -> tuple[int, ...]:
        return own.shape[:1]

    term = Term(name, jnp.dtype(jnp.float32), None, lambda values, mask: [mask], shape, transpose)
    return differentiable(lambda values, mask: _reduce(values, mask, mean), [term, None])


@partial(jax.jit, static_argnums=2)
def _reduce(values: Array, mask: Array, mean: bool) -> Array:
    size = jnp.where(mask, magnitude(widened(values)), 0)
    exponent, nonfinite = exponents(jnp.max(size, axis=1, initial=0))
    q = jnp.where(mask, integers(values, exponent[:, None], nonfinite[:, None], 4), 0)
    S = total(((q >> 31).astype(jnp.uint32), q.astype(jnp.uint32)), 1)
    if not mean:
        return jnp.where(
            nonfinite, jnp.float32(jnp.nan), _signed(*_absolute(S), lambda x: to_float32(x, exponent - _WINDOW))
        )
    count = jnp.sum(mask, axis=1, dtype=jnp.int32)
    out = _signed(*_absolute(S), lambda x: _quotient(x, count, exponent - _WINDOW))
    return narrowed(jnp.where(nonfinite | (count == 0), jnp.float32(jnp.nan), out), jnp.float32)


def _absolute(S: Words) -> tuple[Words, Array]:
    negative = (S[0] >> 31) == 1
    turned = difference((jnp.zeros_like(S[0]), jnp.zeros_like(S[1])), S)
    return (jnp.where(negative, turned[0], S[0]), jnp.where(negative, turned[1], S[1])), negative


def _signed(size: Words, negative: Array, rounded: Callable[[Words], Array]) -> Array:
    """A zero is +0."""
    r = rounded(size)
    return jnp.where(negative & (magnitude(r) > 0), -r, r)


def _quotient(size: Words, count: Array, exponent: Array) -> Array:
    """RN_float32(size / count * 2^exponent) with the flush of section 3, for counts below 2^31, 1 for 0.

    The dividend is moved up to 63 bits, so that the quotient has 32 and more; what is left only sets its last bit,
    which lies under every tie of 24 bits.
    """
    shift = 63 - jnp.maximum(length(size), 1)
    (high, low), left = divided(shifted_up(size, shift.astype(jnp.uint32)), jnp.maximum(count, 1).astype(jnp.uint32))
    return to_float32((high, low | left.astype(jnp.uint32)), exponent - shift)


@partial(jax.jit, static_argnums=(2, 3))
def _spread(grad: Array, mask: Array, dtype: Any, mean: bool) -> Array:
    """[N] -> [N, L] in dtype."""
    share = widened(grad)
    if mean:
        size = magnitude(share)
        normal = size >= SMALLEST_NORMAL
        significand = jnp.where(normal, (size & 0x7FFFFF) | SMALLEST_NORMAL, size).astype(jnp.uint32)
        exponent = jnp.where(normal, (size >> 23) - 150, -149)
        count = jnp.sum(mask, axis=1, dtype=jnp.int32)
        negative = lax.bitcast_convert_type(share, jnp.int32) < 0
        words = jnp.zeros_like(significand), significand
        quotient = _signed(words, negative, lambda x: _quotient(x, count, exponent))
        share = jnp.where(size < INFINITY, quotient, share)
    return narrowed(jnp.where(mask, share[:, None], jnp.float32(0)), dtype)
