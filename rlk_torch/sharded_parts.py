"""The LM head from parts of the hidden dimension: integers at exponents of the whole rows, added up, rounded once.

Sections 1 to 4 and 6 of docs/contract.md. Parts lie in one process, or each on a rank (sharded_row_parallel.py).
The twin is rlk_jax/sharded_parts.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned, Vectors, exponents, largest, padded, planes_at
from rlk_torch.checks import check_parts, check_same_device, dtype_name
from rlk_torch.differentiable import left_to_eager_code, no_forward_mode
from rlk_torch.lm_head import check_call, default_digits, fill
from rlk_torch.lm_head_grad import bias_gradient, hidden_gradient, weight_gradient
from rlk_torch.products import Shards, carried, float64_words, int8_words, rounded, summed, without_triton
from rlk_torch.sharded import check_length, refuse_vmap

_BLOCK_WEIGHTS = 2**22  # weights read at a time, whatever the vocab
_BLOCK_ROWS = 2**12  # rows of the weight taken at a time: not by the length, which differs between ranks


def lm_head_of_parts(
    hidden_parts: Sequence[Tensor],
    weight_parts: Sequence[Tensor],
    bias: Tensor | None = None,
    *,
    digits: int | None = None,
) -> Tensor:
    """Logits from parts of the hidden dimension in one process, with the bits of `lm_head` on the whole.

    Arguments:
        hidden_parts: the parts [..., K_r] of hidden [..., K], bfloat16, float16 or float32, in any number and of any
            widths.
        weight_parts: the parts [V, K_r] of weight [V, K], of any of these types.
        bias: [V] of any of these types, or None.
        digits: 2 (coarse), 3 or 4; None means 3, or 4 where hidden is float32.

    Returns:
        [..., V] in hidden's dtype: what `lm_head` gives for the parts side by side, in any order, and what
        `row_parallel_lm_head` gives on ranks that hold a part each. The parts' gradients are parts of `lm_head`'s.

    Raises:
        TypeError: as for `lm_head`; an `Aligned`, whose rows were aligned by themselves.
        ValueError: as for `lm_head`; parts that do not belong together, or none.
        NotImplementedError: forward mode, a second derivative, or vmap.

    Example:
        >>> parts = [torch.tensor([[1.0]]), torch.tensor([[2.0]])], [torch.tensor([[1.0]]), torch.tensor([[0.5]])]
        >>> lm_head_of_parts(*parts)
        tensor([[2.]])
    """
    first = hidden_parts[0] if len(hidden_parts) else None
    digits = default_digits(first) if digits is None else digits
    dtype = getattr(first, "dtype", torch.float32)
    return _run("lm_head_of_parts", hidden_parts, weight_parts, bias, digits, dtype)


def lm_head_of_parts_fp32(
    hidden_parts: Sequence[Tensor], weight_parts: Sequence[Tensor], bias: Tensor | None = None, *, digits: int = 4
) -> Tensor:
    """Ground-truth logits from parts of the hidden dimension in one process, in float32.

    Arguments:
        hidden_parts: the parts [..., K_r] of hidden [..., K], as for `lm_head_of_parts`.
        weight_parts: the parts [V, K_r] of weight [V, K].
        bias: [V] or None.
        digits: 2, 3 or 4.

    Returns:
        [..., V] float32, the bits of `lm_head_fp32` on the whole. Gradients as for `lm_head_of_parts`.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `lm_head_of_parts`.

    Example:
        >>> lm_head_of_parts_fp32([torch.tensor([1.0, 2.0]).bfloat16()], [torch.tensor([[1.0, 0.5]])])
        tensor([2.])
    """
    return _run("lm_head_of_parts_fp32", hidden_parts, weight_parts, bias, digits, torch.float32)


def _run_eagerly(
    name: str,
    hidden_parts: Sequence[Tensor],
    weight_parts: Sequence[Tensor],
    bias: Tensor | None,
    digits: int,
    dtype: torch.dtype,
) -> Tensor:
    refuse_vmap(name)
    check_parts("hidden_parts", hidden_parts)
    check_parts("weight_parts", weight_parts)
    if len(hidden_parts) != len(weight_parts) or not len(hidden_parts):
        raise ValueError(
            f"hidden_parts has {len(hidden_parts)} parts and weight_parts {len(weight_parts)}; expected the same "
            "number, at least 1"
        )
    first, rows = hidden_parts[0], weight_parts[0]
    for i, (hidden, weight) in enumerate(zip(hidden_parts, weight_parts, strict=True)):
        refuse_aligned(f"weight_parts[{i}]", weight)
        check_call(hidden, weight, bias, digits)
        check_same_device(rows.device, **{f"hidden_parts[{i}]": hidden})
        if hidden.shape[:-1] != first.shape[:-1] or hidden.dtype != first.dtype:
            raise ValueError(
                f"hidden_parts[{i}] is {_described(hidden)} and hidden_parts[0] {_described(first)}; expected one "
                "leading shape and dtype"
            )
        if len(weight) != len(rows) or weight.dtype != rows.dtype:
            raise ValueError(
                f"weight_parts[{i}] is {_described(weight)} and weight_parts[0] {_described(rows)}; expected one vocab "
                "and dtype"
            )
    check_length("the hidden dimension of all parts", sum(hidden.shape[-1] for hidden in hidden_parts))
    return run_parts(hidden_parts, weight_parts, bias, digits, dtype, None)


_run = left_to_eager_code(_run_eagerly)


def _described(x: Tensor) -> str:
    return f"{dtype_name(x)} {tuple(x.shape)}"


def refuse_aligned(name: str, weight: Any) -> None:
    if isinstance(weight, Aligned):
        raise TypeError(
            f"{name} is an Aligned; expected an array [V, K_r]: rows are aligned over the whole hidden dimension, "
            "which no part has"
        )


def run_parts(
    hidden_parts: Sequence[Tensor],
    weight_parts: Sequence[Tensor],
    bias: Tensor | None,
    digits: int,
    dtype: torch.dtype,
    shards: Shards | None,
) -> Tensor:
    """Of arguments that were checked. shards: who holds more parts."""
    return _OfParts.apply(_Call(len(hidden_parts), digits, dtype, shards), bias, *hidden_parts, *weight_parts)


@dataclass(frozen=True, eq=False)
class _Call:
    parts: int
    digits: int
    dtype: torch.dtype
    shards: Shards | None


class _OfParts(torch.autograd.Function):
    """A part's gradients are whole sums over the vocab and over the rows: nothing is exchanged for them."""

    @staticmethod
    def forward(call: _Call, bias: Tensor | None, *parts: Tensor) -> Tensor:
        hidden, weight = parts[: call.parts], parts[call.parts :]
        logits = hidden[0].new_empty((*hidden[0].shape[:-1], weight[0].shape[0]), dtype=call.dtype)
        if logits.numel():
            rows = [x.reshape(x.shape[:-1].numel(), x.shape[-1]) for x in hidden]
            _logits(rows, weight, bias, call, logits.view(-1, logits.shape[-1]))
        return logits

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """A part is kept where the gradient of its partner is asked for."""
        ctx.call, bias, *parts = inputs
        half, wanted = ctx.call.parts, ctx.needs_input_grad[2:]
        partners = wanted[half:] + wanted[:half]
        ctx.save_for_backward(*(x if kept else None for x, kept in zip(parts, partners, strict=True)))
        ctx.dtypes = [x.dtype for x in parts]
        ctx.of_bias = None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        half, wanted = ctx.call.parts, ctx.needs_input_grad
        found: list[Tensor | None] = []
        for i, (dtype, asked) in enumerate(zip(ctx.dtypes, wanted[2:], strict=True)):
            gradient = hidden_gradient if i < half else weight_gradient
            partner = ctx.saved_tensors[(i + half) % (2 * half)]
            found.append(gradient(grad, partner, dtype, "") if asked else None)
        return None, bias_gradient(grad, ctx.of_bias) if wanted[1] else None, *found

    jvp = staticmethod(no_forward_mode("row_parallel_lm_head and lm_head_of_parts"))


