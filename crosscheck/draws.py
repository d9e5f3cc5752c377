"""Draws of the built-in cases' inputs: the values of a trained model, with the special ones mixed in."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["bias", "hidden", "logits", "table", "token_ids", "weight"]

Array = NDArray[Any]


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def _cast(x: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype)


def hidden(
    rng: np.random.Generator, rows: tuple[int, ...], width: int, dtype: np.dtype[Any], *, finite: bool = False
) -> Array:
    x = _normal(rng, int(np.prod(rows)), width)
    outliers = rng.choice(width, size=width // 100 + (width >= 8), replace=False)
    x[:, outliers] *= 50
    if len(x) >= 3:
        x[1] = 0
        x[1, ::2] = -0.0
        x[2, ::3] = 1e-40  # subnormal in bfloat16 and float32, 0 in float16
    if len(x) >= 6:
        x[3] *= 2.0**-118
    if len(x) >= 6 and not finite:
        x[4, rng.integers(width)] = np.nan
        x[5, rng.integers(width)] = -np.inf
    return _cast(x, dtype).reshape(*rows, width)


def weight(rng: np.random.Generator, vocab: int, width: int, dtype: np.dtype[Any], *, finite: bool = False) -> Array:
    """finite: also of moderate size, so that no id has all of the probability."""
    x = _normal(rng, vocab, width) * np.float32(0.02)
    if vocab >= 7:
        x[1] = -0.0
        x[4] *= 2.0**-90
    if vocab >= 7 and not finite:
        x[2] *= 1e5  # some logits overflow float16
        x[5, rng.integers(width)] = np.inf
        x[6, rng.integers(width)] = np.nan
    return _cast(x, dtype)


def bias(rng: np.random.Generator, vocab: int, dtype: np.dtype[Any]) -> Array:
    x = _normal(rng, vocab) * np.float32(0.5)
    if vocab >= 7:
        x[[0, 1, 2, 3]] = [0, -0.0, 1e-40, -np.inf]
    return _cast(x, dtype)


def table(rng: np.random.Generator, vocab: int, width: int, dtype: np.dtype[Any]) -> Array:
    """Normal values; every fifth row any bit pattern at all: NaN payloads, subnormals, infinities."""
    x = _cast(_normal(rng, vocab, width) * np.float32(0.02), dtype)
    bits = x.view(f"u{dtype.itemsize}")
    bits[::5] = rng.integers(0, 2 ** (8 * dtype.itemsize), bits[::5].shape, bits.dtype)
    if vocab > 1:
        x[1, ::2] = -0.0
    return x


def token_ids(rng: np.random.Generator, shape: tuple[int, ...], vocab: int, dtype: np.dtype[Any]) -> Array:
    top = min(vocab, int(np.iinfo(dtype).max) + 1)
    ids = rng.integers(0, top, int(np.prod(shape)))
    ends = [top - 1, 0, top - 1][: len(ids)]
    ids[: len(ends)] = ends
    return ids.astype(dtype).reshape(shape)


def logits(rng: np.random.Generator, rows: tuple[int, ...], vocab: int, dtype: np.dtype[Any]) -> Array:
    """Rows of many spreads; one of equal logits, one with ids that cannot occur; NaN, +inf and -inf alone."""
    x = _normal(rng, int(np.prod(rows)), vocab)
    x = np.ldexp(x, rng.integers(-6, 6, (len(x), 1))).astype(np.float32)
    if len(x) >= 3:
        x[1] = -2.5
        x[2, ::3] = -np.inf
    if len(x) >= 7:
        x[4, rng.integers(vocab)] = np.nan
        x[5] = -np.inf
        x[6, rng.integers(vocab)] = np.inf
    return _cast(x, dtype).reshape(*rows, vocab)
