"""Selected log-probabilities of logits in parts of the vocab: one largest logit, one sum of integers, rounded once.

Section 7 of docs/contract.md. Parts lie in one process, or each on a rank. The twin is rlk_jax/sharded_logprob.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rlk_torch.checks import (
    as_int64,
    as_token_ids,
    check_floats,
    check_parts,
    check_same_device,
    dtype_name,
    outside,
    raise_bad_id,
)
from rlk_torch.differentiable import left_to_eager_code, no_forward_mode, no_second_derivative
from rlk_torch.floats import INFINITY, QUIET_NAN
from rlk_torch.logprob import check_one_a_row, check_vocab, finished, largest_logits, part_gradient, total_of
from rlk_torch.products import Shards
from rlk_torch.refusal import eager_without_gradient
from rlk_torch.sharded import as_vocab, check_device, check_plain, check_rows, is_dtensor, ranks_of, refuse_vmap
from rlk_torch.sharded_record import Fact, agreed, checksum

_NAMES = "sharded_selected_logprob and selected_logprob_of_parts"


def selected_logprob_of_parts(logits_parts: Sequence[Tensor], target_ids: Any, *, check_ids: bool = True) -> Tensor:
    """The log-probability of one id in each row of logits that are cut along the vocab, in one process.

    Arguments:
        logits_parts: the parts [..., V_r] of logits [..., V], in their order, bfloat16, float16 or float32, in any
            number and of any widths; 1 <= V <= 2^18.
        target_ids: [...] of any integer dtype, 0 <= id < V.
        check_ids: as for `selected_logprob`.

    Returns:
        [...] float32: what `selected_logprob` gives for the parts side by side, and what `sharded_selected_logprob`
        gives on ranks that hold a part each. The parts' gradients are parts of `selected_logprob`'s.

    Raises:
        TypeError: as for `selected_logprob`.
        ValueError: as for `selected_logprob`; parts that do not belong together, or none.
        IndexError: an id outside the vocab, where ids are read.
        NotImplementedError: forward mode, a second derivative, or vmap.

    Example:
        >>> selected_logprob_of_parts([torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [-float("inf")]])], [1, 0])
        tensor([-0.6931,  0.0000])
    """
    return _run_parts(logits_parts, target_ids, check_ids)


def sharded_selected_logprob(
    logits: Tensor,
    target_ids: Any,
    *,
    vocab: int,
    group: Any = None,
    check_ids: bool = True,
    check_shapes: bool = True,
) -> Tensor:
    """The log-probability of one id in each row of logits whose vocab is sharded, with the bits of `selected_logprob`.

    Arguments:
        logits: [..., V_r] bfloat16, float16 or float32, this rank's columns of `shard_range`, as `sharded_lm_head`
            gives them; 1 <= V <= 2^18.
        target_ids: [...] of any integer dtype, the same on every rank, 0 <= id < V.
        vocab: V.
        group: the process group whose ranks hold the shards, in their order; None is the default group.
        check_ids: as for `selected_logprob`.
        check_shapes: compare first what the ranks were called with, ids included. False skips that; then ranks that
            differ wait for each other until the group's timeout, or add up what does not belong together.

    Returns:
        [...] float32, a plain tensor, the same on every rank. Ranks exchange the largest logit of each row, as an
        integer, and then add up S of section 7 and the target's logit, of whose bits all but one have none.

    The gradient of logits is this rank's columns of `selected_logprob`'s, for an upstream gradient that is the same on
    every rank, and needs no exchange. Under `torch.compile` the call is left to eager code, and fullgraph=True is
    refused.

    Raises:
        TypeError: as for `selected_logprob`; a DTensor, or a vocab that is no integer.
        ValueError: as for `selected_logprob`; logits that are not this rank's share of the vocab, no process group, or
            ranks that differ in their calls.
        IndexError: an id outside the vocab, where ids are read.
        NotImplementedError: forward mode, a second derivative, or vmap.

    Example:
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        >>> sharded_selected_logprob(torch.tensor([[0.0, 0.0], [1.0, -float("inf")]]), [0, 0], vocab=2)
        tensor([-0.6931,  0.0000])
        >>> destroy_process_group()
    """
    return _run_ranks(logits, target_ids, vocab, group, check_ids, check_shapes)


@dataclass(frozen=True, eq=False)
class _Call:
    """starts: the first id of each part that lies here. shards: who holds more parts."""

    starts: Sequence[int]
    vocab: int
    shards: Shards | None


def _run_parts_eagerly(logits_parts: Sequence[Tensor], target_ids: Any, check_ids: bool) -> Tensor:
    refuse_vmap("selected_logprob_of_parts")
    check_parts("logits_parts", logits_parts)
    if not len(logits_parts):
        raise ValueError("logits_parts has 0 parts; expected at least 1")
    first = logits_parts[0]
    for i, part in enumerate(logits_parts):
        _check_part(f"logits_parts[{i}]", part)
        check_same_device(first.device, "logits_parts[0]", **{f"logits_parts[{i}]": part})
        if part.shape[:-1] != first.shape[:-1] or part.dtype != first.dtype:
            raise ValueError(
                f"logits_parts[{i}] is {_described(part)} and logits_parts[0] {_described(first)}; expected one "
                "leading shape and dtype"
            )
    *starts, vocab = accumulate((part.shape[-1] for part in logits_parts), initial=0)
    check_vocab(f"logits_parts have {vocab} columns in all", vocab)
    ids = targets_of(target_ids, first.device, vocab, check_ids, "logits_parts[0]")
    check_one_a_row(ids, "logits_parts[0]", first)
    return _OfParts.apply(_Call(starts, vocab, None), ids, *logits_parts)[0]


_run_parts = left_to_eager_code(_run_parts_eagerly)


def _check_part(name: str, logits: Any) -> None:
    check_floats(name, logits, "[..., V_r]")
    if logits.ndim == 0:
        raise ValueError(f"{name} has shape (); expected [..., V_r]: add the vocab dimension")


def _described(x: Tensor) -> str:
    return f"{dtype_name(x)} {tuple(x.shape)}"


def targets_of(target_ids: Any, device: torch.device, vocab: int, check_ids: bool, beside: str) -> Tensor:
    """Ids as int64, read where that is asked for."""
    check_plain("target_ids", target_ids)
    ids = as_token_ids(target_ids, device, vocab, check_ids, "target_ids", beside)
    wide = as_int64(ids)
    if check_ids and (bad := outside(wide, vocab)).any():
        raise_bad_id(ids, vocab, bad, "target_ids")
    return wide


def of_targets(ids: Tensor, vocab: int, check_ids: bool) -> list[Fact]:
    """Facts of the targets and of the vocab."""
    return [
        Fact("vocab", vocab),
        Fact("target_ids' shape", ids.shape, "shape"),
        Fact("check_ids (1: yes)", bool(check_ids)),
        Fact("target_ids' checksum", checksum(ids) if check_ids else 0, "bits"),
    ]


def _run_ranks_eagerly(
    logits: Any, target_ids: Any, vocab: Any, group: Any, check_ids: bool, check_shapes: bool
) -> Tensor:
    name = "sharded_selected_logprob"
    ranks = ranks_of(group, None if is_dtensor(logits) else logits)

    def prepare() -> tuple[tuple[_Call, Tensor, Tensor], list[Fact]]:
        refuse_vmap(name)
        check_plain("logits", logits)
        _check_part("logits", logits)
        whole = as_vocab(vocab)
        check_vocab(f"vocab is {whole}", whole)
        check_device(logits, ranks, "logits")
        start = check_rows(logits.shape[-1], whole, ranks, "logits", "columns")
        ids = targets_of(target_ids, logits.device, whole, check_ids, "logits")
        check_one_a_row(ids, "logits", logits)
        facts = [
            Fact("logits' leading shape", logits.shape[:-1], "shape"), Fact("logits' dtype", logits.dtype, "dtype"),
            *of_targets(ids, whole, check_ids),
        ]  # fmt: skip
        return (_Call([start], whole, ranks), ids, logits), facts

    return _OfParts.apply(*agreed(name, ranks, check_shapes, prepare))[0]


_run_ranks = left_to_eager_code(_run_ranks_eagerly)


class _OfParts(torch.autograd.Function):
    """The log-probabilities, and for the gradients S and the bits of the largest logits, as of `selected_logprob`.

    The gradient of a part is its own: nothing is exchanged for it.
    """

    @staticmethod
    def forward(call: _Call, ids: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = [x.detach().reshape(ids.numel(), x.shape[-1]) for x in parts]
        targets = ids.reshape(-1)
        out, total, top, _ = logprobs_of_parts(rows, call.starts, targets, call.vocab, call.shards)
        # The result is no view, so that callers may write into it.
        return out.view(ids.shape).clone(), total.view(ids.shape), top.view(torch.int32).view(ids.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.call, ids, *parts = inputs
        kept = (x if wanted else None for x, wanted in zip(parts, ctx.needs_input_grad[2:], strict=True))
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(ids, *output[1:], *kept)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        ids, total, top, *parts = ctx.saved_tensors
        refuse_vmap(f"the gradient of {_NAMES}", grad)
        found = (
            None if part is None else _gradient(grad, part, ids, total, top, "", start, ctx.call.vocab)
            for part, start in zip(parts, ctx.call.starts, strict=True)
        )
        return None, None, *found

    jvp = staticmethod(no_forward_mode(_NAMES))


_gradient = eager_without_gradient(part_gradient, no_second_derivative(_NAMES))


def logprobs_of_parts(
    parts: Sequence[Tensor], starts: Sequence[int], targets: Tensor, vocab: int, shards: Shards | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parts [N, V_r] of logits and int64 [N] -> the log-probabilities, S, the largest logits and the targets'.

    S and the logits are the whole's; the largest is NaN where the log-probability is, but for a bad id's.
    """
    top = torch.stack([in_order(largest_logits(x)) for x in parts]).amax(0)
    top = out_of_order(top if shards is None else shards.largest(top))
    bad = ~top.isfinite()
    top.masked_fill_(bad, 0.0)
    sums = torch.stack([total_of(x, top) for x in parts]).sum(0).masked_fill_(bad, 0)
    own = torch.stack([_bits_of_own(x, targets - start) for x, start in zip(parts, starts, strict=True)]).sum(0)
    total, bits = torch.stack((sums, own)) if shards is None else shards.total(torch.stack((sums, own)))
    mine = bits.int().view(torch.float32)
    out = finished(mine, top, total, bad).masked_fill_(outside(targets, vocab), float("nan"))
    return out, total, top.masked_fill_(bad, float("nan")), mine


def _bits_of_own(logits: Tensor, columns: Tensor) -> Tensor:
    """The float32 bits of the logits in some columns [N], 0 where that lies outside: int64."""
    if logits.shape[1] == 0:
        return torch.zeros_like(columns)
    inside = ~outside(columns, logits.shape[1])
    own = logits.gather(1, columns.masked_fill(~inside, 0)[:, None])[:, 0].float()
    return own.view(torch.int32).long().masked_fill_(~inside, 0)


def in_order(x: Tensor) -> Tensor:
    """Float32 as int32 in the order of the values, any NaN last."""
    bits = x.view(torch.int32)
    bits = bits.masked_fill((bits & 0x7FFFFFFF) > INFINITY, QUIET_NAN[torch.float32])
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def out_of_order(order: Tensor) -> Tensor:
    """What `in_order` was made of."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).view(torch.float32)
