"""The gradient of the table: for each id, the exact sum of the gradients at its positions, rounded once.

Section 6 of docs/contract.md. The twin is rlk_torch/embedding_grad.py.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlk_jax.alignment import exponents, integers, tiles
from rlk_jax.devices import on_gpu
from rlk_jax.differentiable import Term, gradient_only, one_by_one
from rlk_jax.floats import bits_of, magnitude, narrowed, part, scaled, widened
from rlk_jax.products import limb_bits, limbs, rounded_sum

_DIGITS = 4
_NARROWEST = 16  # columns at a time, and more while the integers of a block stay in the budget
_CPU_BLOCK, _GPU_BLOCK = 2**22, 2**25


@cache
def term(dtype: Any, padding_idx: int | None, scale: float | None = None) -> Term:
    """What the table [V, H] adds to the tangent of rows of this type, ids [N]."""

    def transpose(grad_rows: Array, table: Any, ids: Array) -> Array:
        return _table_gradient(table.shape[0], table.dtype, padding_idx, scale)(ids, grad_rows)

    return Term(
        "embedding", dtype, False, lambda ids, table: [ids], lambda own, ids: (ids.shape[0], own.shape[1]), transpose
    )


@cache  # an eager transformation compiles anew for each new function
def _table_gradient(vocab: int, dtype: Any, padding_idx: int | None, scale: float | None) -> Callable[..., Array]:
    def gradient(ids: Array, grad_rows: Array) -> Array:
        kept = ids if padding_idx is None else jnp.where(ids == padding_idx, -1, ids)
        grad = grad_rows if scale is None else scaled(grad_rows, scale, jnp.float32)
        return grad_table(kept, grad, vocab, dtype)

    return jax.jit(gradient_only(one_by_one(gradient), "embedding"))


@partial(jax.jit, static_argnums=(2, 3))
def grad_table(ids: Array, grad_rows: Array, vocab: int, dtype: Any) -> Array:
    """int32 ids [...], -1 for a bad one, and [..., H] -> [V, H] in dtype; +0 for rows that no id names.

    The sums are of segments, at most as many as ids, so no integers of the table's size exist. Rows are put into
    the table as bits, which no CPU flushes.
    """
    count, width = ids.size, grad_rows.shape[-1]
    if 0 in (count, vocab, width):
        return jnp.zeros((vocab, width), dtype)
    segment, names = _segments(ids.reshape(-1), vocab)
    grad = grad_rows.reshape(count, width)
    step = min(width, max(_NARROWEST, (_GPU_BLOCK if on_gpu() else _CPU_BLOCK) // count))

    def columns(start: Array, out: Array) -> Array:
        block = part(grad, (0, start), (count, step))
        new = bits_of(narrowed(_sums(segment, block, out.shape[0]), dtype))
        return lax.dynamic_update_slice_in_dim(out, new, start, axis=1)

    unsigned = jnp.dtype(f"uint{8 * jnp.dtype(dtype).itemsize}")
    rows = tiles(width, step, columns, jnp.zeros((min(count, vocab), width), unsigned))
    if names is not None:
        rows = jnp.zeros((vocab, width), unsigned).at[names].set(rows, mode="drop")
    return lax.bitcast_convert_type(rows, dtype)


def _segments(ids: Array, vocab: int) -> tuple[Array, Array | None]:
    """The segment of each position, and the id of each segment.

    As many as positions: the distinct ids in order, bad ones last with the vocab's size for a name. A table no
    longer than that is made of its rows, in which case bad ids lie behind the last and the names are None.
    """
    ids = jnp.where(ids < 0, vocab, ids)
    if vocab <= ids.shape[0]:
        return ids, None
    ordered, order = lax.sort_key_val(ids, jnp.arange(ids.shape[0], dtype=jnp.int32))
    first = jnp.concatenate([jnp.zeros(1, jnp.int32), (ordered[1:] != ordered[:-1]).astype(jnp.int32)])
    number = jnp.cumsum(first, dtype=jnp.int32)
    segment = jnp.zeros_like(ids).at[order].set(number, unique_indices=True)
    return segment, jnp.full_like(ids, vocab).at[number].set(ordered)


def _sums(segment: Array, grad: Array, count: int) -> Array:
    """The aligned sum of each segment and column, float32 [count, columns]."""
    zero = jnp.zeros((count, grad.shape[1]), jnp.int32)
    top = zero.at[segment].max(magnitude(widened(grad)), mode="drop")
    q = integers(grad, *exponents(top.at[segment].get(mode="clip")), _DIGITS)
    bits = limb_bits(grad.shape[0])
    sums = [zero.at[segment].add(limb, mode="drop") for limb in limbs(q, bits)]
    exponent, nonfinite = exponents(top)
    r = rounded_sum(sums, bits, exponent - (7 * _DIGITS - 1))
    return jnp.where(nonfinite, jnp.float32(jnp.nan), r)
