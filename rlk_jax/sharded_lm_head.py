"""The LM head of a weight whose vocab is sharded: each device has the logits of its rows.

The twin is rlk_torch/sharded_lm_head.py.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from rlk_jax.alignment import Aligned
from rlk_jax.differentiable import Term, differentiable
from rlk_jax.floats import MINUS_INFINITY
from rlk_jax.lm_head import all_logits, as_arrays, default_digits
from rlk_jax.lm_head_grad import as_matrix, grad_hidden, terms
from rlk_jax.sharded import Shards, local, one_column, shards_along, without_vmap

_NAME = "sharded_lm_head"


def sharded_lm_head(
    hidden: Array | np.ndarray,
    weight: Array | Aligned,
    bias: Array | None = None,
    *,
    vocab: int,
    axis_name: str | tuple[str, ...],
    gather: bool = False,
    digits: int | None = None,
) -> Array:
    """Logits of a weight whose vocab is sharded, with the bits of `lm_head`.

    For use inside `jax.shard_map` in its default mode (check_vma=True).

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32, the same on every shard.
        weight: [V_r, K] of any of these types, the shard of this device of `pad_vocab(weight, shards)`, or that of
            its `Aligned`.
        bias: [V_r] of any of these types, the shard of this device, or None.
        vocab: V, rows of the whole weight without padding.
        axis_name: the mesh axis along which the vocab is sharded, or a tuple of axes.
        gather: the logits of the whole vocab are wanted, on every shard.
        digits: 2 (coarse), 3 or 4; None means 3, or 4 where hidden is float32.

    Returns:
        [..., V_r] in hidden's dtype, -inf where the row is padding; or [..., V] on every shard where `gather`.

    Gradients are those of `lm_head`. For hidden's the shards agree on exponents and add up integers, which are rounded
    once, so each has the same; those of weight and bias are made where they lie. Padding has no part in any, and
    +0 for a gradient. With `gather` the upstream gradient is the same on every shard, and each takes its part.

    Raises:
        TypeError: another dtype, a vocab or digits that are no integer, an axis_name that is no name.
        ValueError: shapes that do not meet each other or the vocab, digits outside 2, 3, 4 or other than those of an
            `Aligned` weight, an unknown mesh axis, an argument that is shared and should be sharded, or the other way
            round, or `jax.shard_map` with check_vma=False.
        NotImplementedError: forward mode, a second derivative, `jax.vmap`, or the gradient of an `Aligned`.

    Example:
        >>> import jax
        >>> from jax.sharding import Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], "x")
        >>> def head(hidden, weight):
        ...     return sharded_lm_head(hidden, weight, vocab=2, axis_name="x")
        >>> head = jax.shard_map(head, mesh=mesh, in_specs=(P(), P("x")), out_specs=P("x"))
        >>> head(jnp.array([1.0, 2.0]), jnp.array([[1.0, 0.5], [0.0, -1.0]])).tolist()
        [2.0, -2.0]
    """
    digits = default_digits(hidden) if digits is None else digits
    dtype = getattr(hidden, "dtype", jnp.float32)
    return _run(_NAME, hidden, weight, bias, vocab, axis_name, gather, digits, dtype)


def sharded_lm_head_fp32(
    hidden: Array | np.ndarray,
    weight: Array | Aligned,
    bias: Array | None = None,
    *,
    vocab: int,
    axis_name: str | tuple[str, ...],
    gather: bool = False,
    digits: int = 4,
) -> Array:
    """Ground-truth logits of a weight whose vocab is sharded, in float32.

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32, the same on every shard.
        weight: [V_r, K], as for `sharded_lm_head`.
        bias: [V_r], as for `sharded_lm_head`, or None.
        vocab: V, rows of the whole weight without padding.
        axis_name: as for `sharded_lm_head`.
        gather: as for `sharded_lm_head`.
        digits: 2, 3 or 4.

    Returns:
        [..., V_r] or, where `gather`, [..., V], float32, with the bits of `lm_head_fp32`; else as `sharded_lm_head`.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `sharded_lm_head`.

    Example:
        >>> import jax
        >>> from jax.sharding import Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], "x")
        >>> def head(hidden, weight):
        ...     return sharded_lm_head_fp32(hidden, weight, vocab=1, axis_name="x", gather=True)
        >>> head = jax.shard_map(head, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
        >>> head(jnp.array([1.0, 2.0], jnp.bfloat16), jnp.array([[1.0, 0.5]])).tolist()
        [2.0]
    """
    return _run(f"{_NAME}_fp32", hidden, weight, bias, vocab, axis_name, gather, digits, jnp.float32)


def _run(
    name: str,
    hidden: Array | np.ndarray,
    weight: Array | Aligned,
    bias: Array | None,
    vocab: int,
    axis_name: str | tuple[str, ...],
    gather: bool,
    digits: int,
    dtype: Any,
) -> Array:
    rows, weight, bias = as_arrays(hidden, weight, bias, digits)
    shards = shards_along(axis_name, vocab)
    shards.check_rows(weight.shape[0])
    shards.check_shared(hidden=rows)
    shards.check_apart(weight=weight, bias=bias)
    out = _operator(name, digits, jnp.dtype(dtype), shards, bool(gather))(rows, weight, bias)
    return out.reshape(*hidden.shape[:-1], out.shape[-1])


@cache
def _operator(name: str, digits: int, dtype: Any, shards: Shards, gather: bool) -> Callable[..., Array]:
    """hidden [N, K], weight, bias -> logits [N, V_r] or [N, V], with their gradients."""

    def logits(hidden: Array, weight: Array | Aligned, bias: Array | None) -> Array:
        out = all_logits(hidden, weight, bias, digits, dtype)
        return shards.whole(out) if gather else shards.kept_bits(out, 1, MINUS_INFINITY[dtype.name])

    return differentiable(without_vmap(logits, name), _terms(dtype, shards, gather))


def _terms(dtype: Any, shards: Shards, gather: bool) -> tuple[Term, ...]:
    """Those of `lm_head`, of this device's part of the upstream gradient."""
    hidden, weight, bias = terms(dtype)
    bias = replace(bias, needs=lambda hidden, weight, bias: [one_column(hidden)])

    def own(grad_logits: Array) -> Array:
        return shards.own(grad_logits) if gather else grad_logits

    def to_hidden(grad_logits: Array, hidden: Any, *parts: Array) -> Array:
        return grad_hidden(own(grad_logits), as_matrix(parts, hidden.shape[1]), hidden.dtype, shards)

    def to_weight(grad_logits: Array, own_weight: Any, *operands: Array) -> Array:
        return shards.kept_bits(weight.transpose(own(grad_logits), own_weight, *operands), 0)

    def to_bias(grad_logits: Array, own_bias: Any, *operands: Array) -> Array:
        return shards.kept_bits(bias.transpose(own(grad_logits), own_bias, *operands), 0)

    def shape(term: Term) -> Callable[..., tuple[int, ...]]:
        return lambda *operands: (term.shape(*operands)[0], shards.vocab if gather else shards.rows)

    return tuple(
        local(term, _NAME, shards.names, not gather, shape=shape(term), transpose=transpose)
        for term, transpose in ((hidden, to_hidden), (weight, to_weight), (bias, to_bias))
    )
