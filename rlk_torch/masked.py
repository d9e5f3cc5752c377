"""Sums and means of what a mask leaves, exact and rounded once, so that no layout of the batch changes a bit.

The aligned sum of section 6 of docs/contract.md. The twin is rlk_jax/masked.py.
"""

from typing import Any

import torch
from torch import Tensor

from rlk_torch.alignment import exponents, integers, largest
from rlk_torch.checks import check_floats, check_same_device, dtype_name
from rlk_torch.differentiable import differentiable, gradient_only, together
from rlk_torch.floats import SMALLEST_NORMAL, bits_of, magnitude, narrowed
from rlk_torch.products import rounded_sum

_WINDOW = 27


def masked_sum(values: Tensor, mask: Tensor, *, axis: int | None = None) -> Tensor:
    """The sum of the values where the mask is true.

    Arguments:
        values: bfloat16, float16 or float32 of any shape; what is masked out does not count, whatever it is.
        mask: bool of the same shape.
        axis: the one to sum along; None sums all.

    Returns:
        float32, without the axis: the exact sum of the values, each rounded to 27 bits below the largest, rounded once;
        below 2^-126, and where nothing is masked in, +0. NaN where a value that counts is not finite.

    The gradient of values is the upstream gradient where the mask is true, and +0 elsewhere.

    Raises:
        TypeError: another dtype, or an axis that is no integer.
        ValueError: shapes that differ, an axis that is not there, arguments on several devices.
        NotImplementedError: forward mode, or a second derivative.

    Example:
        >>> masked_sum(torch.tensor([1.0, 2.0, float("nan")]), torch.tensor([True, True, False]))
        tensor(3.)
    """
    return _reduced("masked_sum", values, mask, axis)


def masked_mean(values: Tensor, mask: Tensor, *, axis: int | None = None) -> Tensor:
    """The mean of the values where the mask is true.

    Arguments:
        values: bfloat16, float16 or float32 of any shape; what is masked out does not count, whatever it is.
        mask: bool of the same shape.
        axis: the one to average along; None averages all.

    Returns:
        float32, without the axis: the exact sum as in `masked_sum` over the number of true elements, rounded once; NaN
        where there are none.

    The gradient of values is the upstream gradient over that number, rounded once, where the mask is true, and +0
    elsewhere.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `masked_sum`.

    Example:
        >>> masked_mean(torch.tensor([1.0, 2.0, float("nan")]), torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    return _reduced("masked_mean", values, mask, axis)


def _reduced(name: str, values: Tensor, mask: Tensor, axis: int | None) -> Tensor:
    check_floats("values", values, "[...]")
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"mask is of type {type(mask).__name__}; expected an array of the values' shape: convert it first"
        )
    if mask.dtype != torch.bool:
        raise TypeError(f"mask is {dtype_name(mask)}; expected bool, of the values' shape: compare it with 0 first")
    if mask.shape != values.shape:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} and values {tuple(values.shape)}; expected one shape: "
            "broadcast the mask"
        )
    check_same_device(values.device, "values", mask=mask)
    if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
        raise TypeError(f"axis is of type {type(axis).__name__}; expected an integer or None, the axis to leave out")
    if axis is None:
        values, mask, axis = values.reshape(-1), mask.reshape(-1), 0
    if not -values.ndim <= axis < values.ndim:
        raise ValueError(f"axis is {axis} and values has shape {tuple(values.shape)}; expected one of its axes or None")
    return _FORWARD[name](values.movedim(axis, -1), mask.movedim(axis, -1))


def _reduce(values: Tensor, mask: Tensor, mean: bool) -> Tensor:
    """[..., L] -> [...] float32."""
    if values.shape[-1] == 0:
        values, mask = (x.new_zeros((*x.shape[:-1], 1)) for x in (values, mask))
    shape, kept = values.shape[:-1], mask.reshape(-1, mask.shape[-1])
    members = values.detach().reshape(kept.shape).masked_fill(~kept, 0.0)
    exponent, nonfinite = exponents(largest(members, 1))
    total = integers(members, exponent[:, None], nonfinite[:, None], 4).sum(1, dtype=torch.int64)
    if not mean:
        return rounded_sum(total, exponent, nonfinite).view(shape)
    count = kept.sum(1)
    return _quotient(total, count, exponent, nonfinite | (count == 0)).view(shape)


def _quotient(total: Tensor, count: Tensor, exponent: Tensor, nonfinite: Tensor) -> Tensor:
    """`rounded_sum` of total / count: |total| < 2^62, count < 2^35, 1 for 0.

    The dividend is moved up to 61 or 62 bits, so that the quotient has 26 and more; what is left only sets its last
    bit, which lies under every tie of 24 bits.
    """
    size = total.abs()
    shift = 61 - ((size.double().view(torch.int64) >> 52) - 1023).clamp(min=0)
    dividend = size << shift
    quotient = torch.div(dividend, count.clamp(min=1), rounding_mode="floor")
    quotient |= (quotient * count.clamp(min=1) != dividend).long()
    return rounded_sum(torch.where(total < 0, -quotient, quotient), exponent - shift, nonfinite)


def _spread(grad: Tensor, mask: Tensor, dtype: torch.dtype, mean: bool) -> Tensor:
    """[...] -> [..., L] in dtype."""
    share = grad.detach().float()
    if mean:
        size = magnitude(share)
        normal = size >= SMALLEST_NORMAL
        significand = torch.where(normal, (size & 0x7FFFFF) | SMALLEST_NORMAL, size).long()
        signed = torch.where(bits_of(share) < 0, -significand, significand)
        exponent = torch.where(normal, (size >> 23) - 150, -149) + _WINDOW
        quotient = _quotient(signed, mask.sum(-1), exponent, torch.zeros_like(normal))
        share = torch.where(share.isfinite(), quotient, share)
    return narrowed(torch.where(mask, share[..., None], 0.0), dtype)


@torch.library.custom_op("rlk_torch::masked_sum", mutates_args=())
def _sum(values: Tensor, mask: Tensor) -> Tensor:
    return _reduce(values, mask, mean=False)


@torch.library.custom_op("rlk_torch::masked_mean", mutates_args=())
def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return _reduce(values, mask, mean=True)


@torch.library.custom_op("rlk_torch::masked_sum_grad", mutates_args=())
def _sum_gradient(grad: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    return _spread(grad, mask, dtype, mean=False)


@torch.library.custom_op("rlk_torch::masked_mean_grad", mutates_args=())
def _mean_gradient(grad: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    return _spread(grad, mask, dtype, mean=True)


@_sum.register_fake
@_mean.register_fake
def _(values: Tensor, mask: Tensor) -> Tensor:
    return values.new_empty(values.shape[:-1], dtype=torch.float32)


@_sum_gradient.register_fake
@_mean_gradient.register_fake
def _(grad: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    return grad.new_empty(mask.shape, dtype=dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, mask = inputs
    ctx.save_for_backward(mask)
    ctx.dtype = values.dtype


def _with_gradient(name: str, operator: Any, gradient: Any) -> Any:
    gradient.register_vmap(together(2)(gradient))
    refused = gradient_only(gradient, name)

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return refused(grad, *ctx.saved_tensors, ctx.dtype), None

    return differentiable(name, operator, _save, backward, together(2))


_FORWARD = {
    "masked_sum": _with_gradient("masked_sum", _sum, _sum_gradient),
    "masked_mean": _with_gradient("masked_mean", _mean, _mean_gradient),
}
