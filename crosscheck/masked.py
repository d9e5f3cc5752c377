"""Masked sums and means in exact arithmetic: aligned sums (section 6 of the contract) of what a mask leaves.

The mean is the exact quotient of that sum and their number, rounded once as in section 3.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from crosscheck.rounding import Array, floats, flushed, narrow, to_float32

__all__ = ["masked_mean", "masked_mean_grad", "masked_sum", "masked_sum_grad"]

_WINDOW = 27


def masked_sum(values: ArrayLike, mask: ArrayLike, axis: int | None = None) -> Array:
    """The sum along an axis, or of all, float32: +0 where nothing is masked in."""
    return _reduced(values, mask, axis, mean=False)


def masked_mean(values: ArrayLike, mask: ArrayLike, axis: int | None = None) -> Array:
    """The mean along an axis, or of all, float32: NaN where nothing is masked in."""
    return _reduced(values, mask, axis, mean=True)


def _reduced(values: ArrayLike, mask: ArrayLike, axis: int | None, mean: bool) -> Array:
    x, kept = floats("values", values), np.asarray(mask)
    if axis is None:
        x, kept, axis = x.reshape(-1), kept.reshape(-1), 0
    x, kept = np.moveaxis(x, axis, -1), np.moveaxis(kept, axis, -1)
    out = [_of_members(row[some], mean) for row, some in zip(_rows(x), _rows(kept), strict=True)]
    return narrow(np.array(out, np.float32).reshape(x.shape[:-1]), np.float32)


def _rows(x: Array) -> Array:
    return x.reshape(int(np.prod(x.shape[:-1])), x.shape[-1])


def _of_members(members: Array, mean: bool) -> float:
    wide = flushed(members)
    if not np.isfinite(wide).all() or (mean and not len(wide)):
        return float("nan")
    largest = float(np.abs(wide).max(initial=0))
    exponent = int(np.frexp(largest)[1]) if largest else 0
    S = sum(round(Fraction(float(x)) * Fraction(2) ** (_WINDOW - exponent)) for x in wide)
    return _rounded(Fraction(S) * Fraction(2) ** (exponent - _WINDOW) / (len(wide) if mean else 1))


def _rounded(exact: Fraction) -> float:
    """RN to 24 bits as if the exponent had no limits, and the flush."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - 23)
    value = float(round(size / unit) * unit)
    return float(to_float32(np.array(value if exact > 0 else -value)))


def masked_sum_grad(mask: ArrayLike, grad: ArrayLike, dtype: object, axis: int | None = None) -> Array:
    """The upstream gradient where the mask is, in the values' dtype; +0 elsewhere."""
    return _spread(mask, np.asarray(grad, np.float32), dtype, axis)


def masked_mean_grad(mask: ArrayLike, grad: ArrayLike, dtype: object, axis: int | None = None) -> Array:
    """The upstream gradient over the number masked in, one rounding to float32, then as `masked_sum_grad`."""
    kept, upstream = np.asarray(mask), np.asarray(grad, np.float32)
    count = np.broadcast_to(kept.sum(axis), upstream.shape)
    shares = [
        float(g) if not np.isfinite(g) or n == 0 else _rounded(Fraction(float(g)) / int(n))
        for g, n in zip(upstream.flat, count.flat, strict=True)
    ]
    return _spread(mask, np.array(shares, np.float32).reshape(upstream.shape), dtype, axis)


def _spread(mask: ArrayLike, share: Array, dtype: object, axis: int | None) -> Array:
    kept = np.asarray(mask)
    whole = np.broadcast_to(share if axis is None else np.expand_dims(share, axis), kept.shape)
    return narrow(np.where(kept, whole, np.float32(0)), dtype)  # type: ignore[arg-type]
