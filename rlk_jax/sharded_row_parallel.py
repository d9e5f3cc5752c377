"""The LM head where the hidden dimension is sharded: each device has some columns of hidden and of the weight.

The twin is rlk_torch/sharded_row_parallel.py.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from rlk_jax.lm_head import as_arrays, default_digits
from rlk_jax.sharded import shards_along
from rlk_jax.sharded_parts import refuse_aligned, run_parts


def row_parallel_lm_head(
    hidden: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    axis_name: str | tuple[str, ...],
    digits: int | None = None,
) -> Array:
    """Logits where the hidden dimension is sharded, with the bits of `lm_head` on the whole.

    For use inside `jax.shard_map` in its default mode (check_vma=True). The shards agree on the exponents of all rows
    and add up the integers of a tile of logits at a time, several digits to an int32.

    Arguments:
        hidden: [..., K_r] bfloat16, float16 or float32, the columns of this device.
        weight: [V, K_r] of any of these types, the same columns.
        bias: [V] of any of these types, the same on every shard, or None.
        axis_name: the mesh axis along which the hidden dimension is sharded, or a tuple of axes.
        digits: 2 (coarse), 3 or 4; None means 3, or 4 where hidden is float32.

    Returns:
        [..., V] in hidden's dtype, the same on every shard.

    Gradients are those of `lm_head`, for the columns of this device, made where they lie from an upstream gradient
    that is the same on every shard.

    Raises:
        TypeError: another dtype, an `Aligned`, digits that are no integer, an axis_name that is no name.
        ValueError: shapes that do not meet, digits outside 2, 3, 4, an unknown mesh axis, an argument that is shared
            and should be sharded, or the other way round, or `jax.shard_map` with check_vma=False.
        NotImplementedError: forward mode, a second derivative, or `jax.vmap`.

    Example:
        >>> import jax
        >>> from jax.sharding import Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], "x")
        >>> def head(hidden, weight):
        ...     return row_parallel_lm_head(hidden, weight, axis_name="x")
        >>> head = jax.shard_map(head, mesh=mesh, in_specs=(P("x"), P(None, "x")), out_specs=P())
        >>> head(jnp.array([1.0, 2.0]), jnp.array([[1.0, 0.5], [0.0, -1.0]])).tolist()
        [2.0, -2.0]
    """
    digits = default_digits(hidden) if digits is None else digits
    dtype = getattr(hidden, "dtype", jnp.float32)
    return _run("row_parallel_lm_head", hidden, weight, bias, axis_name, digits, dtype)


def row_parallel_lm_head_fp32(
    hidden: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    axis_name: str | tuple[str, ...],
    digits: int = 4,
) -> Array:
    """Ground-truth logits where the hidden dimension is sharded, in float32.

    Arguments:
        hidden: [..., K_r] bfloat16, float16 or float32, the columns of this device.
        weight: [V, K_r], as for `row_parallel_lm_head`.
        bias: [V], as for `row_parallel_lm_head`, or None.
        axis_name: as for `row_parallel_lm_head`.
        digits: 2, 3 or 4.

    Returns:
        [..., V] float32, with the bits of `lm_head_fp32` on the whole, the same on every shard. Gradients as for
        `row_parallel_lm_head`.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `row_parallel_lm_head`.

    Example:
        >>> import jax
        >>> from jax.sharding import Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], "x")
        >>> def head(hidden, weight):
        ...     return row_parallel_lm_head_fp32(hidden, weight, axis_name="x")
        >>> head = jax.shard_map(head, mesh=mesh, in_specs=(P("x"), P(None, "x")), out_specs=P())
        >>> head(jnp.array([1.0, 2.0], jnp.bfloat16), jnp.array([[1.0, 0.5]])).tolist()
        [2.0]
    """
    return _run("row_parallel_lm_head_fp32", hidden, weight, bias, axis_name, digits, jnp.float32)


def _run(
    name: str,
    hidden: Array,
    weight: Array,
    bias: Array | None,
    axis_name: str | tuple[str, ...],
    digits: int,
    dtype: Any,
) -> Array:
    refuse_aligned("weight", weight)
    rows, part, bias = as_arrays(hidden, weight, bias, digits)
    shards = shards_along(axis_name)
    shards.check_apart(hidden=rows, weight=part)
    shards.check_shared(bias=bias)
    out = run_parts(name, [rows], [part], bias, digits, dtype, shards)
    return out.reshape(*hidden.shape[:-1], out.shape[-1])
