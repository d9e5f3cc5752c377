"""The gather of triton_gather.py in Pallas: as it was first ported, and mended. One program copies one row."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def first_port(token_ids: Array, weight: Array) -> Array:
    """Right for every id of the vocab. Any other id gets a row all the same."""
    return _gather(_copy, token_ids, weight)


@jax.custom_vjp
def gather(token_ids: Array, weight: Array) -> Array:
    """[...] of any integer dtype, [V, H] -> [..., H]. An id that is not in the vocab gives a row of NaN."""
    return _gather(_copy_or_poison, token_ids, weight)


def _no_gradients(*arguments: Any) -> Any:
    raise NotImplementedError("this gather has no gradients")  # and not zeros, which a bitcast gives in silence


gather.defvjp(_no_gradients, _no_gradients)


# Kernels ---------------------------------------------------------------------------------------------------
def _copy(token: Any, poison: int, ids: Any, weight: Any, out: Any) -> None:
    out[token] = weight[ids[token]]  # the mask got lost: XLA clamps such an index, and a GPU reads what lies there


def _copy_or_poison(token: Any, poison: int, ids: Any, weight: Any, out: Any) -> None:
    row = ids[token]
    inside = (row >= 0) & (row < weight.shape[0])

    @pl.when(inside)
    def _() -> None:
        out[token] = weight[row]

    @pl.when(jnp.logical_not(inside))
    def _() -> None:
        out[token] = jnp.full(weight.shape[1:], poison, weight.dtype)


# What runs them --------------------------------------------------------------------------------------------
@partial(jax.jit, static_argnums=0)
def _gather(kernel: Any, token_ids: Array, weight: Array) -> Array:
    """The rows as integers: XLA on CPUs may change the bits of a NaN that it moves as a bfloat16."""
    integers = np.dtype(f"uint{8 * weight.dtype.itemsize}")
    poison = int(np.array(np.nan, weight.dtype).view(integers))
    ids, bits = token_ids.reshape(-1).astype(jnp.int32), lax.bitcast_convert_type(weight, integers)
    out = jax.ShapeDtypeStruct((len(ids), weight.shape[1]), integers)
    if 0 in out.shape:
        rows = jnp.zeros(out.shape, integers)
    else:
        run = interpreted if jax.default_backend() == "cpu" else on_gpu
        rows = run(partial(kernel, poison=poison), out, ids, bits)
    return lax.bitcast_convert_type(rows, weight.dtype).reshape(*token_ids.shape, weight.shape[1])


def on_gpu(kernel: Any, out: Any, ids: Array, bits: Array) -> Array:
    """Mosaic GPU: Hopper and newer, and widths that are multiples of 128."""

    def body(ids: Any, bits: Any, out: Any) -> None:
        kernel(lax.axis_index("token"), ids=ids, weight=bits, out=out)

    rows: Array = plgpu.kernel(body, out_type=out, grid=ids.shape, grid_names=("token",))(ids, bits)
    return rows


def interpreted(kernel: Any, out: Any, ids: Array, bits: Array) -> Array:
    """The same kernel as XLA code, which knows nothing of a GPU's memory."""

    def body(ids: Any, bits: Any, out: Any) -> None:
        kernel(pl.program_id(0), ids=ids, weight=bits, out=out)

    rows: Array = pl.pallas_call(body, out_shape=out, grid=ids.shape, interpret=True)(ids, bits)
    return rows
