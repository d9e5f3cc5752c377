"""The gradients of the LM head: exact dot products and sums of 4 digits, one rounding each.

Section 6 of docs/contract.md. The twin is rlk_torch/lm_head_grad.py.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlk_jax.alignment import PLANE_MULTIPLE, Aligned, digit_planes, exponents, integers, padded, tiles
from rlk_jax.devices import on_gpu, repeated
from rlk_jax.differentiable import Term, gradient_only, more_rows, one_by_one
from rlk_jax.floats import magnitude, narrowed, part, power_of_two_times, widened
from rlk_jax.products import carried, group_sums, limb_bits, limbs, round_once, rounded_products, rounded_sum
from rlk_jax.quantized import QuantizedTable, unchecked
from rlk_jax.sharded import ALONE, Shards

DIGITS = 4
_WINDOW = 7 * DIGITS - 1
# Rows and gradients made at a time, elements aligned at a time: some hundred megabytes of integers.
_CPU_BLOCKS = (512, 2**21, 2**22)
_GPU_BLOCKS = (2048, 2**23, 2**25)
_LONGEST = 2**15  # vocab a chunk at most: its int32 groups hold, with what was carried before


@cache
def terms(dtype: Any) -> tuple[Term, Term, Term]:
    """What hidden [N, K], weight [V, K] and bias [V] add to the tangent of logits of this type."""

    def parts_of_weight(hidden: Array, weight: Array | Aligned, bias: Array | None) -> Sequence[Array]:
        return jax.tree.leaves(weight)

    def rows(hidden: Array, weight: Array | Aligned, bias: Array | None) -> Sequence[Array]:
        return [hidden]

    def count(hidden: Array, weight: Array | Aligned, bias: Array | None) -> Sequence[Array]:
        return [lax.slice_in_dim(hidden, 0, 0, axis=1)]

    def logits(own: Any, hidden: Any) -> tuple[int, ...]:
        return hidden.shape[0], own.shape[0]

    def logits_of_rows(own: Any, weight: Any, *rest: Any) -> tuple[int, ...]:  # planes have one dimension in front
        return own.shape[0], weight.shape[-2]

    return (
        Term("lm_head", dtype, True, parts_of_weight, logits_of_rows, _to_hidden),
        Term("lm_head", dtype, False, rows, logits, _to_weight),
        Term("lm_head", dtype, False, count, logits, _to_bias),
    )


def _to_hidden(grad_logits: Array, hidden: Any, *parts: Array) -> Array:
    return _hidden_gradient(hidden.dtype)(grad_logits, as_matrix(parts, hidden.shape[1]))


def as_matrix(parts: Sequence[Array], width: int) -> Array | Aligned | QuantizedTable:
    """The weight, or the table or the `Aligned` that consists of these."""
    weight, *others = parts
    if len(others) == 1:
        return unchecked(weight, others[0])
    return Aligned(weight, others[0], others[1], width) if others else weight


def _to_weight(grad_logits: Array, weight: Any, hidden: Array) -> Array:
    return _weight_gradient(weight.dtype)(grad_logits, hidden)


def _to_bias(grad_logits: Array, bias: Any, _: Array) -> Array:
    return _bias_gradient(bias.dtype)(grad_logits)


# Made once for a dtype: an eager transformation compiles anew for each new function.
@cache
def _hidden_gradient(dtype: Any) -> Callable[..., Array]:
    return jax.jit(gradient_only(more_rows(lambda grad, weight: grad_hidden(grad, weight, dtype)), "lm_head"))


@cache
def _weight_gradient(dtype: Any) -> Callable[..., Array]:
    return jax.jit(gradient_only(one_by_one(lambda grad, hidden: grad_weight(grad, hidden, dtype)), "lm_head"))


@cache
def _bias_gradient(dtype: Any) -> Callable[..., Array]:
    return jax.jit(gradient_only(one_by_one(lambda grad: grad_bias(grad, dtype)), "lm_head"))


class GradLogits(Protocol):
    """Gradients of logits [N, V], a pytree, that are made when a part is looked at."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def part(self, starts: tuple[Array | int, Array | int], sizes: tuple[int, int]) -> Array:
        """Some rows and columns."""

    def largest(self, start: Array | int, count: int) -> Array:
        """The magnitude bits of the largest of some rows, int32."""


