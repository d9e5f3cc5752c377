"""Rows of quantized tables, gathered and dequantized with exactly one rounding.

The twin is rlk_jax/quantized_rows.py.
"""

from typing import Any

import torch
from torch import Tensor

from rlk_torch.checks import as_int64, as_token_ids, outside, raise_bad_id
from rlk_torch.devices import has_triton
from rlk_torch.differentiable import more_rows
from rlk_torch.floats import scaled
from rlk_torch.host_rows import reads_host_memory
from rlk_torch.quantized import NO_GRADIENT, QuantizedTable, dequantize, factors
from rlk_torch.refusal import without_gradient


def quantized_rows(
    token_ids: Any,
    table: QuantizedTable,
    device: torch.device,
    check_ids: bool,
    dtype: torch.dtype,
    scale: float | None,
) -> Tensor:
    """[...] ids -> dequantized rows [..., H] on the device; the table is there too, or in host memory."""
    ids = as_token_ids(token_ids, device, table.shape[0], check_ids, beside="the table's result")
    readable = check_ids and not torch.compiler.is_compiling()
    return _forward(ids, table.values, table.scale, readable, dtype, scale)


def read_by_triton(device: torch.device, values: Tensor, scale: Tensor) -> bool:
    """The device's Triton kernel reads the parts of a table where they are."""
    return has_triton(device) if values.device == device else reads_host_memory(device, values, scale)


@torch.library.custom_op("rlk_torch::embedding_quantized", mutates_args=())
def _rows(
    token_ids: Tensor, values: Tensor, scale: Tensor, check_ids: bool, dtype: torch.dtype, times: float | None
) -> Tensor:
    """On the device of the ids. times: what the float32 row is multiplied by before it is rounded to dtype."""
    triton = read_by_triton(token_ids.device, values, scale)
    if check_ids or not triton:
        ids = as_int64(token_ids if triton else token_ids.to(values.device))
        bad = outside(ids, len(values))
        if check_ids and bad.any():
            raise_bad_id(token_ids, len(values), bad)
    if triton:
        from rlk_torch.quantized_triton import quantized_rows_triton

        return quantized_rows_triton(token_ids, values, scale.detach(), dtype, times)
    if not len(values):  # an empty table has no row to read in place of a bad one
        values, scale = values.new_zeros((1, values.shape[1])), scale.new_zeros(1)
    at = ids.masked_fill(bad, 0).reshape(-1)
    factor = factors(scale.detach()[at]).masked_fill(bad.reshape(-1), float("nan")).to(token_ids.device)
    rows = dequantize(values[at].to(token_ids.device), factor, dtype if times is None else torch.float32)
    rows = rows.view(*token_ids.shape, values.shape[1])
    return rows if times is None else scaled(rows, times, dtype)


@_rows.register_fake
def _(
    token_ids: Tensor, values: Tensor, scale: Tensor, check_ids: bool, dtype: torch.dtype, times: float | None
) -> Tensor:
    return token_ids.new_empty((*token_ids.shape, values.shape[1]), dtype=dtype)


_rows.register_vmap(more_rows(_rows))
_forward = without_gradient(_rows, NO_GRADIENT)
