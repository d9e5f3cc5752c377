"""The LM head of a weight that is sharded over the vocab, with the bits of the whole one's.

Sections 4 and 6 of docs/contract.md: a shard's logits are its own, and hidden's gradient is one sum of integers over
all shards. The twin is rlk_jax/sharded_lm_head.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned
from rlk_torch.differentiable import left_to_eager_code, no_forward_mode, no_second_derivative
from rlk_torch.lm_head import check_call, default_digits, local_logits, save_for_gradients
from rlk_torch.lm_head_grad import bias_gradient, grad_hidden, weight_gradient
from rlk_torch.products import without_triton
from rlk_torch.refusal import eager_without_gradient
from rlk_torch.sharded import (
    Ranks,
    check_device,
    check_length,
    check_plain,
    check_rows,
    local_part,
    ranks_of,
    refuse_vmap,
    shard_range,
    whole_vocab,
)
from rlk_torch.sharded_record import Fact, agreed, of_hidden


def sharded_lm_head(
    hidden: Tensor,
    weight: Tensor | Aligned,
    bias: Tensor | None = None,
    *,
    vocab: int | None,
    group: Any = None,
    gather: bool = False,
    digits: int | None = None,
    check_shapes: bool = True,
) -> Tensor:
    """Logits of a weight whose vocab is sharded, with the bits of `lm_head`.

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32, the same on every rank, any strides.
        weight: [V_r, K] of any of these types, this rank's rows of `shard_range`, or `align` of them; or a DTensor
            [V, K] placed `Shard(0)` on a mesh of one dimension.
        bias: [V_r] of any of these types, or a DTensor where weight is one, or None.
        vocab: V; of a DTensor, V or None.
        group: the process group whose ranks hold the shards, in their order; None is the default group, or the
            group of a DTensor's mesh.
        gather: every rank gets all logits, else each its own.
        digits: 2 (coarse), 3 or 4; None means 3, or 4 where hidden is float32.
        check_shapes: compare first what the ranks were called with, hidden included. False skips that; then ranks
            that differ wait for each other until the group's timeout, or add up what does not belong together.

    Returns:
        [..., V_r] in hidden's dtype, this rank's logits, or with gather [..., V], the same on every rank. A plain
        tensor. Without gather nothing is exchanged.

    The gradients are the parts of `lm_head`'s. With gather, the upstream gradient is the same on every rank. Hidden's
    is the same on every rank: one exact sum over the whole vocab, of integers that ranks add up before the one
    rounding, so all ranks must ask for it together; on CUDA its integers come from float64 products. Those of weight
    and bias need no exchange. Under `torch.compile` the call is left to eager code, and fullgraph=True is refused.

    Raises:
        TypeError: as for `lm_head`; a vocab that is no integer.
        ValueError: as for `lm_head`; a weight that is not this rank's share of the vocab, a DTensor placed otherwise,
            no process group, or ranks that differ in their calls.
        NotImplementedError: forward mode, a second derivative, vmap, or the gradient of an `Aligned`.

    Example:
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        >>> sharded_lm_head(torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.5], [0.0, -1.0]]), vocab=2)
        tensor([ 2., -2.])
        >>> destroy_process_group()
    """
    digits = default_digits(hidden) if digits is None else digits
    dtype = getattr(hidden, "dtype", torch.float32)
    return _run("sharded_lm_head", hidden, weight, bias, vocab, group, gather, digits, dtype, check_shapes)


def sharded_lm_head_fp32(
    hidden: Tensor,
    weight: Tensor | Aligned,
    bias: Tensor | None = None,
    *,
    vocab: int | None,
    group: Any = None,
    gather: bool = False,
    digits: int = 4,
    check_shapes: bool = True,
) -> Tensor:
    """Ground-truth logits of a weight whose vocab is sharded, in float32.

    Arguments:
        hidden: [..., K], as for `sharded_lm_head`.
        weight: [V_r, K], `align` of it, or a DTensor, as for `sharded_lm_head`.
        bias: [V_r] or None, as for `sharded_lm_head`.
        vocab: V; of a DTensor, V or None.
        group: as for `sharded_lm_head`.
        gather: every rank gets all logits, else each its own.
        digits: 2, 3 or 4.
        check_shapes: as for `sharded_lm_head`.

    Returns:
        [..., V_r] float32, or with gather [..., V], the bits of `lm_head_fp32`. Gradients as for `sharded_lm_head`.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `sharded_lm_head`.

    Example:
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        >>> sharded_lm_head_fp32(torch.tensor([1.0, 2.0]).bfloat16(), torch.tensor([[1.0, 0.5]]), vocab=1, gather=True)
        tensor([2.])
        >>> destroy_process_group()
    """
    return _run("sharded_lm_head_fp32", hidden, weight, bias, vocab, group, gather, digits, torch.float32, check_shapes)


@dataclass(frozen=True, eq=False)
class _Call:
    ranks: Ranks
    vocab: int
    gather: bool
    digits: int
    dtype: torch.dtype


def _run_eagerly(
    name: str,
    hidden: Tensor,
    weight: Any,
    bias: Any,
    vocab: Any,
    group: Any,
    gather: bool,
    digits: int,
    dtype: torch.dtype,
    check_shapes: bool,
) -> Tensor:
    ranks = ranks_of(group, weight)

    def prepare() -> tuple[tuple[Any, ...], list[Fact]]:
        refuse_vmap(name)
        check_plain("hidden", hidden)
        whole = whole_vocab(vocab, weight)
        check_length("vocab", whole)
        part, offsets = local_part("weight", weight, 0, ranks), local_part("bias", bias, 0, ranks)
        check_call(hidden, part, offsets, digits)
        check_device(hidden, ranks)
        check_rows(part.shape[0], whole, ranks)
        facts = [*of_hidden(hidden, part, offsets, digits, sharded=False), Fact("vocab", whole)]
        facts.append(Fact("gather (1: yes)", gather))
        call = _Call(ranks, whole, bool(gather), digits, dtype)
        if isinstance(part, Aligned):
            return (hidden, None, offsets, part.planes, part.exponent, part.nonfinite, part.origin, call), facts
        return (hidden, part, offsets, None, None, None, None, call), facts

    return _Sharded.apply(*agreed(name, ranks, check_shapes, prepare))


_run = left_to_eager_code(_run_eagerly)


class _Sharded(torch.autograd.Function):
    """Takes a weight or the parts of an `Aligned`."""

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        planes: Any,
        exponent: Any,
        nonfinite: Any,
        origin: Any,
        call: _Call,
    ) -> Tensor:
        part = weight if weight is not None else Aligned(planes, exponent, nonfinite, hidden.shape[-1])
        logits = local_logits(hidden, part, bias, call.digits, call.dtype)
        return call.ranks.together(logits, call.vocab) if call.gather else logits

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        hidden, weight, bias, planes, exponent, nonfinite, _, ctx.call = inputs
        save_for_gradients(ctx, hidden, weight, (planes, exponent, nonfinite) if weight is None else (), bias, "")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, *aligned = ctx.saved_tensors
        call, wanted, (of_hidden, of_weight, of_bias) = ctx.call, ctx.needs_input_grad, ctx.dtypes
        if wanted[0]:
            refuse_vmap("the gradient of sharded_lm_head", grad)
        if call.gather:
            grad = grad[..., slice(*shard_range(call.vocab, call.ranks.size, call.ranks.rank))]
        return (
            _hidden_gradient(grad, weight, *aligned, ctx.length, of_hidden, call.ranks) if wanted[0] else None,
            weight_gradient(grad, hidden, of_weight, "") if wanted[1] else None,
            bias_gradient(grad, of_bias) if wanted[2] else None,
            *(None, None, None),
            grad.new_empty(0, dtype=torch.float32) if wanted[6] else None,  # leads to the refusal of an `Aligned`
            None,
        )

    jvp = staticmethod(no_forward_mode("sharded_lm_head"))


def _gradient_over_ranks(grad_logits: Tensor, weight: Tensor | None, *rest: Any) -> Tensor:
    """[..., V_r] and the weight, or else the parts of an `Aligned` -> [..., K], of the whole vocab.

    A rank without rows takes one of zeros instead, which adds nothing.
    """
    *aligned, width, dtype, ranks = rest
    grad = grad_logits.detach().reshape(grad_logits.shape[:-1].numel(), grad_logits.shape[-1])
    part = weight.detach() if weight is not None else Aligned(aligned[0], aligned[1], aligned[2], width)
    if grad.shape[1] == 0:
        grad, part = grad.new_zeros((len(grad), 1)), grad.new_zeros((1, width))
    out = grad_hidden(grad, part, dtype, without_triton(grad.device), ranks)
    return out.view(*grad_logits.shape[:-1], width)


_hidden_gradient = eager_without_gradient(_gradient_over_ranks, no_second_derivative("sharded_lm_head"))
