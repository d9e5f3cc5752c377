"""Rows of a table that stays in host memory, gathered to a device.

The bits are those of a table on the device. The twin is rlk_jax/host_rows.py.
"""

from typing import Any

import torch
from torch import Tensor

from rlk_torch.checks import as_int64, as_token_ids, outside, raise_bad_id
from rlk_torch.devices import has_triton
from rlk_torch.differentiable import more_rows
from rlk_torch.embedding import gather, widened
from rlk_torch.floats import scaled
from rlk_torch.refusal import without_gradient


def host_rows(
    token_ids: Any, weight: Tensor, device: torch.device, check_ids: bool, widen: bool, scale: float | None
) -> Tensor:
    """[...] ids, [V, H] in host memory -> [..., H] on the device, the bits that `run_embedding` gives."""
    ids = as_token_ids(token_ids, device, weight.shape[0], check_ids, beside="the table's result")
    return _forward(ids, weight, check_ids and not torch.compiler.is_compiling(), widen, scale)


def pinned(x: Tensor, device: torch.device) -> Tensor:
    """x in host memory that a CUDA device can read, x itself where it is; plain host memory for the CPU."""
    x = x.detach().cpu()
    return x if device.type == "cpu" or x.is_pinned() else x.pin_memory()


def reads_host_memory(device: torch.device, *arrays: Tensor) -> bool:
    """The device's Triton kernel reads these arrays where they are."""
    return has_triton(device) and all(x.is_pinned() for x in arrays)


def mechanism(device: torch.device, *arrays: Tensor) -> str:
    """What gathers these arrays, in a few words."""
    if reads_host_memory(device, *arrays):
        return f"a Triton kernel on {device} that reads pinned host memory"
    return "a gather on the host" + ("" if device.type == "cpu" else f", its rows copied to {device}")


@torch.library.custom_op("rlk_torch::embedding_host", mutates_args=())
def _host_rows(token_ids: Tensor, weight: Tensor, check_ids: bool, widen: bool, scale: float | None) -> Tensor:
    """On the device of the ids."""
    on_device = reads_host_memory(token_ids.device, weight)
    if check_ids or not on_device:
        ids = as_int64(token_ids if on_device else token_ids.cpu())
        bad = outside(ids, weight.shape[0])
        if check_ids and bad.any():
            raise_bad_id(token_ids, weight.shape[0], bad)
    if on_device:
        from rlk_torch.embedding_triton import gather_triton

        return gather_triton(token_ids, weight, widen, scale)
    rows = gather(ids, bad, weight).to(token_ids.device)
    if scale is not None:
        return scaled(rows, scale, torch.float32 if widen else weight.dtype)
    return widened(rows) if widen else rows


@_host_rows.register_fake
def _(token_ids: Tensor, weight: Tensor, check_ids: bool, widen: bool, scale: float | None) -> Tensor:
    dtype = torch.float32 if widen else weight.dtype
    return token_ids.new_empty((*token_ids.shape, weight.shape[1]), dtype=dtype)


_host_rows.register_vmap(more_rows(_host_rows))
_forward = without_gradient(
    _host_rows,
    'the gradient of a table in host memory is not offered, it is a constant: use residency="device" to train it',
)
