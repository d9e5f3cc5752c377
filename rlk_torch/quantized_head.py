"""The LM head of a quantized table: that of its float32 rows, which exist a block at a time at most.

The twin is rlk_jax/quantized_head.py.
"""

from typing import Any

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned
from rlk_torch.checks import check_digits, check_lm_head, check_same_device
from rlk_torch.differentiable import differentiable, gradient_only, more_rows
from rlk_torch.lm_head import _logits
from rlk_torch.lm_head_grad import bias_gradient, grad_hidden
from rlk_torch.quantized import NO_GRADIENT, QuantizedTable
from rlk_torch.quantized_alignment import aligned_parts


def run_quantized(
    hidden: Tensor, weight: QuantizedTable, bias: Tensor | None, digits: int, dtype: torch.dtype, implementation: str
) -> Tensor:
    """`run_lm_head` of a quantized table."""
    check_digits(digits)
    check_lm_head(hidden, weight.shape, bias)
    check_same_device(weight.device, hidden=hidden, bias=bias)
    return _forward(hidden, weight.values, weight.scale, bias, digits, dtype, implementation)


@torch.library.custom_op("rlk_torch::lm_head_quantized", mutates_args=())
def _lm_head_quantized(
    hidden: Tensor,
    values: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    digits: int,
    dtype: torch.dtype,
    implementation: str,
) -> Tensor:
    """Aligned block by block, so that no plane of the whole table exists."""

    def block(start: int, count: int) -> Aligned:
        part = slice(start, start + count)
        planes, exponent, nonfinite, _ = aligned_parts(values[part], scale[part], digits)
        return Aligned(planes, exponent, nonfinite, values.shape[1])

    return _logits(hidden, len(values), digits, block, False, bias, dtype, implementation)


@_lm_head_quantized.register_fake
def _(
    hidden: Tensor,
    values: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    digits: int,
    dtype: torch.dtype,
    implementation: str,
) -> Tensor:
    return hidden.new_empty((*hidden.shape[:-1], len(values)), dtype=dtype)


@torch.library.custom_op("rlk_torch::lm_head_grad_hidden_quantized", mutates_args=())
def _hidden_gradient(
    grad_logits: Tensor, values: Tensor, scale: Tensor, dtype: torch.dtype, implementation: str
) -> Tensor:
    rows = grad_logits.detach().reshape(grad_logits.shape[:-1].numel(), len(values))
    out = grad_hidden(rows, QuantizedTable(values, scale.detach()), dtype, implementation)
    return out.view(*grad_logits.shape[:-1], values.shape[1])


@_hidden_gradient.register_fake
def _(grad_logits: Tensor, values: Tensor, scale: Tensor, dtype: torch.dtype, implementation: str) -> Tensor:
    return grad_logits.new_empty((*grad_logits.shape[:-1], values.shape[1]), dtype=dtype)


_hidden_gradient.register_vmap(more_rows(_hidden_gradient))
_gradient = gradient_only(_hidden_gradient, "lm_head")


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    hidden, values, scale, bias, _, _, ctx.implementation = inputs
    ctx.save_for_backward(*((values, scale) if ctx.needs_input_grad[0] else ()))
    ctx.dtypes = hidden.dtype, None if bias is None else bias.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    wanted, (of_hidden, of_bias) = ctx.needs_input_grad, ctx.dtypes
    if wanted[2]:
        raise NotImplementedError(NO_GRADIENT)
    return (
        _gradient(grad, *ctx.saved_tensors, of_hidden, ctx.implementation) if wanted[0] else None,
        *(None, None),
        bias_gradient(grad, of_bias) if wanted[3] else None,
        *(None, None, None),
    )


_forward = differentiable("lm_head", _lm_head_quantized, _save, _backward, more_rows)
