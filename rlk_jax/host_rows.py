"""Rows of a table that stays in host memory, gathered to a device.

The bits are those of a table on the device. The twin is rlk_torch/host_rows.py.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rlk_jax.checks import as_token_ids, bad_id, dtype_name, from_numbers, not_integers
from rlk_jax.devices import device_of
from rlk_jax.embedding import widened
from rlk_jax.floats import QUIET_NAN, scaled
from rlk_jax.refusal import without_gradient


def host_rows(
    token_ids: Any,
    weight: np.ndarray,
    device: jax.Device | None,
    check_ids: bool,
    widen: bool,
    scale: float | None,
    origin: Array | np.ndarray,
) -> Array:
    """[...] ids, [V, H] in host memory -> [..., H] on the device, the bits that `run_embedding` gives.

    device: None for the default one. origin: without elements: through it a gradient finds what is to be refused.
    """
    _, (bits,) = gathered(token_ids, [weight], device, check_ids)
    return _finished(constant(origin, bits), weight.dtype, widen, scale)


def gathered(
    token_ids: Any, arrays: Sequence[np.ndarray], device: jax.Device | None, check_ids: bool
) -> tuple[Array, Sequence[Array]]:
    """int32 ids, -1 for a bad one, and the bits of rows of arrays [V, ...] in host memory, both on the device.

    The row of a bad id is the quiet NaN of a float array, else 0.
    """
    ids = as_host_ids(token_ids, len(arrays[0]), device, check_ids)
    unsigned = [x.view(f"uint{8 * x.dtype.itemsize}") for x in arrays]
    fills = [bits.dtype.type(QUIET_NAN.get(x.dtype.name, 0)) for x, bits in zip(arrays, unsigned, strict=True)]

    def rows(ids: Any) -> list[np.ndarray]:
        return [_taken(np.asarray(ids), bits, fill) for bits, fill in zip(unsigned, fills, strict=True)]

    if isinstance(ids, np.ndarray):
        return jax.device_put((ids, rows(ids)), device)
    shapes = [jax.ShapeDtypeStruct((*ids.shape, *bits.shape[1:]), bits.dtype) for bits in unsigned]
    return ids, jax.pure_callback(rows, shapes, ids, vmap_method="expand_dims")


def _taken(ids: np.ndarray, bits: np.ndarray, fill: Any) -> np.ndarray:
    if not len(bits):
        return np.full((*ids.shape, *bits.shape[1:]), fill)
    out = np.take(bits, np.maximum(ids, 0), axis=0)
    out[ids < 0] = fill
    return out


def as_host_ids(token_ids: Any, vocab: int, device: jax.Device | None, check_ids: bool) -> np.ndarray | Array:
    """int32 ids in host memory, -1 for one outside the table; traced ones as they are, on their device."""
    if isinstance(token_ids, jax.core.Tracer):
        return as_token_ids(token_ids, vocab, check_ids)
    got = device_of(token_ids)
    if device is not None and got is not None and got != device:
        raise ValueError(
            f"token_ids is on {got}, the table's result on {device}; expected one device: move one of them"
        )
    array = np.asarray(token_ids) if isinstance(token_ids, Array) else from_numbers(token_ids, vocab, check_ids)
    if array.dtype.kind not in "iu":
        raise TypeError(not_integers(dtype_name(array), "token_ids"))
    good = (array >= 0) & (array < vocab)
    if check_ids and not good.all():
        position = tuple(int(i) for i in np.argwhere(~good)[0])
        raise IndexError(bad_id(position, array[position], vocab, "token_ids"))
    ids = np.where(good, array, array.dtype.type(0)).astype(np.int32)
    return np.where(good, ids, np.int32(-1))  # no -1 in an unsigned type, which NumPy may refuse


def mechanism(device: jax.Device | None) -> str:
    """What gathers rows, in a few words."""
    where = "the default device" if device is None else str(device)
    return f"a NumPy gather on the host, its rows put on {where}; a callback in compiled code"


@partial(jax.jit, static_argnums=(1, 2, 3))
def _finished(bits: Array, dtype: Any, widen: bool, scale: float | None) -> Array:
    rows = lax.bitcast_convert_type(bits, dtype)
    if scale is not None:
        return scaled(rows, scale, jnp.float32 if widen else dtype)
    return widened(rows) if widen else rows


def _with_origin(origin: Array, rows: Array) -> Array:
    return rows


constant = without_gradient(
    _with_origin,
    'the gradient of a table in host memory is not offered, it is a constant: use residency="device" to train it',
)
