"""Token embedding of a table whose vocab is sharded: the bits of the rows, wherever they lie.

The twin is rlk_torch/sharded_embedding.py.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlk_jax.checks import as_padding_idx, as_token_ids, check_floats
from rlk_jax.differentiable import differentiable
from rlk_jax.embedding import bits_of_rows, or_else, widened
from rlk_jax.embedding_grad import grad_table, term
from rlk_jax.floats import QUIET_NAN
from rlk_jax.sharded import Shards, local, shards_along, without_vmap

_NAME = "sharded_embedding"


def sharded_embedding(
    token_ids: Any,
    weight: Array,
    vocab: int,
    *,
    axis_name: str | tuple[str, ...],
    check_ids: bool = True,
    padding_idx: int | None = None,
) -> Array:
    """Rows of a table whose vocab is sharded, bit for bit as `embedding` gives them.

    For use inside `jax.shard_map` in its default mode (check_vma=True). The bits of the rows are added up over the
    shards as integers, of which all but one are 0, 16-bit rows two elements to an integer.

    Arguments:
        token_ids: [...] of any integer dtype, 0 <= id < V, the same on every shard.
        weight: [V_r, H] bfloat16, float16 or float32, the shard of this device of `pad_vocab(weight, shards)`.
        vocab: V, rows of the whole table without padding.
        axis_name: the mesh axis along which the vocab is sharded, or a tuple of axes.
        check_ids: refuse bad ids where they can be read: they are no argument of a compiled function or of
            `jax.shard_map`. Else a bad id, also of a row of padding, gives a row of the quiet NaN.
        padding_idx: an id, 0 <= padding_idx < V, whose row gets no gradient, or None. The result is the same.

    Returns:
        [..., H] in weight's dtype, the same on every shard. Nothing is rounded.

    The gradient of a shard is that of `embedding`, made where the shard lies from the ids of its rows.

    Raises:
        IndexError: an id outside the table, with its position.
        TypeError: bool or float ids, a table of another dtype, a vocab or padding_idx that is no integer, an
            axis_name that is no name.
        ValueError: a table that is not [V, H] or no shard of the vocab, a padding_idx outside it, an unknown mesh axis,
            an argument that is shared and should be sharded, or the other way round, or `jax.shard_map` with
            check_vma=False.
        NotImplementedError: forward mode, a second derivative, or `jax.vmap`.

    Example:
        >>> from jax.sharding import Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], "x")
        >>> def rows(ids, table):
        ...     return sharded_embedding(ids, table, 2, axis_name="x")
        >>> rows = jax.shard_map(rows, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
        >>> rows(jnp.array([1, 0]), jnp.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [[3.0, 4.0], [1.0, 2.0]]
    """
    return _run(token_ids, weight, vocab, axis_name, check_ids, padding_idx, False)


def sharded_embedding_fp32(
    token_ids: Any,
    weight: Array,
    vocab: int,
    *,
    axis_name: str | tuple[str, ...],
    check_ids: bool = True,
    padding_idx: int | None = None,
) -> Array:
    """Rows of a table whose vocab is sharded, widened exactly to float32.

    Arguments:
        token_ids: [...] of any integer dtype, as for `sharded_embedding`.
        weight: [V_r, H], as for `sharded_embedding`.
        vocab: V, rows of the whole table without padding.
        axis_name: as for `sharded_embedding`.
        check_ids: as for `sharded_embedding`.
        padding_idx: as for `sharded_embedding`.

    Returns:
        [..., H] float32, with the bits of `embedding_fp32`, the same on every shard. The gradient of the shard is as
        for `sharded_embedding`.

    Raises:
        IndexError, TypeError, ValueError, NotImplementedError: as for `sharded_embedding`.

    Example:
        >>> from jax.sharding import Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], "x")
        >>> def rows(ids, table):
        ...     return sharded_embedding_fp32(ids, table, 2, axis_name="x")
        >>> rows = jax.shard_map(rows, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
        >>> rows(jnp.array([1]), jnp.array([[1.0], [3.0]], jnp.bfloat16)).tolist()
        [[3.0]]
    """
    return _run(token_ids, weight, vocab, axis_name, check_ids, padding_idx, True)


def _run(
    token_ids: Any,
    weight: Array,
    vocab: int,
    axis_name: str | tuple[str, ...],
    check_ids: bool,
    padding_idx: int | None,
    widen: bool,
) -> Array:
    check_floats("weight", weight, "[V_r, H]", 2)
    shards = shards_along(axis_name, vocab)
    shards.check_rows(weight.shape[0])
    padding_idx = as_padding_idx(padding_idx, shards.vocab)
    ids = as_token_ids(token_ids, shards.vocab, check_ids)
    shards.check_shared(token_ids=ids)
    shards.check_apart(weight=weight)
    operator = _operator(widen, jnp.dtype(weight.dtype), padding_idx, shards)
    return operator(ids.reshape(-1), jnp.asarray(weight)).reshape(*ids.shape, weight.shape[1])


@cache
def _operator(widen: bool, dtype: Any, padding_idx: int | None, shards: Shards) -> Callable[..., Array]:
    """int32 ids [N], weight [V_r, H] -> rows [N, H], with the gradient of weight."""

    def rows(ids: Array, weight: Array) -> Array:
        return _rows(ids, weight, widen, shards)

    def to_weight(grad_rows: Array, weight: Any, ids: Array) -> Array:
        kept = ids if padding_idx is None else jnp.where(ids == padding_idx, -1, ids)
        return grad_table(_own(kept, shards), grad_rows, weight.shape[0], weight.dtype)

    of_weight = term(jnp.dtype(jnp.float32) if widen else dtype, padding_idx)
    of_weight = local(of_weight, _NAME, shards.names, False, transpose=to_weight)
    return differentiable(without_vmap(rows, f"{_NAME}_fp32" if widen else _NAME), (None, of_weight))


def _own(ids: Array, shards: Shards) -> Array:
    """The row in this device's shard, -1 where another has it."""
    row = ids - shards.first()
    return jnp.where((row >= 0) & (row < shards.rows), row, -1)


@partial(jax.jit, static_argnums=(2, 3))
def _rows(ids: Array, weight: Array, widen: bool, shards: Shards) -> Array:
    bits = _united(bits_of_rows(_own(ids, shards), weight, 0), shards)
    rows = lax.bitcast_convert_type(or_else(bits, ids, QUIET_NAN[weight.dtype.name]), weight.dtype)
    return widened(rows) if widen else rows


def _united(rows: Array, shards: Shards) -> Array:
    """Bits [N, H] of which all devices but one have 0. No backend adds up 16 bits: two of them travel in 32."""
    if not shards.axes:
        return rows
    if rows.dtype.itemsize == 4:
        return lax.psum(rows, shards.axes)
    count, width = rows.shape
    even = jnp.pad(rows, ((0, 0), (0, width % 2))) if width % 2 else rows
    words = lax.bitcast_convert_type(even.reshape(count, -(-width // 2), 2), jnp.uint32)
    pairs = lax.bitcast_convert_type(lax.psum(words, shards.axes), jnp.uint16)
    return pairs.reshape(even.shape)[:, :width]
