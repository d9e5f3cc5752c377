"""Quantized tables as integers: the `Aligned` of their float32 rows.

Section 1 of docs/contract.md. Where the scales are powers of two, the integers are the values, shifted.
The twin is rlk_torch/quantized_alignment.py.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlk_jax.alignment import Aligned, digit_planes, exponents, integers, largest, padded, tiles
from rlk_jax.checks import check_digits
from rlk_jax.devices import on_gpu
from rlk_jax.quantized import QuantizedTable, constant, factors, rounded

_CPU_BLOCK = 2**22  # elements aligned at a time, whatever the vocab


def align_quantized(table: QuantizedTable, digits: int) -> Aligned:
    """`align` of a quantized table."""
    return aligned_parts(*constant(table.values, table.scale), check_digits(digits))


@partial(jax.jit, static_argnums=2)
def aligned_parts(values: Array, scale: Array, digits: int) -> Aligned:
    """int8 [R, L] and its scales [R], aligned."""
    rows, length = values.shape
    step = rows if on_gpu() else min(rows, max(1, _CPU_BLOCK // max(1, length)))

    def block(start: Array | int, out: tuple[Array, ...]) -> tuple[Array, ...]:
        some, scales = (lax.dynamic_slice_in_dim(x, start, step) for x in (values, scale))
        q, exponent, nonfinite = _block(some, scales, digits)
        q = jnp.pad(q, ((0, 0), (0, padded(length) - length)))
        put = lax.dynamic_update_slice_in_dim
        parts = zip(out, (digit_planes(q, digits), exponent, nonfinite), (1, 0, 0), strict=True)
        return tuple(put(whole, new, start, axis) for whole, new, axis in parts)

    planes = jnp.zeros((digits, rows, padded(length)), jnp.int8)
    parts = planes, jnp.zeros(rows, jnp.int32), jnp.zeros(rows, jnp.bool)
    planes, exponent, nonfinite = tiles(rows, step, block, parts) if rows and length else parts
    return Aligned(planes, exponent, nonfinite, length)


def _block(values: Array, scale: Array, digits: int) -> tuple[Array, Array, Array]:
    if scale.dtype == jnp.int8:
        return _shifted(values.astype(jnp.int32), scale.astype(jnp.int32), digits)
    x = rounded(values, factors(scale)[:, None], jnp.float32)
    exponent, nonfinite = exponents(largest(x))
    return integers(x, exponent[:, None], nonfinite[:, None], digits), exponent, nonfinite


def _shifted(values: Array, power: Array, digits: int) -> tuple[Array, Array, Array]:
    """q, exponents and flags of values * 2^power, without a float: |values| <= 2^7, and the window is wider."""
    least = jnp.int32(1) << jnp.clip(-126 - power, 0, 7)  # what is smaller lies below 2^-126
    values = jnp.where(jnp.abs(values) < least[:, None], 0, values)
    top = jnp.max(jnp.abs(values), axis=1)
    bits = 32 - lax.clz(top)  # of the largest value
    nonfinite = bits + power > 128
    exponent = jnp.where((top == 0) | nonfinite, 0, bits + power)
    q = values << (7 * digits - 1 - bits)[:, None]
    return jnp.where(nonfinite[:, None], 0, q), exponent, nonfinite
