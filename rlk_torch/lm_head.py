"""The LM head: logits that depend on one hidden row and one weight row, and on nothing else.

Section 4 of docs/contract.md. The twin is rlk_jax/lm_head.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned, align
from rlk_torch.checks import check_digits, check_floats, check_lm_head, check_same_device
from rlk_torch.differentiable import differentiable, more_rows
from rlk_torch.floats import flushed, narrowed
from rlk_torch.lm_head_grad import aligned_hidden_gradient, bias_gradient, hidden_gradient, weight_gradient
from rlk_torch.products import LONGEST_INT32, default_implementation, rounded_products
from rlk_torch.quantized import QuantizedTable

_BLOCK_LOGITS = 2**17  # logits made at a time: their integers stay in the cache
_BLOCK_WEIGHTS = 2**22  # weights aligned at a time, whatever the vocab


def lm_head(
    hidden: Tensor, weight: Tensor | Aligned | QuantizedTable, bias: Tensor | None = None, *, digits: int | None = None
) -> Tensor:
    """Logits by exact integer dot products and one rounding, in hidden's dtype.

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32, any strides.
        weight: [V, K] of any of these types, a `QuantizedTable`, or `align(weight, digits)`.
        bias: [V] of any of these types, or None.
        digits: 2 (coarse), 3 or 4; None means 3, or 4 where hidden is float32.

    Returns:
        [..., V] in hidden's dtype: the dot product rounded once to float32 (flushed to +0 below 2^-126),
        plus the bias in float32, rounded once to the output type. A row that is not finite gives NaN;
        every NaN is the positive quiet one.

    Gradients of hidden, weight and bias are offered in reverse mode, whatever the digits: each is one exact sum
    over the vocab or over all rows of the batch, of integers of 4 digits, rounded once to float32 and once to its
    argument's dtype.

    Raises:
        TypeError: another dtype, or digits that are no integer.
        ValueError: shapes that do not meet, digits outside 2, 3, 4 or other than those of an `Aligned`
            weight, arguments on several devices.
        NotImplementedError: forward mode, a second derivative, or the gradient of an `Aligned` or `QuantizedTable`.

    Example:
        >>> lm_head(torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.5], [0.0, -1.0]]))
        tensor([ 2., -2.])
    """
    digits = default_digits(hidden) if digits is None else digits
    return run_lm_head(hidden, weight, bias, digits, getattr(hidden, "dtype", torch.float32))


def lm_head_fp32(
    hidden: Tensor, weight: Tensor | Aligned | QuantizedTable, bias: Tensor | None = None, *, digits: int = 4
) -> Tensor:
    """Ground-truth logits in float32.

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32, any strides.
        weight: [V, K] of any of these types, a `QuantizedTable`, or `align(weight, digits)`.
        bias: [V] of any of these types, or None.
        digits: 2, 3 or 4.

    Returns:
        [..., V] float32, rounded as `lm_head` says, the output rounding being none. Gradients as for `lm_head`.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `lm_head`.

    Example:
        >>> lm_head_fp32(torch.tensor([1.0, 2.0]).bfloat16(), torch.tensor([[1.0, 0.5]]))
        tensor([2.])
    """
    return run_lm_head(hidden, weight, bias, digits, torch.float32)


def default_digits(hidden: Any) -> int:
    """3, or 4 where hidden is float32."""
    return 4 if getattr(hidden, "dtype", None) == torch.float32 else 3


def run_lm_head(
    hidden: Tensor,
    weight: Tensor | Aligned | QuantizedTable,
    bias: Tensor | None,
    digits: int,
    dtype: torch.dtype,
    implementation: str = "",
) -> Tensor:
    """Both paths, by a named implementation or, with the empty name, the device's own."""
    if isinstance(weight, QuantizedTable):
        from rlk_torch.quantized_head import run_quantized  # made of what is below

        return run_quantized(hidden, weight, bias, digits, dtype, implementation)
    check_call(hidden, weight, bias, digits)
    if isinstance(weight, Aligned):
        parts = (weight.planes, weight.exponent, weight.nonfinite, weight.origin)
        return _forward_aligned(hidden, *parts, bias, dtype, implementation)
    return _forward(hidden, weight, bias, digits, dtype, implementation)


