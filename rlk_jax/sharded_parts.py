"""Logits from parts of the hidden dimension: exponents of the whole rows, and one sum of all integers.

One device's work in `row_parallel_lm_head`, or all of it in one process. The twin is rlk_torch/sharded_parts.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rlk_jax.alignment import Aligned, align_at, largest, padded
from rlk_jax.checks import check_parts, dtype_name
from rlk_jax.differentiable import Term, differentiable
from rlk_jax.floats import part
from rlk_jax.lm_head import as_arrays, default_digits, in_tiles
from rlk_jax.lm_head_grad import terms
from rlk_jax.products import carried, groups_of, rounded
from rlk_jax.sharded import ALONE, Shards, local, one_column, without_vmap


def lm_head_of_parts(
    hidden_parts: Sequence[Array | np.ndarray],
    weight_parts: Sequence[Array | np.ndarray],
    bias: Array | np.ndarray | None = None,
    *,
    digits: int | None = None,
) -> Array:
    """Logits from parts of the hidden dimension in one process, with the bits of `lm_head` on the whole.

    Arguments:
        hidden_parts: arrays [..., K_r] bfloat16, float16 or float32, of one dtype and one leading shape.
        weight_parts: arrays [V, K_r] of any of these types, one for each part of hidden.
        bias: [V] of any of these types, or None.
        digits: 2 (coarse), 3 or 4; None means 3, or 4 where hidden is float32.

    Returns:
        [..., V] in hidden's dtype: what `lm_head` gives for the parts side by side, in any order, and what
        `row_parallel_lm_head` gives on devices that hold a part each. The parts' gradients are parts of `lm_head`'s.

    Raises:
        TypeError: as for `lm_head`; an `Aligned`, whose rows were aligned by themselves.
        ValueError: as for `lm_head`; parts that do not belong together, or none.
        NotImplementedError: forward mode, a second derivative, or vmap.

    Example:
        >>> hidden, weight = jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.5]])
        >>> lm_head_of_parts([hidden[:, :1], hidden[:, 1:]], [weight[:, :1], weight[:, 1:]]).tolist()
        [[2.0]]
    """
    first = hidden_parts[0] if len(hidden_parts) else None
    digits = default_digits(first) if digits is None else digits
    dtype = getattr(first, "dtype", jnp.float32)
    return _run("lm_head_of_parts", hidden_parts, weight_parts, bias, digits, dtype)


def lm_head_of_parts_fp32(
    hidden_parts: Sequence[Array | np.ndarray],
    weight_parts: Sequence[Array | np.ndarray],
    bias: Array | np.ndarray | None = None,
    *,
    digits: int = 4,
) -> Array:
    """Ground-truth logits from parts of the hidden dimension in one process, in float32.

    Arguments:
        hidden_parts: arrays [..., K_r], as for `lm_head_of_parts`.
        weight_parts: arrays [V, K_r], as for `lm_head_of_parts`.
        bias: [V] or None.
        digits: 2, 3 or 4.

    Returns:
        [..., V] float32, the bits of `lm_head_fp32` on the whole. Gradients as for `lm_head_of_parts`.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `lm_head_of_parts`.

    Example:
        >>> lm_head_of_parts_fp32([jnp.array([1.0, 2.0], jnp.bfloat16)], [jnp.array([[1.0, 0.5]])]).tolist()
        [2.0]
    """
    return _run("lm_head_of_parts_fp32", hidden_parts, weight_parts, bias, digits, jnp.float32)


def _run(
    name: str,
    hidden_parts: Sequence[Array | np.ndarray],
    weight_parts: Sequence[Array | np.ndarray],
    bias: Array | np.ndarray | None,
    digits: int,
    dtype: Any,
) -> Array:
    check_parts("hidden_parts", hidden_parts)
    check_parts("weight_parts", weight_parts)
    if len(hidden_parts) != len(weight_parts) or not len(hidden_parts):
        raise ValueError(
            f"hidden_parts has {len(hidden_parts)} parts and weight_parts {len(weight_parts)}; expected the same "
            "number, at least 1"
        )
    first, top = hidden_parts[0], weight_parts[0]
    rows, weights, offsets = [], [], None
    for i, (hidden, weight) in enumerate(zip(hidden_parts, weight_parts, strict=True)):
        refuse_aligned(f"weight_parts[{i}]", weight)
        of_hidden, of_weight, offsets = as_arrays(hidden, weight, bias, digits)
        if hidden.shape[:-1] != first.shape[:-1] or hidden.dtype != first.dtype:
            raise ValueError(
                f"hidden_parts[{i}] is {_described(hidden)} and hidden_parts[0] {_described(first)}; expected one "
                "leading shape and dtype"
            )
        if weight.shape[0] != top.shape[0] or weight.dtype != top.dtype:
            raise ValueError(
                f"weight_parts[{i}] is {_described(weight)} and weight_parts[0] {_described(top)}; expected one vocab "
                "and dtype"
            )
        rows.append(of_hidden)
        weights.append(of_weight)
    out = run_parts(name, rows, weights, offsets, digits, dtype, ALONE)
    return out.reshape(*first.shape[:-1], out.shape[-1])


def _described(x: Array | np.ndarray) -> str:
    return f"{dtype_name(x)} {tuple(x.shape)}"


def refuse_aligned(name: str, weight: Any) -> None:
    if isinstance(weight, Aligned):
        raise TypeError(
            f"{name} is an Aligned; expected an array [V, K_r]: rows are aligned over the whole hidden dimension, "
            "which no part has"
        )


def run_parts(
    name: str,
    hidden_parts: Sequence[Array],
    weight_parts: Sequence[Any],
    bias: Array | None,
    digits: int,
    dtype: Any,
    shards: Shards,
) -> Array:
    """[N, K_r], [V, K_r] and [V] -> [N, V], of arguments that were checked. shards: who holds more parts."""
    operator = _operator(name, len(hidden_parts), digits, jnp.dtype(dtype), shards)
    return operator(*hidden_parts, *weight_parts, bias)


@cache
def _operator(name: str, count: int, digits: int, dtype: Any, shards: Shards) -> Callable[..., Array]:
    """As many hidden parts [N, K_r], weight parts [V, K_r], bias -> logits [N, V], with their gradients."""

    def logits(*operands: Any) -> Array:
        *parts, bias = operands
        return _logits(parts[:count], parts[count:], bias, digits, dtype, shards)

    return differentiable(without_vmap(logits, name), _terms(name.removesuffix("_fp32"), count, dtype, shards))


def _terms(name: str, count: int, dtype: Any, shards: Shards) -> list[Term]:
    """Those of `lm_head`, which needs for a part of one operand the same part of the other."""
    hidden, weight, bias = (local(term, name, shards.names, False) for term in terms(dtype))

    def with_part(term: Term, i: int) -> Term:
        return replace(term, needs=lambda *operands: [operands[i]])

    return [
        *(with_part(hidden, count + i) for i in range(count)),
        *(with_part(weight, i) for i in range(count)),
        replace(bias, needs=lambda *operands: [one_column(operands[0])]),
    ]


@partial(jax.jit, static_argnums=(3, 4, 5))
def _logits(
    hiddens: Sequence[Array],
    weights: Sequence[Array],
    bias: Array | None,
    digits: int,
    dtype: Any,
    shards: Shards,
) -> Array:
    """Tiles as for `lm_head`: no integers of more logits than a tile's exist, here or on their way."""
    shape = hiddens[0].shape[0], weights[0].shape[0]
    if 0 in shape:
        return jnp.zeros(shape, dtype)
    length = shards.size * sum(padded(x.shape[1]) for x in hiddens)

    def aligned(parts: Sequence[Array]) -> list[Aligned]:
        top = shards.most(reduce(jnp.maximum, map(largest, parts)))
        return [align_at(x, digits, top) for x in parts]

    rows = aligned(hiddens)

    def block(start: Array | int, count: int) -> list[Aligned]:
        return aligned([part(x, (start, 0), (count, x.shape[1])) for x in weights])

    def tile(block: list[Aligned], first: Array | int, count: int) -> Array:
        some = [x.rows(first, count) for x in rows]
        sums = [groups_of(x.planes, y.planes, length) for x, y in zip(some, block, strict=True)]
        total = reduce(lambda a, b: carried([x + y for x, y in zip(a, b, strict=True)]), sums)
        return rounded(shards.total(total), some[0], block[0])

    return in_tiles(shape, sum(x.shape[1] for x in weights), bias, dtype, block, tile)