@partial(jax.jit, static_argnums=(2, 3))
def grad_hidden(
    grad_logits: Array | GradLogits, weight: Array | Aligned | QuantizedTable, dtype: Any, shards: Shards = ALONE
) -> Array:
    """[N, V], [V, K] -> [N, K]: over the vocab, with the rows of one and the columns of the other aligned.

    The gradient for an `Aligned` is that for the matrix its planes stand for. Where the vocab is sharded, exponents
    are agreed and integers summed over the shards before the one rounding, which each of them does.
    """
    (rows, vocab), width = grad_logits.shape, weight.shape[1]
    if 0 in (rows, vocab, width):
        return jnp.zeros((rows, width), dtype)
    most_rows, most_gradients, most_aligned = _GPU_BLOCKS if on_gpu() else _CPU_BLOCKS
    row_step = min(rows, most_rows, max(1, most_gradients // width))
    step = min(most_aligned // max(width, row_step), _LONGEST) // PLANE_MULTIPLE * PLANE_MULTIPLE
    step = min(vocab, max(PLANE_MULTIPLE, step))

    def largest(start: Array, top: Array) -> Array:
        size = shards.kept(magnitude(widened(_part_of(weight, start, step))), start, 0)
        return jnp.maximum(top, jnp.max(size, axis=0))

    columns = exponents(shards.most(tiles(vocab, step, largest, jnp.zeros(width, jnp.int32))))

    def rows_from(first: Array, out: Array) -> Array:
        r = _over_the_vocab(grad_logits, weight, columns, first, (row_step, step), shards)
        return lax.dynamic_update_slice_in_dim(out, narrowed(r, dtype), first, axis=0)

    return tiles(rows, row_step, rows_from, jnp.zeros((rows, width), dtype))


def _over_the_vocab(
    grad_logits: Array | GradLogits,
    weight: Array | Aligned | QuantizedTable,
    columns: tuple[Array, Array],
    first: Array,
    tile: tuple[int, int],
    shards: Shards,
) -> Array:
    """Float32 [rows of the tile, K]: the vocab goes by in chunks, and its integers are summed until the end."""
    (rows, step), vocab, width = tile, *weight.shape
    turned = on_gpu()  # GPU libraries are twice as fast along the last axis of both operands; CPUs need no turning

    def largest(start: Array, top: Array) -> Array:
        size = shards.kept(magnitude(widened(part_of_rows(start))), start, 1)
        return jnp.maximum(top, jnp.max(size, axis=1))

    def part_of_rows(start: Array) -> Array:
        at = first, start
        return part(grad_logits, at, tile) if isinstance(grad_logits, Array) else grad_logits.part(at, tile)

    if isinstance(grad_logits, Array):
        top = tiles(vocab, step, largest, jnp.zeros(rows, jnp.int32))
    else:
        top = grad_logits.largest(first, rows)
    top = shards.most(top)
    exponent, nonfinite = (x[:, None] for x in exponents(top))
    exponents_of_columns, bad_columns = (x[None, :] for x in columns)

    def chunk(i: Array, total: list[Array]) -> list[Array]:
        begin = jnp.int32(i) * step
        start = jnp.minimum(begin, vocab - step)
        q = shards.kept(integers(part_of_rows(start), exponent, nonfinite, DIGITS), start, 1)
        if vocab % step:  # the last chunk is moved back to end at the vocab: nothing may count twice
            q = jnp.where(start + jnp.arange(step, dtype=jnp.int32)[None, :] < begin, 0, q)
        other = integers(_part_of(weight, start, step), exponents_of_columns, bad_columns, DIGITS)
        planes = _planes(other, -step % PLANE_MULTIPLE)
        sums = group_sums(_planes(q, 0), _turned(planes) if turned else planes, axis=int(turned))
        sums = [x[:width] if turned else x[:, :width] for x in sums]
        return carried([a + b for a, b in zip(total[:-2], sums, strict=True)] + total[-2:])

    # Two digits more than a chunk has hold the sum of all.
    total = [jnp.zeros((width, rows) if turned else (rows, width), jnp.int32)] * (2 * DIGITS + 1)
    total = shards.total(repeated(-(-vocab // step), chunk, total))
    total = [x.T for x in total] if turned else total
    r = round_once(total, exponent + exponents_of_columns - 2 * _WINDOW)
    return jnp.where(nonfinite | bad_columns, jnp.float32(jnp.nan), r)


def _planes(q: Array, more_rows: int) -> Array:
    """Digit planes with zeros behind each row, and as many rows of zeros as are asked for."""
    behind = padded(q.shape[1]) - q.shape[1]
    return digit_planes(jnp.pad(q, ((0, more_rows), (0, behind))) if more_rows or behind else q, DIGITS)


def _part_of(weight: Array | Aligned | QuantizedTable, start: Array, count: int) -> Array:
    if isinstance(weight, Aligned):
        return dequantised(weight.rows(start, count))
    if isinstance(weight, QuantizedTable):
        return weight.rows(start, count).dequantized()
    return part(weight, (start, 0), (count, weight.shape[1]))


def dequantised(weight: Aligned) -> Array:
    """The matrix that the planes stand for, float32 [R, L]: q has at most 24 significant bits.

    A row that is not finite is NaN throughout: which of its elements were not is not known any more.
    """
    q = jnp.zeros(weight.shape, jnp.int32)
    for plane in weight.planes[::-1, :, : weight.length]:
        q = (q << 7) + plane.astype(jnp.int32)
    x = power_of_two_times(q.astype(jnp.float32), (weight.exponent - (7 * weight.digits - 1))[:, None])
    return jnp.where(weight.nonfinite[:, None], jnp.float32(jnp.nan), x)


@partial(jax.jit, static_argnums=2)
def grad_weight(grad_logits: Array, hidden: Array, dtype: Any) -> Array:
    """[N, V], [N, K] -> [V, K]: over the rows, with the columns of both aligned."""
    (rows, vocab), width = grad_logits.shape, hidden.shape[1]
    if 0 in (rows, vocab, width):
        return jnp.zeros((vocab, width), dtype)
    _, most_gradients, most_aligned = _GPU_BLOCKS if on_gpu() else _CPU_BLOCKS
    step = max(1, min(most_gradients // width, most_aligned // rows))
    if step > PLANE_MULTIPLE:  # an odd multiple: the rows of a block do not fall on the same lines of a cache
        step = ((step // PLANE_MULTIPLE - 1) | 1) * PLANE_MULTIPLE
    step = min(vocab, step)
    columns = _aligned_columns(hidden)

    def vocab_from(start: Array, out: Array) -> Array:
        block = _aligned_columns(part(grad_logits, (0, start), (rows, step)))
        new = narrowed(rounded_products(columns, block), dtype)
        return lax.dynamic_update_slice_in_dim(out, new, start, axis=0)

    return tiles(vocab, step, vocab_from, jnp.zeros((vocab, width), dtype))


def _aligned_columns(x: Array) -> Aligned:
    """The columns of x [L, R] as R aligned rows.

    Integers are made where they lie, and the finished planes are turned.
    """
    length, count = x.shape
    exponent, nonfinite = exponents(jnp.max(magnitude(widened(x)), axis=0))
    planes = _planes(integers(x, exponent[None, :], nonfinite[None, :], DIGITS), -length % PLANE_MULTIPLE)
    return Aligned(_turned(planes)[:, :count], exponent, nonfinite, length)


def _turned(planes: Array) -> Array:
    """Planes transposed. XLA turns an array in memory many times faster than one that it computes on the way."""
    return jnp.swapaxes(lax.optimization_barrier(planes), 1, 2)


@partial(jax.jit, static_argnums=1)
def grad_bias(grad_logits: Array, dtype: Any) -> Array:
    """[N, V] -> [V]: the aligned sum over the rows."""
    rows, vocab = grad_logits.shape
    if 0 in (rows, vocab):
        return jnp.zeros(vocab, dtype)
    most_aligned = (_GPU_BLOCKS if on_gpu() else _CPU_BLOCKS)[2]
    step, bits = min(vocab, max(1, most_aligned // rows)), limb_bits(rows)

    def vocab_from(start: Array, out: Array) -> Array:
        block = part(grad_logits, (0, start), (rows, step))
        exponent, nonfinite = exponents(jnp.max(magnitude(widened(block)), axis=0))
        q = integers(block, exponent[None, :], nonfinite[None, :], DIGITS)
        sums = [jnp.sum(limb, axis=0, dtype=jnp.int32) for limb in limbs(q, bits)]
        r = jnp.where(nonfinite, jnp.float32(jnp.nan), rounded_sum(sums, bits, exponent - _WINDOW))
        return lax.dynamic_update_slice_in_dim(out, narrowed(r, dtype), start, axis=0)

    return tiles(vocab, step, vocab_from, jnp.zeros(vocab, dtype))