def local_logits(
    hidden: Tensor, weight: Tensor | Aligned, bias: Tensor | None, digits: int, dtype: torch.dtype
) -> Tensor:
    """The operators by themselves, of arguments that were checked, for what has gradients of its own."""
    if isinstance(weight, Aligned):
        return _lm_head_aligned(hidden, weight.planes, weight.exponent, weight.nonfinite, None, bias, dtype, "")
    return _lm_head(hidden, weight, bias, digits, dtype, "")


def check_call(hidden: Tensor, weight: Tensor | Aligned, bias: Tensor | None, digits: int) -> None:
    """Dtypes, shapes, digits and devices of a call."""
    check_digits(digits)
    if not isinstance(weight, Aligned):
        check_floats("weight", weight, "[V, K]", 2)
    check_lm_head(hidden, (weight.shape[0], weight.shape[1]), bias)
    if isinstance(weight, Aligned) and weight.digits != digits:
        raise ValueError(
            f"weight is aligned with {weight.digits} digits and the call uses {digits}; expected one "
            f"number: align(weight, {digits}), or digits={weight.digits}"
        )
    check_same_device(weight.device, hidden=hidden, bias=bias)


@torch.library.custom_op("rlk_torch::lm_head", mutates_args=())
def _lm_head(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, digits: int, dtype: torch.dtype, implementation: str
) -> Tensor:
    """Plain weight: aligned block by block, so that no plane of the whole table exists."""

    def block(start: int, count: int) -> Aligned:
        return align(weight[start : start + count], digits)

    return _logits(hidden, weight.shape[0], digits, block, False, bias, dtype, implementation)


@torch.library.custom_op("rlk_torch::lm_head_aligned", mutates_args=())
def _lm_head_aligned(
    hidden: Tensor,
    planes: Tensor,
    exponent: Tensor,
    nonfinite: Tensor,
    origin: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    implementation: str,
) -> Tensor:
    """Weight aligned before: the parts of an `Aligned`."""
    weight = Aligned(planes, exponent, nonfinite, hidden.shape[-1])
    return _logits(hidden, planes.shape[1], len(planes), weight.rows, True, bias, dtype, implementation)


