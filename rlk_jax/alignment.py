"""Rows as integers: digit planes, exponents and non-finite flags, made once and reused.

Section 1 of docs/contract.md. The twin is rlk_torch/alignment.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rlk_jax.checks import check_digits, check_floats
from rlk_jax.devices import on_gpu, repeated
from rlk_jax.floats import INFINITY, SMALLEST_NORMAL, magnitude, widened
from rlk_jax.quantized import QuantizedTable
from rlk_jax.refusal import without_gradient

PLANE_MULTIPLE = 64  # planes are padded with zero digits to this width: int8 matrix units want it
_CPU_BLOCK = 2**22  # elements aligned at a time, whatever the vocab


@partial(jax.tree_util.register_dataclass, data_fields=["planes", "exponent", "nonfinite"], meta_fields=["length"])
@dataclass(frozen=True, eq=False, repr=False)
class Aligned:
    """The rows of a matrix [R, L] as integers q, with x = q * 2^(exponent - window). A pytree.

    q = planes[0] + 128 planes[1] + ... ; every digit is in [-64, 63] but the top one, in [-64, 64].
    An `Aligned` is a constant: the gradient of what it was made from is refused.
    """

    planes: Array  # int8 [digits, R, L padded to a multiple of 64]
    exponent: Array  # int32 [R]
    nonfinite: Array  # bool [R]
    length: int  # L

    @property
    def digits(self) -> int:
        """Base-128 digits of an element."""
        return self.planes.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """[R, L], the shape of the matrix."""
        return self.planes.shape[1], self.length

    @property
    def device(self) -> jax.Device | jax.sharding.Sharding:
        """Where the planes are."""
        return self.planes.device

    def __repr__(self) -> str:
        return f"Aligned(shape={self.shape}, digits={self.digits}, device={self.device})"

    def rows(self, start: Array | int, count: int) -> "Aligned":
        """Some rows, from a start that may be traced."""
        return Aligned(
            lax.dynamic_slice_in_dim(self.planes, start, count, axis=1),
            lax.dynamic_slice_in_dim(self.exponent, start, count),
            lax.dynamic_slice_in_dim(self.nonfinite, start, count),
            self.length,
        )


def align(x: Array | np.ndarray | QuantizedTable, digits: int) -> Aligned:
    """Align the rows of a weight once, for many calls.

    Arguments:
        x: [R, L] bfloat16, float16 or float32, or a `QuantizedTable`.
        digits: 2, 3 or 4 base-128 digits; the window is 7 digits - 1 bits below the largest element's.

    Returns:
        `Aligned`, int8 planes [digits, R, L padded] on x's device. The one rounding is that of each
        element to the window, ties to even; magnitudes below 2^-126 count as 0.

    Raises:
        TypeError: another dtype, or digits that are no integer.
        ValueError: x that is not [R, L], or digits outside 2, 3, 4.
        NotImplementedError: a gradient of x is asked for.

    Example:
        >>> align(jnp.array([[1.0, -0.5]]), 2).planes[:, 0, :2].tolist()
        [[0, 0], [32, -16]]
    """
    if isinstance(x, QuantizedTable):
        from rlk_jax.quantized_alignment import align_quantized  # made of what is below

        return align_quantized(x, digits)
    check_floats("x", x, "[R, L]", 2)
    return _constant(jnp.asarray(x), check_digits(digits))


def padded(length: int) -> int:
    """The width of a plane."""
    return max(1, -(-length // PLANE_MULTIPLE)) * PLANE_MULTIPLE


def largest(x: Array) -> Array:
    """The bits of the largest magnitude in each row, int32."""
    return jnp.max(magnitude(widened(x)), axis=1, initial=0)


@partial(jax.jit, static_argnums=1)
def align_at(x: Array, digits: int, top: Array | None = None) -> Aligned:
    """The rows of x aligned, or those of a part of them: `top` is then `largest` of the whole rows."""
    rows, length = x.shape
    step = rows if on_gpu() else min(rows, max(1, _CPU_BLOCK // max(1, length)))

    def block(start: Array | int, out: tuple[Array, ...]) -> tuple[Array, ...]:
        some = lax.dynamic_slice_in_dim(x, start, step)
        exponent, nonfinite = exponents(largest(some) if top is None else lax.dynamic_slice_in_dim(top, start, step))
        q = integers(some, exponent[:, None], nonfinite[:, None], digits)
        if padded(length) != length:  # an empty pad would keep XLA from fusing on GPUs
            q = jnp.pad(q, ((0, 0), (0, padded(length) - length)))
        parts = digit_planes(q, digits), exponent, nonfinite
        if step == rows:
            return parts
        put = lax.dynamic_update_slice_in_dim
        return tuple(put(whole, new, start, axis) for whole, new, axis in zip(out, parts, (1, 0, 0), strict=True))

    planes = jnp.zeros((digits, rows, padded(length)), jnp.int8)
    parts = planes, jnp.zeros(rows, jnp.int32), jnp.zeros(rows, jnp.bool)
    planes, exponent, nonfinite = tiles(rows, step, block, parts) if rows else parts
    return Aligned(planes, exponent, nonfinite, length)


def tiles(length: int, step: int, body: Callable[[Any, Any], Any], out: Any) -> Any:
    """body(start, out) for starts 0, step, ... ; the last is moved back to end at length: the same bits again."""
    if length == step:
        return body(jnp.int32(0), out)

    def at(i: Array, out: Any) -> Any:
        return body(jnp.minimum(jnp.int32(i) * step, length - step), out)

    return repeated(-(-length // step), at, out)


_constant = without_gradient(
    align_at,
    "the gradient of an Aligned is not offered, it is a constant: pass the weight itself, or "
    "align(jax.lax.stop_gradient(x), digits)",
    nondiff_argnums=(1,),
)


def exponents(top: Array) -> tuple[Array, Array]:
    """The exponent, int32, and whether it is not finite, of a vector whose largest magnitude has these bits."""
    nonfinite = top >= INFINITY
    return jnp.where((top < SMALLEST_NORMAL) | nonfinite, 0, (top >> 23) - 126), nonfinite


def integers(x: Array, exponent: Array, nonfinite: Array, digits: int) -> Array:
    """q, int32 of x's shape, at exponents from `exponents` that broadcast against x; 0 where not finite.

    A significand of 24 bits is shifted into the window, ties to even, in integers alone: the scale
    2^(window - exponent) can pass the float32 range.
    """
    window = 7 * digits - 1
    wide = widened(x)
    size = magnitude(wide)
    significand = ((size & 0x7FFFFF) | SMALLEST_NORMAL) << max(0, window - 24)
    right = jnp.minimum(exponent + 126 - (size >> 23) + max(0, 24 - window), 30)
    down = significand >> right
    half_up = (jnp.int32(1) << right >> 1) - 1 + (down & 1)
    q = jnp.where(right == 0, significand, (significand + half_up) >> right)
    q = jnp.where((size < SMALLEST_NORMAL) | nonfinite, 0, q)
    return jnp.where(lax.bitcast_convert_type(wide, jnp.int32) < 0, -q, q)


def digit_planes(q: Array, digits: int) -> Array:
    """Digits in [-64, 63], the top digit keeping what is left, up to 64: int8 [digits, R, L]."""
    planes = []
    for _ in range(digits - 1):
        q = q + 64
        planes.append((q & 127) - 64)
        q = q >> 7
    planes.append(q)
    if not on_gpu():
        return jnp.stack([plane.astype(jnp.int8) for plane in planes])
    words = jnp.stack([_four_bytes(plane) for plane in planes])
    return lax.bitcast_convert_type(words, jnp.int8).reshape(digits, *q.shape)


def _four_bytes(x: Array) -> Array:
    """int32 values of int8, four to a word: a GPU is slow at storing single bytes."""
    four = (x & 255).astype(jnp.uint32).reshape(*x.shape[:-1], x.shape[-1] // 4, 4)
    return four[..., 0] | four[..., 1] << 8 | four[..., 2] << 16 | four[..., 3] << 24
