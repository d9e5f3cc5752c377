"""Token embedding: the bits of the rows, on every device, with ids that never wrap or clamp.

Section 5 of docs/contract.md. The twin is rlk_torch/embedding.py.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rlk_jax.checks import as_padding_idx, as_token_ids, check_floats, check_same_device
from rlk_jax.devices import has_pallas
from rlk_jax.differentiable import differentiable
from rlk_jax.embedding_grad import term
from rlk_jax.floats import QUIET_NAN, bits_of, narrowed, scaled
from rlk_jax.floats import widened as widened_exactly


def embedding(
    token_ids: Any, weight: Array | np.ndarray, *, check_ids: bool = True, padding_idx: int | None = None
) -> Array:
    """Rows of a table, bit for bit: NaN payloads, -0 and subnormals included.

    Arguments:
        token_ids: [...] of any integer dtype (a JAX or NumPy array, integers), 0 <= id < V.
        weight: [V, H] bfloat16, float16 or float32.
        check_ids: read the ids and refuse bad ones. False skips that (no wait for the device) and gives a
            bad id the row that traced code gives it: all elements the quiet NaN.
        padding_idx: an id, 0 <= padding_idx < V, whose row gets no gradient, or None. The result is the same.

    Returns:
        [..., H] in weight's dtype. Nothing is rounded.

    The gradient of weight is offered in reverse mode: a row's is the exact sum over all positions of its id,
    rounded once to float32 and once to weight's dtype; +0 where no id names the row. Bad ids add nothing.

    Raises:
        IndexError: an id outside the table, with its position (eager calls; traced code cannot read ids).
        TypeError: bool or float ids, a table of another dtype, a padding_idx that is no integer.
        ValueError: a table that is not [V, H], ids on another device, or a padding_idx outside the table.
        NotImplementedError: forward mode, or a second derivative.

    Example:
        >>> table = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> embedding([1, 0, 1], table).tolist()
        [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]
    """
    return run_embedding(token_ids, weight, check_ids, padding_idx, widen=False)


def embedding_fp32(
    token_ids: Any, weight: Array | np.ndarray, *, check_ids: bool = True, padding_idx: int | None = None
) -> Array:
    """Rows of a table widened exactly to float32.

    Arguments:
        token_ids: [...] of any integer dtype, as for `embedding`.
        weight: [V, H] bfloat16, float16 or float32.
        check_ids: as for `embedding`.
        padding_idx: as for `embedding`.

    Returns:
        [..., H] float32. Nothing is rounded; where a 16-bit table is widened, a NaN becomes 0x7FC00000. The
        gradient of weight is as for `embedding`.

    Raises:
        IndexError, TypeError, ValueError, NotImplementedError: as for `embedding`.

    Example:
        >>> embedding_fp32(1, jnp.array([[1.0], [3.0]], jnp.bfloat16)).tolist()
        [3.0]
    """
    return run_embedding(token_ids, weight, check_ids, padding_idx, widen=True)


def run_embedding(
    token_ids: Any,
    weight: Array | np.ndarray,
    check_ids: bool,
    padding_idx: int | None,
    widen: bool,
    implementation: str = "",
    scale: float | None = None,
) -> Array:
    """Both paths, by a named implementation or, with the empty name, the device's own.

    scale: what rows are multiplied by, a float32 number, or None; docs/tables.md has its rounding.
    """
    check_floats("weight", weight, "[V, H]", 2)
    check_same_device(weight, token_ids=token_ids)
    if weight.shape[0] > 2**31 - 1:
        raise ValueError(f"weight has {weight.shape[0]} rows; expected fewer than 2^31: shard the table")
    if implementation == "pallas" and (reason := why_not(weight)):
        raise ValueError(f"implementation 'pallas' of embedding cannot serve the call: {reason}; use 'gather'")
    padding_idx = as_padding_idx(padding_idx, weight.shape[0])
    ids = as_token_ids(token_ids, weight.shape[0], check_ids)
    # XLA puts the product by a scale into its own gather.
    implementation = implementation or ("gather" if scale is not None else default_implementation(weight))
    operator = _operator(widen, implementation, weight.dtype, padding_idx, scale)
    return operator(ids.reshape(-1), jnp.asarray(weight)).reshape(*ids.shape, weight.shape[1])


@cache
def _operator(
    widen: bool, implementation: str, dtype: Any, padding_idx: int | None, scale: float | None
) -> Callable[..., Array]:
    """int32 ids [N], weight [V, H] -> rows [N, H], with the gradient of weight."""

    def rows(ids: Array, weight: Array) -> Array:
        return _rows(ids, weight, widen, implementation, scale)

    return differentiable(rows, (None, term(jnp.dtype(jnp.float32 if widen else dtype), padding_idx, scale)))


def default_implementation(weight: Any) -> str:
    """Pallas on Hopper and newer GPUs for the widths it takes, else the plain gather."""
    return "pallas" if has_pallas() and why_not(weight) is None else "gather"


def why_not(weight: Any) -> str | None:
    """The reason why the Pallas kernel cannot serve a table [V, H], None where it can."""
    from rlk_jax.embedding_pallas import why_not

    return why_not(weight)


@partial(jax.jit, static_argnums=(2, 3, 4))
def _rows(ids: Array, weight: Array, widen: bool, implementation: str, scale: float | None) -> Array:
    rows = _batched(implementation)(ids, weight)
    if scale is not None:
        return scaled(rows, scale, jnp.float32 if widen else weight.dtype)
    return widened(rows) if widen else rows


@cache
def _batched(implementation: str) -> Callable[..., Array]:
    @jax.custom_batching.custom_vmap
    def rows(ids: Array, weight: Array) -> Array:
        if implementation == "gather":
            return gather(ids, weight)
        from rlk_jax.embedding_pallas import gather_pallas

        def pallas(ids: Array, weight: Array) -> Array:
            return gather_pallas(ids.reshape(-1), weight).reshape(*ids.shape, weight.shape[1])

        return lax.platform_dependent(ids, weight, cuda=pallas, default=gather)

    @rows.def_vmap
    def rule(size: int, in_batched: list[bool], ids: Array, weight: Array) -> tuple[Array, bool]:
        """A batch of ids is more ids; a batch of tables is taken table by table."""
        if not in_batched[1]:
            return rows(ids, weight), True
        if not in_batched[0]:
            return lax.map(lambda table: rows(ids, table), weight), True
        return lax.map(lambda pair: rows(*pair), (ids, weight)), True

    return rows


def gather(ids: Array, weight: Array) -> Array:
    """The plain gather on any device: int32 ids, -1 for a bad one, [V, H] -> [..., H]."""
    return lax.bitcast_convert_type(bits_of_rows(ids, weight, QUIET_NAN[jnp.dtype(weight.dtype).name]), weight.dtype)


def bits_of_rows(ids: Array, weight: Array, other: int) -> Array:
    """The bits of rows, and `other` for the row of an id that is -1."""
    bits = bits_of(weight)
    if weight.shape[0] == 0:
        return jnp.full((*ids.shape, weight.shape[1]), jnp.array(other, bits.dtype))
    return or_else(bits.at[jnp.maximum(ids, 0)].get(mode="promise_in_bounds"), ids, other)


def or_else(rows: Array, ids: Array, other: int) -> Array:
    """The bits of rows, replaced where the id is -1.

    By masks made of the sign of the id. A select would do, but on CPUs with bfloat16 instructions LLVM moves a select
    of bits to the float type, where its store flushes subnormals.
    """
    bad = (ids >> 31).astype(rows.dtype)[..., None]
    return (rows & ~bad) | (jnp.array(other, rows.dtype) & bad)


def widened(rows: Array) -> Array:
    """Any float type to float32, exactly; a NaN that is widened becomes the quiet NaN."""
    return rows if rows.dtype == jnp.float32 else narrowed(widened_exactly(rows), jnp.float32)