def _logits(
    hidden: Tensor,
    vocab: int,
    digits: int,
    block: Callable[[int, int], Aligned],
    whole: bool,
    bias: Tensor | None,
    dtype: torch.dtype,
    implementation: str,
) -> Tensor:
    """Tiles of [vocab block, row block]; `block(start, count)` gives aligned rows of the weight."""
    hidden = hidden.detach()
    if not hidden.is_contiguous():
        hidden = hidden.contiguous()
    count = hidden.shape[:-1].numel()
    logits = hidden.new_empty((*hidden.shape[:-1], vocab), dtype=dtype)
    out, hidden = logits.view(count, vocab), hidden.view(count, hidden.shape[-1])
    if logits.numel() == 0:
        return logits
    implementation = implementation or default_implementation(hidden.device, digits, hidden.shape[1])
    if implementation == "triton":
        if digits * hidden.shape[1] > LONGEST_INT32:
            raise ValueError(
                f"implementation 'triton' of lm_head takes digits * K up to {LONGEST_INT32} and got "
                f"{digits} * {hidden.shape[1]}; use 'float64'"
            )
        from rlk_torch.lm_head_triton import logits_triton

        logits_triton(hidden, vocab, digits, block, whole, bias, out)
        return logits
    rows = align(hidden, digits)

    def products(start: int, count: int, weight: Aligned) -> Tensor:
        return rounded_products(rows.rows(start, count), weight, implementation)

    fill(out, bias, block, products, _BLOCK_WEIGHTS // max(1, hidden.shape[-1]))
    return logits  # and no view of something else, so that callers may write into it


def fill(
    out: Tensor,
    bias: Tensor | None,
    block: Callable[[int, int], Any],
    products: Callable[[int, int, Any], Tensor],
    most: int,
) -> None:
    """Logits [N, V], not empty, in tiles of some rows of the weight, at most so many, and some of hidden.

    block: start and count of rows of the weight -> what `products` makes r of, with start and count of rows of hidden.
    """
    count, vocab = out.shape
    row_step = min(count, 512)
    step = max(1, min(_BLOCK_LOGITS // row_step, most))
    for start in range(0, vocab, step):
        stop = min(start + step, vocab)
        weight = block(start, stop - start)
        for first in range(0, count, row_step):
            last = min(first + row_step, count)
            r = products(first, last - first, weight)
            out[first:last, start:stop] = finished(r, bias, slice(start, stop), out.dtype).T


def finished(r: Tensor, bias: Tensor | None, rows: slice, dtype: torch.dtype) -> Tensor:
    """Add the bias, round to the output type, make every NaN the quiet one. r: float32 [v, n]."""
    if bias is not None:
        r = flushed(r + flushed(bias.detach()[rows].float())[:, None])
    return narrowed(r, dtype)


@_lm_head.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, digits: int, dtype: torch.dtype, implementation: str
) -> Tensor:
    return hidden.new_empty((*hidden.shape[:-1], weight.shape[0]), dtype=dtype)


@_lm_head_aligned.register_fake
def _(
    hidden: Tensor,
    planes: Tensor,
    exponent: Tensor,
    nonfinite: Tensor,
    origin: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    implementation: str,
) -> Tensor:
    return hidden.new_empty((*hidden.shape[:-1], planes.shape[1]), dtype=dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    hidden, weight, bias, _, _, implementation = inputs
    save_for_gradients(ctx, hidden, weight, (), bias, implementation)


def _save_aligned(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    hidden, planes, exponent, nonfinite, _, bias, _, implementation = inputs
    save_for_gradients(ctx, hidden, None, (planes, exponent, nonfinite), bias, implementation)


def save_for_gradients(
    ctx: Any,
    hidden: Tensor,
    weight: Tensor | None,
    aligned: tuple[Tensor, ...],
    bias: Tensor | None,
    implementation: str,
) -> None:
    """Hidden is kept for the gradient of weight, weight for that of hidden: each only where it is asked for."""
    wanted = ctx.needs_input_grad
    kept = [hidden if weight is not None and wanted[1] else None, weight if wanted[0] else None]
    ctx.save_for_backward(*kept, *(aligned if wanted[0] else ()))
    ctx.dtypes = hidden.dtype, hidden.dtype if weight is None else weight.dtype, None if bias is None else bias.dtype
    ctx.length, ctx.implementation = hidden.shape[-1], implementation


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    hidden, weight = ctx.saved_tensors[:2]
    wanted, (of_hidden, of_weight, of_bias) = ctx.needs_input_grad, ctx.dtypes
    return (
        hidden_gradient(grad, weight, of_hidden, ctx.implementation) if wanted[0] else None,
        weight_gradient(grad, hidden, of_weight, ctx.implementation) if wanted[1] else None,
        bias_gradient(grad, of_bias) if wanted[2] else None,
        *(None, None, None),
    )


def _backward_aligned(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The origin gets an empty gradient: it leads to where the gradient of an `Aligned` is refused."""
    wanted, (of_hidden, _, of_bias) = ctx.needs_input_grad, ctx.dtypes
    parts = ctx.saved_tensors[2:]
    return (
        aligned_hidden_gradient(grad, *parts, ctx.length, of_hidden, ctx.implementation) if wanted[0] else None,
        *(None, None, None),
        grad.new_empty(0, dtype=torch.float32) if wanted[4] else None,
        bias_gradient(grad, of_bias) if wanted[5] else None,
        *(None, None),
    )


_forward = differentiable("lm_head", _lm_head, _save, _backward, more_rows)
_forward_aligned = differentiable("lm_head", _lm_head_aligned, _save_aligned, _backward_aligned, more_rows)
