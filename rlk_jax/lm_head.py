"""The LM head: logits that depend on one hidden row and one weight row, and on nothing else.

Section 4 of docs/contract.md. The twin is rlk_torch/lm_head.py.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from rlk_jax.alignment import Aligned, align, tiles
from rlk_jax.checks import check_digits, check_floats, check_lm_head, check_same_device
from rlk_jax.devices import on_gpu
from rlk_jax.differentiable import differentiable, more_rows
from rlk_jax.floats import flushed, narrowed, part, widened
from rlk_jax.lm_head_grad import terms
from rlk_jax.products import rounded_products
from rlk_jax.quantized import QuantizedTable
from rlk_jax.quantized_head import weight_of_call

# Logits made at a time, rows among them, weights aligned at a time whatever the vocab: a cache on the CPU, a
# memory budget of some hundred megabytes on a GPU.
_CPU_BLOCKS = (2**18, 512, 2**22)
_GPU_BLOCKS = (2**24, 2048, 2**26)


def lm_head(
    hidden: Array | np.ndarray,
    weight: Array | np.ndarray | Aligned | QuantizedTable,
    bias: Array | np.ndarray | None = None,
    *,
    digits: int | None = None,
) -> Array:
    """Logits by exact integer dot products and one rounding, in hidden's dtype.

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32.
        weight: [V, K] of any of these types, a `QuantizedTable`, or `align(weight, digits)`.
        bias: [V] of any of these types, or None.
        digits: 2 (coarse), 3 or 4; None means 3, or 4 where hidden is float32.

    Returns:
        [..., V] in hidden's dtype: the dot product rounded once to float32 (flushed to +0 below 2^-126),
        plus the bias in float32, rounded once to the output type. A row that is not finite gives NaN;
        every NaN is the positive quiet one.

    Gradients of hidden, weight and bias are offered in reverse mode, whatever the digits: each is one exact sum
    over the vocab or over all rows of the batch, of integers of 4 digits, rounded once to float32 and once to its
    argument's dtype.

    Raises:
        TypeError: another dtype, or digits that are no integer.
        ValueError: shapes that do not meet, digits outside 2, 3, 4 or other than those of an `Aligned`
            weight, arguments on several devices.
        NotImplementedError: forward mode, a second derivative, or the gradient of an `Aligned` or `QuantizedTable`.

    Example:
        >>> lm_head(jnp.array([1.0, 2.0]), jnp.array([[1.0, 0.5], [0.0, -1.0]])).tolist()
        [2.0, -2.0]
    """
    digits = default_digits(hidden) if digits is None else digits
    return run_lm_head(hidden, weight, bias, digits, getattr(hidden, "dtype", jnp.float32))


def lm_head_fp32(
    hidden: Array | np.ndarray,
    weight: Array | np.ndarray | Aligned | QuantizedTable,
    bias: Array | np.ndarray | None = None,
    *,
    digits: int = 4,
) -> Array:
    """Ground-truth logits in float32.

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32.
        weight: [V, K] of any of these types, a `QuantizedTable`, or `align(weight, digits)`.
        bias: [V] of any of these types, or None.
        digits: 2, 3 or 4.

    Returns:
        [..., V] float32, rounded as `lm_head` says, the output rounding being none. Gradients as for `lm_head`.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `lm_head`.

    Example:
        >>> lm_head_fp32(jnp.array([1.0, 2.0], jnp.bfloat16), jnp.array([[1.0, 0.5]])).tolist()
        [2.0]
    """
    return run_lm_head(hidden, weight, bias, digits, jnp.float32)


def default_digits(hidden: Any) -> int:
    """3, or 4 where hidden is float32."""
    return 4 if getattr(hidden, "dtype", None) == jnp.float32 else 3


def run_lm_head(
    hidden: Array | np.ndarray,
    weight: Array | np.ndarray | Aligned | QuantizedTable,
    bias: Array | np.ndarray | None,
    digits: int,
    dtype: DTypeLike,
) -> Array:
    """Both paths, in an output type."""
    if isinstance(weight, QuantizedTable):
        weight = weight_of_call(hidden, weight, bias, digits)
        rows, bias = as_rows(hidden), None if bias is None else jnp.asarray(bias)
    else:
        rows, weight, bias = as_arrays(hidden, weight, bias, digits)
    out = _operator(digits, jnp.dtype(dtype))(rows, weight, bias)
    return out.reshape(*hidden.shape[:-1], out.shape[-1])


def as_arrays(
    hidden: Array | np.ndarray, weight: Array | np.ndarray | Aligned, bias: Array | np.ndarray | None, digits: int
) -> tuple[Array, Array | Aligned, Array | None]:
    """The arguments of a call, checked, hidden as [N, K]."""
    check_digits(digits)
    if isinstance(weight, Aligned):
        check_lm_head(hidden, weight.shape, bias)
        if weight.digits != digits:
            raise ValueError(
                f"weight is aligned with {weight.digits} digits and the call uses {digits}; expected one "
                f"number: align(weight, {digits}), or digits={weight.digits}"
            )
        check_same_device(weight.planes, hidden=hidden, bias=bias)
    else:
        check_floats("weight", weight, "[V, K]", 2)
        check_lm_head(hidden, (weight.shape[0], weight.shape[1]), bias)
        check_same_device(weight, hidden=hidden, bias=bias)
        weight = jnp.asarray(weight)
    bias = None if bias is None else jnp.asarray(bias)
    return as_rows(hidden), weight, bias


def as_rows(hidden: Array | np.ndarray) -> Array:
    """[..., K] as [N, K]."""
    return jnp.asarray(hidden).reshape(int(np.prod(hidden.shape[:-1], dtype=np.int64)), hidden.shape[-1])


@cache
def _operator(digits: int, dtype: Any) -> Callable[..., Array]:
    """hidden [N, K], weight, bias -> logits [N, V], with its batching and its gradients."""

    def logits(hidden: Array, weight: Array | Aligned | QuantizedTable, bias: Array | None) -> Array:
        return all_logits(hidden, weight, bias, digits, dtype)

    return differentiable(more_rows(logits), terms(dtype))


@partial(jax.jit, static_argnums=(3, 4))
def all_logits(
    hidden: Array, weight: Array | Aligned | QuantizedTable, bias: Array | None, digits: int, dtype: Any
) -> Array:
    """[N, K], [V, K], [V] -> [N, V]."""
    if hidden.shape[0] == 0 or weight.shape[0] == 0:
        return jnp.zeros((hidden.shape[0], weight.shape[0]), dtype)
    aligned = align(hidden, digits)

    def block(start: Array | int, count: int) -> Aligned:
        return _rows_of(weight, start, count, digits)

    def tile(block: Aligned, first: Array | int, count: int) -> Array:
        return rounded_products(aligned.rows(first, count), block)

    width = 0 if isinstance(weight, Aligned) else weight.shape[1]
    return in_tiles((hidden.shape[0], weight.shape[0]), width, bias, dtype, block, tile)


def in_tiles(
    shape: tuple[int, int],
    width: int,
    bias: Array | None,
    dtype: Any,
    block: Callable[[Array | int, int], Any],
    tile: Callable[[Any, Array | int, int], Array],
) -> Array:
    """Logits [N, V] from r of section 3 in tiles: tile(block(row of the weight, count), row, count), [count, count].

    The last tile of each kind overlaps the one before: the same bits. `width` is of what a block aligns.
    """
    rows, vocab = shape
    block_logits, block_rows, block_weights = _GPU_BLOCKS if on_gpu() else _CPU_BLOCKS
    row_step = min(rows, block_rows)
    step = min(vocab, max(1, block_logits // row_step))
    if width:
        step = min(step, max(1, block_weights // width))

    def columns(start: Array | int, out: Array) -> Array:
        some = block(start, step)
        part_bias = None if bias is None else lax.dynamic_slice_in_dim(bias, start, step)

        def put(first: Array | int, out: Array) -> Array:
            return _put(out, finished(tile(some, first, row_step), part_bias, dtype).T, first, start)

        return tiles(rows, row_step, put, out)

    return tiles(vocab, step, columns, jnp.zeros((rows, vocab), dtype))


def _put(out: Array, tile: Array, first: Any, start: Any) -> Array:
    return tile if tile.shape == out.shape else lax.dynamic_update_slice(out, tile, (first, start))


def _rows_of(weight: Array | Aligned | QuantizedTable, start: Any, count: int, digits: int) -> Aligned:
    if isinstance(weight, Aligned):
        return weight if count == weight.shape[0] else weight.rows(start, count)
    if isinstance(weight, QuantizedTable):
        return align(weight.rows(start, count), digits)
    return align(part(weight, (start, 0), (count, weight.shape[1])), digits)


def finished(r: Array, bias: Array | None, dtype: DTypeLike) -> Array:
    """Add the bias, round to the output type, make every NaN the quiet one. r: float32 [v, n]."""
    if bias is not None:
        r = flushed(r + flushed(widened(bias))[:, None])
    return narrowed(r, dtype)
