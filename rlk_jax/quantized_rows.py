"""Rows of quantized tables, gathered and dequantized with exactly one rounding.

The twin is rlk_torch/quantized_rows.py.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from rlk_jax.checks import as_token_ids, check_same_device
from rlk_jax.floats import QUIET_NAN, bits_of, scaled
from rlk_jax.host_rows import gathered
from rlk_jax.quantized import NO_GRADIENT, QuantizedTable, constant, factors, rounded
from rlk_jax.refusal import without_gradient


def quantized_rows(
    token_ids: Any, table: QuantizedTable, check_ids: bool, dtype: DTypeLike, scale: float | None
) -> Array:
    """[...] ids -> dequantized rows [..., H] of a table on a device."""
    check_same_device(table.values, token_ids=token_ids)
    ids = as_token_ids(token_ids, table.shape[0], check_ids)
    return _rows(ids, *constant(table.values, table.scale), jnp.dtype(dtype), scale)


def host_quantized_rows(
    token_ids: Any,
    table: QuantizedTable,
    device: jax.Device | None,
    check_ids: bool,
    dtype: DTypeLike,
    scale: float | None,
    origin: Array | np.ndarray,
) -> Array:
    """The same of a table of NumPy arrays, which stays in host memory. The arguments are those of `host_rows`."""
    parts = [np.asarray(table.values), np.asarray(table.scale)]
    ids, (values, scales) = gathered(token_ids, parts, device, check_ids)
    return _finished(ids, _refused(origin, values), scales, table.scale.dtype, jnp.dtype(dtype), scale)


def _with_origin(origin: Array, rows: Array) -> Array:
    return rows


_refused = without_gradient(_with_origin, NO_GRADIENT)


@partial(jax.jit, static_argnums=(3, 4))
def _rows(ids: Array, values: Array, scale: Array, dtype: Any, times: float | None) -> Array:
    if not len(values):  # an empty table has no row to read in place of a bad one
        values, scale = jnp.zeros((1, values.shape[1]), jnp.int8), jnp.zeros(1, scale.dtype)
    at = jnp.maximum(ids, 0)
    some = [bits_of(x).at[at].get(mode="promise_in_bounds") for x in (values, scale)]
    return _finished(ids, *some, scale.dtype, dtype, times)


@partial(jax.jit, static_argnums=(3, 4, 5))
def _finished(ids: Array, values: Array, scale: Array, kind: Any, dtype: Any, times: float | None) -> Array:
    """The bits of rows [..., H] and of their scales [...] of some dtype, dequantized; NaN for ids that are -1.

    times: what the float32 row is multiplied by before it is rounded to dtype.
    """
    factor = bits_of(factors(lax.bitcast_convert_type(scale, kind)))
    factor = lax.bitcast_convert_type(jnp.where(ids < 0, jnp.uint32(QUIET_NAN["float32"]), factor), jnp.float32)
    values = lax.bitcast_convert_type(values, jnp.int8)
    if times is None:
        return rounded(values, factor[..., None], dtype)
    return scaled(rounded(values, factor[..., None], jnp.float32), times, dtype)
