"""Float types, roundings and argument checks that every section of the contract shares.

``RN_t(x)`` is x rounded once to type t, ties to even. The float types are bfloat16 (ml_dtypes), float16 and
float32. A magnitude below 2^-126 counts as zero on the way in and becomes +0 on the way out.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Array = NDArray[Any]
FLOATS = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32))
TINY = 2.0**-126
_QUIET_NAN = {"bfloat16": 0x7FC0, "float16": 0x7E00, "float32": 0x7FC00000}


def floats(name: str, x: ArrayLike, ndim: int | None = None) -> Array:
    x = np.asarray(x)
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} is {x.dtype}; expected bfloat16, float16 or float32: convert it first")
    if ndim is not None and x.ndim != ndim:
        raise ValueError(f"{name} has shape {x.shape}; expected {ndim} dimensions")
    return x


def valid_ids(name: str, ids: ArrayLike, vocab: int, check_ids: bool) -> tuple[Array, Array]:
    """The ids with the bad ones replaced by 0, and the mask of good ones."""
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"{name} is {ids.dtype}; expected an integer dtype")
    good = (ids >= 0) & (ids < vocab)
    if check_ids and not good.all():
        at = tuple(int(i) for i in np.argwhere(~good)[0])
        raise IndexError(f"{name}{list(at)} is {ids[at]}; expected 0 <= id < {vocab}, the vocab")
    return np.where(good, ids, 0).astype(np.int64), good


def quiet_nan(dtype: DTypeLike) -> Array:
    """The bits of the positive quiet NaN of a float type, as an unsigned integer of its width."""
    dtype = np.dtype(dtype)
    return np.array(_QUIET_NAN[dtype.name], f"u{dtype.itemsize}")


def to_float32(exact24: Array) -> Array:
    """Float64 holding 24 significant bits -> float32: flush to +0 below 2^-126, infinity from 2^128."""
    with np.errstate(over="ignore"):
        return np.where(np.abs(exact24) < TINY, 0.0, exact24).astype(np.float32)


def product(a: Array, b: Array | np.float64) -> Array:
    """RN_float32(a b) as if the exponent had no limits, then `to_float32`: float64 a and b of 24 bits each."""
    significand, exponent = np.frexp(a * b)  # 48 bits at most: exact
    return to_float32(np.ldexp(significand.astype(np.float32).astype(np.float64), exponent))


def flushed(x: ArrayLike) -> Array:
    """Any float type to float32, exactly; magnitudes below 2^-126 count as 0."""
    with np.errstate(invalid="ignore"):
        wide = np.asarray(x).astype(np.float32)
    return np.where(np.abs(wide) < np.float32(TINY), np.float32(0), wide)


def narrow(x: Array, dtype: DTypeLike) -> Array:
    """RN to the output type by IEEE; every NaN is the positive quiet NaN."""
    dtype = np.dtype(dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out = x.astype(dtype)
    nan = quiet_nan(dtype)
    return np.where(np.isnan(x), nan, out.view(nan.dtype)).view(dtype)