def _logits(hidden: list[Tensor], weight: Sequence[Tensor], bias: Tensor | None, call: _Call, out: Tensor) -> None:
    """Fill out [N, V], not empty, from [N, K_r] and [V, K_r]."""
    count, digits = len(out), call.digits
    top = torch.stack([torch.cat((_largest(x), _largest(y))) for x, y in zip(hidden, weight, strict=True)]).amax(0)
    exponent, nonfinite = exponents(top if call.shards is None else call.shards.largest(top))
    lines, columns = (exponent[:count], nonfinite[:count]), (exponent[count:], nonfinite[count:])
    rows = [_aligned_at(x, lines, digits) for x in hidden]
    words = int8_words if without_triton(out.device) == "int8" else float64_words

    def block(start: int, number: int) -> list[Aligned]:
        at = slice(start, start + number)
        return [_aligned_at(y[at], (columns[0][at], columns[1][at]), digits) for y in weight]

    def products(start: int, number: int, tops: list[Aligned]) -> Tensor:
        some = [x.rows(start, number) for x in rows]
        parts = (words(x.planes, y.planes, x.length) for x, y in zip(some, tops, strict=True))
        high, low = carried(*summed(parts, digits, call.shards))
        (x, y), window = (some[0], tops[0]), 7 * digits - 1
        return rounded(high, low, y.exponent - window, x.exponent - window, y.nonfinite, x.nonfinite)

    fill(out, bias, block, products, _BLOCK_ROWS)


def _largest(x: Tensor) -> Tensor:
    """Magnitude bits of the largest element of each row; 0 where a part has no elements."""
    rows, length = x.shape
    if length == 0:
        return x.new_zeros(rows, dtype=torch.int32)
    step = max(1, _BLOCK_WEIGHTS // length)
    return torch.cat([largest(x[start : start + step], 1) for start in range(0, rows, step)])


def _aligned_at(x: Tensor, vectors: Vectors, digits: int) -> Aligned:
    """Rows of a part at the exponents and with the flags of the whole."""
    length = x.shape[1]
    planes = planes_at(x, lambda at: (vectors[0][at, None], vectors[1][at, None]), digits, padded(length))
    return Aligned(planes, *vectors, length)
