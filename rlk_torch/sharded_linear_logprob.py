"""Selected log-probabilities straight from hidden states, of a weight that is sharded over the vocab.

Section 7 of docs/contract.md: a shard has logits of its own, of a block of rows at a time, of which ranks exchange what
sharded_logprob.py says; hidden's gradient is one sum of integers over all shards.
The twin is rlk_jax/sharded_linear_logprob.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned
from rlk_torch.checks import outside
from rlk_torch.differentiable import left_to_eager_code, no_forward_mode, no_second_derivative
from rlk_torch.linear_logprob import BUDGET, RemadeGradLogits, check_budget, of_all_rows, of_shared, weight_of
from rlk_torch.lm_head import check_call
from rlk_torch.lm_head_grad import grad_hidden
from rlk_torch.logprob import check_one_a_row, check_vocab
from rlk_torch.products import without_triton
from rlk_torch.refusal import eager_without_gradient
from rlk_torch.sharded import (
    Ranks,
    check_device,
    check_plain,
    check_rows,
    local_part,
    ranks_of,
    refuse_vmap,
    shard_range,
    whole_vocab,
)
from rlk_torch.sharded_logprob import logprobs_of_parts, of_targets, targets_of
from rlk_torch.sharded_record import Fact, agreed, of_hidden

_NAME = "sharded_linear_logprob"


def sharded_linear_logprob(
    hidden: Tensor,
    weight: Tensor | Aligned,
    target_ids: Any,
    bias: Tensor | None = None,
    *,
    vocab: int | None,
    group: Any = None,
    digits: int = 4,
    check_ids: bool = True,
    budget: int = BUDGET,
    check_shapes: bool = True,
) -> Tensor:
    """The log-probability of one id in each row of a sharded LM head, with the bits of `linear_logprob`.

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32, the same on every rank, any strides.
        weight: [V_r, K] of any of these types, this rank's rows of `shard_range`, or `align(weight, digits)` of them;
            or a DTensor [V, K] placed `Shard(0)` on a mesh of one dimension; 1 <= V <= 2^18.
        target_ids: [...] of any integer dtype, the same on every rank, 0 <= id < V.
        bias: [V_r] of any of these types, or a DTensor where weight is one, or None.
        vocab: V; of a DTensor, V or None.
        group: the process group whose ranks hold the shards, in their order; None is the default group, or the
            group of a DTensor's mesh.
        digits: 2, 3 or 4.
        check_ids: as for `selected_logprob`.
        budget: bytes that a rank's logits of some rows may take; at least one row is taken.
        check_shapes: compare first what the ranks were called with, hidden and ids included. False skips that; then
            ranks that differ wait for each other until the group's timeout, or add up what does not belong together.

    Returns:
        [...] float32, a plain tensor, the same on every rank. For each block of rows ranks exchange what
        `sharded_selected_logprob` does; the logits of all rows never exist at once.

    The gradients are the parts of `linear_logprob`'s, for an upstream gradient that is the same on every rank, and make
    the logits again. Hidden's is the same on every rank: one exact sum over the whole vocab, of integers that ranks add
    up before the one rounding, so all ranks must ask for it together. Those of weight and bias need no exchange. Under
    `torch.compile` the call is left to eager code, and fullgraph=True is refused.

    Raises:
        TypeError: as for `linear_logprob`; a vocab that is no integer.
        ValueError: as for `linear_logprob`; a weight that is not this rank's share of the vocab, a DTensor placed
            otherwise, no process group, or ranks that differ in their calls.
        IndexError: an id outside the vocab, where ids are read.
        NotImplementedError: forward mode, a second derivative, vmap, or the gradient of an `Aligned`.

    Example:
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        >>> sharded_linear_logprob(torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.5], [0.0, 1.0]]), 0, vocab=2)
        tensor(-0.6931)
        >>> destroy_process_group()
    """
    options = (vocab, group, digits, check_ids, budget, check_shapes)
    return _run(hidden, weight, target_ids, bias, *options)


@dataclass(frozen=True, eq=False)
class _Call:
    ranks: Ranks
    vocab: int
    start: int  # the first row of this rank
    digits: int
    budget: int

    @property
    def most(self) -> int:
        """Rows at a time, the same on every rank."""
        return self.budget // (4 * shard_range(self.vocab, self.ranks.size, 0)[1])


def _run_eagerly(
    hidden: Tensor,
    weight: Any,
    target_ids: Any,
    bias: Any,
    vocab: Any,
    group: Any,
    digits: int,
    check_ids: bool,
    budget: int,
    check_shapes: bool,
) -> Tensor:
    ranks = ranks_of(group, weight)

    def prepare() -> tuple[tuple[Any, ...], list[Fact]]:
        refuse_vmap(_NAME)
        check_plain("hidden", hidden)
        whole = whole_vocab(vocab, weight)
        check_vocab(f"vocab is {whole}", whole)
        part, offsets = local_part("weight", weight, 0, ranks), local_part("bias", bias, 0, ranks)
        check_call(hidden, part, offsets, digits)
        check_budget(budget)
        check_device(hidden, ranks)
        start = check_rows(part.shape[0], whole, ranks)
        ids = targets_of(target_ids, hidden.device, whole, check_ids, "weight")
        check_one_a_row(ids, "hidden", hidden)
        call = _Call(ranks, whole, start, digits, min(budget, 2**62))
        facts = [
            *of_hidden(hidden, part, offsets, digits, sharded=False), *of_targets(ids, whole, check_ids),
            Fact("budget", call.budget),
        ]  # fmt: skip
        if isinstance(part, Aligned):
            return (call, hidden, ids, None, part.planes, part.exponent, part.nonfinite, part.origin, offsets), facts
        return (call, hidden, ids, part, None, None, None, None, offsets), facts

    return _Sharded.apply(*agreed(_NAME, ranks, check_shapes, prepare))[0]


_run = left_to_eager_code(_run_eagerly)


class _Sharded(torch.autograd.Function):
    """Takes a weight or the parts of an `Aligned`; gives what the operator of linear_logprob.py gives."""

    @staticmethod
    def forward(
        call: _Call,
        hidden: Tensor,
        ids: Tensor,
        weight: Tensor | None,
        planes: Any,
        exponent: Any,
        nonfinite: Any,
        origin: Any,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        def of_block(logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
            return logprobs_of_parts([logits], [call.start], targets, call.vocab, call.ranks)

        part = weight_of(hidden, weight, planes, exponent, nonfinite)
        rows = hidden.detach().reshape(ids.numel(), hidden.shape[-1])
        options = call.digits, call.most, of_block, call.start
        out, total, seen = of_all_rows(rows, ids.reshape(-1), part, bias, *options)
        # The result is no view, so that callers may write into it.
        return out.view(ids.shape).clone(), total.view(ids.shape), seen.view(torch.int32).view(*ids.shape, 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.call, hidden, ids, weight, planes, exponent, nonfinite, _, bias = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(hidden, ids, *output[1:], weight, planes, exponent, nonfinite, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad
        refuse_vmap(f"the gradient of {_NAME}", grad)

        def of(argument: int, name: str) -> Tensor | None:
            return _gradient(name, ctx.call, grad, *ctx.saved_tensors) if wanted[argument] else None

        # The origin's leads to the refusal of an `Aligned`.
        origin = grad.new_empty(0, dtype=torch.float32) if wanted[7] else None
        return None, of(1, "hidden"), None, of(3, "weight"), *(None,) * 3, origin, of(8, "bias")

    jvp = staticmethod(no_forward_mode(_NAME))


def _gradients(
    wanted: str,
    call: _Call,
    grad: Tensor,
    hidden: Tensor,
    ids: Tensor,
    total: Tensor,
    seen: Tensor,
    weight: Tensor | None,
    planes: Tensor | None,
    exponent: Tensor | None,
    nonfinite: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """The gradient of what is wanted. For hidden's, a rank without rows takes one of zeros, which adds nothing."""
    part, count = weight_of(hidden, weight, planes, exponent, nonfinite), ids.numel()
    targets = ids.masked_fill(outside(ids, call.vocab), -1).reshape(-1)
    rows, bits = hidden.detach().reshape(count, hidden.shape[-1]), seen.view(torch.float32).view(count, 3)
    upstream = grad.detach().reshape(-1)
    source = RemadeGradLogits(rows, part, bias, call.digits, targets, upstream, total.reshape(-1), bits, call.start)
    if wanted != "hidden":
        of = bias if wanted == "bias" else weight
        assert of is not None
        return of_shared(source, of, wanted, call.budget)
    implementation = without_triton(rows.device)
    if part.shape[0]:
        out = grad_hidden(source, part, hidden.dtype, implementation, call.ranks)
    else:
        nothing = upstream.new_zeros((count, 1)), rows.new_zeros((1, rows.shape[1]))
        out = grad_hidden(*nothing, hidden.dtype, implementation, call.ranks)
    return out.view(hidden.shape)


_gradient = eager_without_gradient(_gradients, no_second_derivative(_NAME))
