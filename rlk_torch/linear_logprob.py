"""Selected log-probabilities straight from hidden states: the logits of all rows never exist at once.

Section 7 of docs/contract.md. The twin is rlk_jax/linear_logprob.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned
from rlk_torch.checks import as_int64, as_token_ids, outside, raise_bad_id
from rlk_torch.differentiable import differentiable, gradient_only, one_by_one, together
from rlk_torch.floats import QUIET_NAN, magnitude
from rlk_torch.lm_head import check_call, local_logits
from rlk_torch.lm_head_grad import grad_bias, grad_hidden, grad_weight
from rlk_torch.logprob import (
    check_one_a_row,
    check_vocab,
    differences,
    exponentials,
    gradient_of,
    gradients,
    logprobs,
    reciprocal,
)

BUDGET = 2**30

Weight = Tensor | Aligned


def linear_logprob(
    hidden: Tensor,
    weight: Weight,
    target_ids: Any,
    bias: Tensor | None = None,
    *,
    digits: int = 4,
    check_ids: bool = True,
    budget: int = BUDGET,
) -> Tensor:
    """The log-probability of one id in each row of `lm_head_fp32(hidden, weight, bias, digits=digits)`.

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32, any strides.
        weight: [V, K] of any of these types, 1 <= V <= 2^18, or `align(weight, digits)`.
        target_ids: [...] of any integer dtype.
        bias: [V] of any of these types, or None.
        digits: 2, 3 or 4.
        check_ids: as for `selected_logprob`.
        budget: bytes that the logits of some rows may take; at least one row is taken.

    Returns:
        [...] float32, the bits of `selected_logprob` on those logits.

    Gradients of hidden, weight and bias are those of `selected_logprob` and `lm_head_fp32`, one after the other. They
    make the logits again, a part of the vocab at a time.

    Raises:
        TypeError, ValueError, IndexError, NotImplementedError: as for `lm_head_fp32` and `selected_logprob`; a budget
            that is no positive integer.

    Example:
        >>> linear_logprob(torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.5], [0.0, 1.0]]), 0)
        tensor(-0.6931)
    """
    check_call(hidden, weight, bias, digits)
    check_budget(budget)
    check_vocab(f"weight has shape {tuple(weight.shape)}", weight.shape[0])
    ids = as_token_ids(target_ids, weight.device, weight.shape[0], check_ids, "target_ids")
    check_one_a_row(ids, "hidden", hidden)
    parts = (weight.planes, weight.exponent, weight.nonfinite, weight.origin) if isinstance(weight, Aligned) else None
    plain = None if isinstance(weight, Aligned) else weight
    readable = check_ids and not torch.compiler.is_compiling()
    return _forward(hidden, ids, plain, *(parts or (None,) * 4), bias, digits, readable, min(budget, 2**62))[0]


def check_budget(budget: Any) -> None:
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ValueError(f"budget is {budget!r}; expected a positive number of bytes for the logits of some rows")


@torch.library.custom_op("rlk_torch::linear_logprob", mutates_args=())
def _linear_logprob(
    hidden: Tensor,
    target_ids: Tensor,
    weight: Tensor | None,
    planes: Tensor | None,
    exponent: Tensor | None,
    nonfinite: Tensor | None,
    origin: Tensor | None,
    bias: Tensor | None,
    digits: int,
    check_ids: bool,
    budget: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probabilities, and for the gradients S and the bits of the logits of `_SEEN`: [...], [...], [..., 3].

    weight, or else the parts of an `Aligned`.
    """
    whole = weight_of(hidden, weight, planes, exponent, nonfinite)
    vocab, count = whole.shape[0], target_ids.numel()
    ids = as_int64(target_ids)
    bad = outside(ids, vocab)
    if check_ids and bad.any():
        raise_bad_id(target_ids, vocab, bad, "target_ids")
    rows, targets = hidden.detach().reshape(count, hidden.shape[-1]), ids.masked_fill(bad, 0).reshape(-1)

    def of_block(logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        return (*logprobs(logits, targets), logits.gather(1, targets[:, None])[:, 0])

    out, total, seen = of_all_rows(rows, targets, whole, bias, digits, budget // (4 * vocab), of_block)
    out.masked_fill_(bad.reshape(-1), float("nan"))
    # The result is no view, so that callers may write into it.
    return out.view(ids.shape).clone(), total.view(ids.shape), seen.view(torch.int32).view(*ids.shape, 3)


_SEEN = ("the largest, NaN where the log-probability is", "the target's", "the largest of all others that lie here")


def of_all_rows(
    hidden: Tensor,
    targets: Tensor,
    weight: Weight,
    bias: Tensor | None,
    digits: int,
    most: int,
    of_block: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    first: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """What the operator gives, of [N, K] and targets int64 [N], from the logits of so many rows at a time.

    of_block: logits, targets -> log-probabilities, S, the first two of `_SEEN`. first: as for `RemadeGradLogits`.
    """
    count = len(hidden)
    out, seen = hidden.new_empty(count, dtype=torch.float32), hidden.new_empty((count, 3), dtype=torch.float32)
    total = hidden.new_empty(count, dtype=torch.int64)
    step = max(1, -(-count // max(1, -(-count // max(1, most)))))  # blocks of one size
    for start in range(0, count, step):
        at = slice(start, start + step)
        logits = local_logits(hidden[at], weight, bias, digits, torch.float32)
        out[at], total[at], seen[at, 0], seen[at, 1] = of_block(logits, targets[at])
        seen[at, 2] = _largest_other(logits, targets[at] - first)
    return out, total, seen


def _largest_other(logits: Tensor, columns: Tensor) -> Tensor:
    """Of the logits [N, V], which are used up, in all but one column [N] a row, which may lie outside."""
    if logits.shape[1] == 0:
        return logits.new_full((len(logits),), float("-inf"))
    inside, at = (columns >= 0) & (columns < logits.shape[1]), columns.clamp(0, logits.shape[1] - 1)[:, None]
    left = logits.gather(1, at).masked_fill_(inside[:, None], float("-inf"))
    return logits.scatter_(1, at, left).amax(1)


def weight_of(
    hidden: Tensor, weight: Tensor | None, planes: Tensor | None, exponent: Tensor | None, nonfinite: Tensor | None
) -> Weight:
    if weight is not None:
        return weight.detach()
    assert planes is not None and exponent is not None and nonfinite is not None
    return Aligned(planes, exponent, nonfinite, hidden.shape[-1])


@dataclass(frozen=True, eq=False)
class RemadeGradLogits:
    """The gradients of the logits [N, V], made from hidden states again: `GradLogits` of lm_head_grad.py.

    Arguments:
        targets: int64 [N], -1 for a bad id.
        grad, total, seen: float32 [N] the upstream gradient; and what the operator gave.
        first: the id of the first column, where the weight is a part of the vocab.
    """

    hidden: Tensor
    weight: Weight
    bias: Tensor | None
    digits: int
    targets: Tensor
    grad: Tensor
    total: Tensor
    seen: Tensor
    first: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.hidden.shape[0], self.weight.shape[0]

    def __getitem__(self, part: tuple[slice, slice]) -> Tensor:
        rows, columns = part
        first, stop, _ = columns.indices(self.shape[1])
        weight = self.weight
        some = weight.rows(first, stop - first) if isinstance(weight, Aligned) else weight[first:stop]
        bias = None if self.bias is None else self.bias[first:stop]
        logits = local_logits(self.hidden[rows], some, bias, self.digits, torch.float32)
        parts = self.targets[rows], self.grad[rows], self.total[rows], self.seen[rows, 0]
        return gradients(logits, *parts, start=self.first + first)

    def largest(self, rows: slice) -> Tensor:
        """E falls where d rises: of all logits but the target's, the largest has the largest gradient."""
        grad, total = self.grad[rows], self.total[rows]
        top, own, other = self.seen[rows].unbind(1)
        bad = ~top.isfinite() | ~grad.isfinite()
        E = exponentials(differences(torch.stack((own, other)), top.masked_fill(bad, 0.0)))
        size = magnitude(gradient_of(torch.stack((total - E[0], E[1])), grad, reciprocal(total))).amax(0)
        return size.masked_fill(bad, QUIET_NAN[torch.float32]).masked_fill(self.targets[rows] < 0, 0)


@torch.library.custom_op("rlk_torch::linear_logprob_grad", mutates_args=())
def _gradients(
    grad: Tensor,
    hidden: Tensor,
    target_ids: Tensor,
    total: Tensor,
    seen: Tensor,
    weight: Tensor | None,
    planes: Tensor | None,
    exponent: Tensor | None,
    nonfinite: Tensor | None,
    bias: Tensor | None,
    digits: int,
    budget: int,
    wanted: str,
) -> Tensor:
    """The gradient of what is wanted: "hidden", "weight" or "bias"."""
    whole, count = weight_of(hidden, weight, planes, exponent, nonfinite), target_ids.numel()
    vocab, ids = whole.shape[0], as_int64(target_ids).reshape(-1)
    ids = ids.masked_fill(outside(ids, vocab), -1)
    rows = hidden.detach().reshape(count, hidden.shape[-1])
    bits = seen.view(torch.float32).view(count, 3)
    source = RemadeGradLogits(rows, whole, bias, digits, ids, grad.detach().reshape(-1), total.reshape(-1), bits)
    if wanted == "hidden":
        return grad_hidden(source, whole, hidden.dtype).view(hidden.shape)
    of = bias if wanted == "bias" else weight
    assert of is not None
    return of_shared(source, of, wanted, budget)


def of_shared(source: RemadeGradLogits, of: Tensor, wanted: str, budget: int) -> Tensor:
    """The gradient of the weight or the bias, whose rows have a sum each: a part of the vocab at a time."""
    count, vocab = source.shape
    out = torch.zeros_like(of, memory_format=torch.contiguous_format)
    step = max(1, min(vocab, budget // (4 * max(1, count))))
    for start in range(0, vocab if count else 0, step):
        at = slice(start, start + step)
        some = source[:, at]
        out[at] = grad_bias(some, of.dtype) if wanted == "bias" else grad_weight(some, source.hidden, of.dtype)
    return out


@_linear_logprob.register_fake
def _(hidden: Tensor, target_ids: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    shape = target_ids.shape
    out, total = hidden.new_empty(shape, dtype=torch.float32), hidden.new_empty(shape, dtype=torch.int64)
    return out, total, hidden.new_empty((*shape, 3), dtype=torch.int32)


@_gradients.register_fake
def _(grad: Tensor, *args: Any) -> Tensor:
    hidden, _, _, _, weight, _, _, _, bias, _, _, wanted = args
    of = {"hidden": hidden, "weight": weight, "bias": bias}[wanted]
    return torch.empty_like(of, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, target_ids, weight, planes, exponent, nonfinite, _, bias, ctx.digits, _, ctx.budget = inputs
    ctx.save_for_backward(hidden, target_ids, *output[1:], weight, planes, exponent, nonfinite, bias)


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """The origin gets an empty gradient: it leads to where the gradient of an `Aligned` is refused."""
    wanted = ctx.needs_input_grad

    def of(argument: int, name: str) -> Tensor | None:
        if not wanted[argument]:
            return None
        return _gradient(grad, *ctx.saved_tensors, ctx.digits, ctx.budget, name)

    origin = grad.new_empty(0, dtype=torch.float32) if wanted[6] else None
    return of(0, "hidden"), None, of(2, "weight"), *(None,) * 3, origin, of(7, "bias"), *(None,) * 3


def _more_rows(op: Any) -> Callable[..., Any]:
    """A batch of hidden states with their targets is more rows; others go one by one."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        if any(dim is not None for dim in in_dims[2:]):
            return one_by_one(op)(info, in_dims, *args)
        return together(2, 3)(op)(info, in_dims, *args)

    return rule


_gradients.register_vmap(one_by_one(_gradients))
_gradient = gradient_only(_gradients, "linear_logprob")
_forward = differentiable("linear_logprob", _linear_logprob, _save, _backward, _more_rows)
