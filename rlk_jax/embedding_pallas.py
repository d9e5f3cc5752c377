"""The gather on NVIDIA GPUs (Hopper and newer), in Pallas. The reference is `gather` in embedding.py.

Rows travel through shared memory by asynchronous copies, several in flight a block; no element passes a
register. Written for Mosaic GPU: `pl.pallas_call` changes its GPU backend between JAX releases, this does not.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from rlk_jax.floats import QUIET_NAN

_LANES = 128  # a row is copied as [H / 128, 128], or 256 where it can be: the most that a dimension may hold
_BLOCKS = 264  # two blocks for each of 132 multiprocessors
_SLOTS = 3  # rows in flight a block; more are slower
_SHARED = 200 * 1024  # bytes of shared memory a block may take


def why_not(weight: Any) -> str | None:
    """The reason why a table [V, H] cannot be served, None where it can."""
    width = weight.shape[1]
    if width == 0 or width % _LANES:
        return f"weight has width {width} and the kernel copies rows of a multiple of {_LANES} elements"
    if width // _LANES > 256 or 2 * width * weight.dtype.itemsize > _SHARED:
        return f"weight has width {width} and two rows of it do not fit a block's shared memory"
    return None


def gather_pallas(ids: Array, weight: Array, interpret: Any = False) -> Array:
    """int32 ids [N], -1 for a bad one, and [V, H] -> [N, H], the bits of the rows or the quiet NaN."""
    tokens, (vocab, width) = ids.shape[0], weight.shape
    if tokens == 0:
        return jnp.zeros((0, width), weight.dtype)
    poison = lax.bitcast_convert_type(
        jnp.full((1, width), QUIET_NAN[weight.dtype.name], f"uint{8 * weight.dtype.itemsize}"),
        weight.dtype,
    )
    if vocab == 0:
        return jnp.broadcast_to(poison, (tokens, width))
    blocks = min(tokens, _BLOCKS)
    lanes = 2 * _LANES if width % (2 * _LANES) == 0 else _LANES
    row = (width // lanes, lanes)
    slots = max(2, min(_SLOTS, _SHARED // (width * weight.dtype.itemsize)))
    kernel = plgpu.kernel(
        _body(tokens, blocks, slots),
        out_type=jax.ShapeDtypeStruct((tokens, *row), weight.dtype),
        grid=(blocks,),
        grid_names=("block",),
        scratch_types=[
            plgpu.SMEM((slots, *row), weight.dtype),
            plgpu.Barrier(num_arrivals=1, num_barriers=slots),
        ],
        interpret=interpret,
    )
    return kernel(ids, weight.reshape(vocab, *row), poison.reshape(1, *row)).reshape(tokens, width)


def _body(tokens: int, blocks: int, slots: int) -> Any:
    def body(ids: Any, weight: Any, poison: Any, out: Any, shared: Any, arrived: Any) -> None:
        block = lax.axis_index("block")
        count = (tokens - block + blocks - 1) // blocks  # tokens block, block + blocks, ...

        def peek(i: Array) -> Array:
            return ids[jnp.minimum(block + i * blocks, tokens - 1)]

        def start(i: Array, token: Array) -> None:
            @pl.when(i < count)
            def _() -> None:
                slot = lax.rem(i, jnp.int32(slots))

                @pl.when(token >= 0)
                def _() -> None:
                    plgpu.copy_gmem_to_smem(weight.at[token], shared.at[slot], arrived.at[slot])

                @pl.when(token < 0)
                def _() -> None:
                    plgpu.copy_gmem_to_smem(poison.at[0], shared.at[slot], arrived.at[slot])

        def step(i: Array, token: Array) -> Array:
            slot = lax.rem(i, jnp.int32(slots))
            plgpu.barrier_wait(arrived.at[slot])
            plgpu.copy_smem_to_gmem(shared.at[slot], out.at[block + i * blocks])
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # the slot before this one is free again
            start(i + slots - 1, token)
            return peek(i + slots)  # a step ahead, so that no copy waits for its id

        for i in range(slots - 1):
            start(jnp.int32(i), peek(jnp.int32(i)))
        lax.fori_loop(jnp.int32(0), count, step, peek(jnp.int32(slots - 1)))
        plgpu.wait_smem_to_gmem(0)

    return body
