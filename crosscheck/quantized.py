"""Tables of int8 values with one scale a row, dequantized, in NumPy: the judge of QuantizedTable.

docs/tables.md says what it is: the exact product is rounded once to a type, bfloat16 and float32 as if the exponent had
no lower limit, then a magnitude below 2^-126 becomes +0.
"""

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from crosscheck.rounding import TINY, Array, narrow, quiet_nan, valid_ids

__all__ = ["dequantized", "embedding"]

_SIGNIFICANT = {"bfloat16": 8, "float16": 11, "float32": 24}
_LOWEST = {"bfloat16": -(2**20), "float16": -24, "float32": -(2**20)}  # exponent of a type's last bit, where it ends


def dequantized(values: ArrayLike, scale: ArrayLike, dtype: DTypeLike) -> Array:
    """int8 [V, H] and float32 [V], or the int8 exponents [V] of powers of two -> [V, H] in a float type."""
    values, scale, dtype = np.asarray(values), np.asarray(scale), np.dtype(dtype)
    if values.dtype != np.int8 or scale.dtype not in (np.int8, np.float32) or scale.shape != values.shape[:1]:
        raise TypeError(f"got {values.dtype} {values.shape}, {scale.dtype} {scale.shape}; expected int8 [V, H] and [V]")
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        factors = np.ldexp(1.0, scale) if scale.dtype == np.int8 else scale.astype(np.float64)
    bad = ~np.isfinite(factors)
    exact = values.astype(np.float64) * np.where(bad, 0, factors)[:, None]  # 32 bits at most: exact
    _, exponent = np.frexp(exact)
    unit = np.maximum(exponent - _SIGNIFICANT[dtype.name], _LOWEST[dtype.name])
    rounded = np.ldexp(np.rint(np.ldexp(exact, -unit)), unit)  # RN to the type
    rounded[np.abs(rounded) < TINY] = 0
    rounded[bad] = np.nan
    # Every number that is left is one of the type, or so large that it is infinite there.
    with np.errstate(over="ignore"):
        return narrow(rounded.astype(np.float32), dtype)


def embedding(
    token_ids: ArrayLike, values: ArrayLike, scale: ArrayLike, dtype: DTypeLike, *, check_ids: bool = True
) -> Array:
    """[...] int -> [..., H]: dequantized rows. Unchecked bad ids give a row of quiet NaN."""
    table = dequantized(values, scale, dtype)
    ids, good = valid_ids("token_ids", token_ids, len(table), check_ids)
    poison = quiet_nan(table.dtype)
    out = np.full((*ids.shape, table.shape[1]), poison)
    out[good] = table[ids[good]].view(poison.dtype)
    return out.view(table.dtype)
