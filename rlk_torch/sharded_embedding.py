"""Token embedding whose table is sharded over the vocab, with the bits of the whole table's.

Section 5 of docs/contract.md: rows cross between ranks as integers. The twin is rlk_jax/sharded_embedding.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlk_torch.checks import as_int64, as_padding_idx, as_token_ids, check_floats, outside, raise_bad_id
from rlk_torch.differentiable import left_to_eager_code, no_forward_mode
from rlk_torch.embedding import gather, widened
from rlk_torch.embedding_grad import table_gradient
from rlk_torch.floats import QUIET_NAN, bits_of
from rlk_torch.sharded import (
    Ranks,
    check_device,
    check_plain,
    check_rows,
    local_part,
    ranks_of,
    refuse_vmap,
    whole_vocab,
)
from rlk_torch.sharded_record import Fact, agreed, checksum


def sharded_embedding(
    token_ids: Any,
    weight: Tensor,
    vocab: int | None,
    *,
    group: Any = None,
    check_ids: bool = True,
    padding_idx: int | None = None,
    check_shapes: bool = True,
) -> Tensor:
    """Rows of a table whose vocab is sharded, bit for bit as `embedding` gives them.

    Arguments:
        token_ids: [...] of any integer dtype, the same on every rank, 0 <= id < V.
        weight: [V_r, H] bfloat16, float16 or float32, this rank's rows of `shard_range`, any strides; or a DTensor
            [V, H] placed `Shard(0)` on a mesh of one dimension.
        vocab: V; of a DTensor, V or None.
        group: the process group whose ranks hold the shards, in their order; None is the default group, or the
            group of a DTensor's mesh.
        check_ids: as for `embedding`.
        padding_idx: an id of the whole vocab whose row gets no gradient, or None.
        check_shapes: compare first what the ranks were called with, ids included. False skips that; then ranks that
            differ wait for each other until the group's timeout, or add up what does not belong together.

    Returns:
        [..., H] in weight's dtype, a plain tensor, the same on every rank. Nothing is rounded: ranks exchange bits.

    The gradient of weight is this rank's rows of `embedding`'s, for an upstream gradient that is the same on every
    rank, and needs no exchange. Under `torch.compile` the call is left to eager code, and fullgraph=True is refused.

    Raises:
        IndexError: an id outside the vocab, with its position.
        TypeError: as for `embedding`; a vocab that is no integer.
        ValueError: as for `embedding`; a weight that is not this rank's share of the vocab, a DTensor placed otherwise,
            no process group, or ranks that differ in their calls.
        NotImplementedError: forward mode, a second derivative, or vmap.

    Example:
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        >>> sharded_embedding([1, 0], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 2)
        tensor([[3., 4.],
                [1., 2.]])
        >>> destroy_process_group()
    """
    options = (check_ids, padding_idx, check_shapes, False)
    return _run("sharded_embedding", token_ids, weight, vocab, group, *options)


def sharded_embedding_fp32(
    token_ids: Any,
    weight: Tensor,
    vocab: int | None,
    *,
    group: Any = None,
    check_ids: bool = True,
    padding_idx: int | None = None,
    check_shapes: bool = True,
) -> Tensor:
    """Rows of a table whose vocab is sharded, widened exactly to float32.

    Arguments:
        token_ids: [...] of any integer dtype, the same on every rank, 0 <= id < V.
        weight: [V_r, H] or a DTensor, as for `sharded_embedding`.
        vocab: V; of a DTensor, V or None.
        group: as for `sharded_embedding`.
        check_ids: as for `embedding`.
        padding_idx: as for `sharded_embedding`.
        check_shapes: as for `sharded_embedding`.

    Returns:
        [..., H] float32, the bits of `embedding_fp32` on the whole table. Ranks exchange the bits of the table's
        dtype. The gradient of weight is as for `sharded_embedding`.

    Raises:
        IndexError, TypeError, ValueError, NotImplementedError: as for `sharded_embedding`.

    Example:
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        >>> sharded_embedding_fp32(1, torch.tensor([[1.0], [3.0]], dtype=torch.bfloat16), 2)
        tensor([3.])
        >>> destroy_process_group()
    """
    options = (check_ids, padding_idx, check_shapes, True)
    return _run("sharded_embedding_fp32", token_ids, weight, vocab, group, *options)


@dataclass(frozen=True, eq=False)
class _Call:
    ranks: Ranks
    vocab: int
    start: int  # the first row of this rank
    padding_idx: int  # of this rank's rows; -1 where it is none of them
    widen: bool


def _run_eagerly(
    name: str,
    token_ids: Any,
    weight: Any,
    vocab: Any,
    group: Any,
    check_ids: bool,
    padding_idx: int | None,
    check_shapes: bool,
    widen: bool,
) -> Tensor:
    ranks = ranks_of(group, weight)

    def prepare() -> tuple[tuple[Tensor, Tensor, _Call], list[Fact]]:
        refuse_vmap(name)
        whole = whole_vocab(vocab, weight)
        table = local_part("weight", weight, 0, ranks)
        check_floats("weight", table, "[V_r, H]", 2)
        check_device(table, ranks)
        start = check_rows(table.shape[0], whole, ranks)
        padding = as_padding_idx(padding_idx, whole)
        check_plain("token_ids", token_ids)
        ids = as_token_ids(token_ids, table.device, whole, check_ids)
        if check_ids and (bad := outside(as_int64(ids), whole)).any():
            raise_bad_id(ids, whole, bad)
        here = padding is not None and start <= padding < start + table.shape[0]
        call = _Call(ranks, whole, start, padding - start if padding is not None and here else -1, widen)
        facts = [
            Fact("token_ids' shape", ids.shape, "shape"), Fact("token_ids' dtype", ids.dtype, "dtype"),
            Fact("weight's dtype", table.dtype, "dtype"), Fact("vocab", whole), Fact("H", table.shape[1]),
            Fact("padding_idx", padding), Fact("check_ids (1: yes)", bool(check_ids)),
            Fact("token_ids' checksum", checksum(ids) if check_ids else 0, "bits"),
        ]  # fmt: skip
        return (as_int64(ids), table, call), facts

    return _Sharded.apply(*agreed(name, ranks, check_shapes, prepare))


_run = left_to_eager_code(_run_eagerly)


class _Sharded(torch.autograd.Function):
    @staticmethod
    def forward(ids: Tensor, weight: Tensor, call: _Call) -> Tensor:
        local = ids - call.start
        rows = gather(local, outside(local, weight.shape[0]), weight, fill=0)
        call.ranks.unite(rows)
        bits_of(rows).masked_fill_(outside(ids, call.vocab)[..., None], QUIET_NAN[weight.dtype])
        return widened(rows) if call.widen else rows

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, _Call], output: Tensor) -> None:
        ids, weight, call = inputs
        ctx.save_for_backward(ids - call.start)
        ctx.rows, ctx.dtype, ctx.padding_idx = weight.shape[0], weight.dtype, call.padding_idx

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Ids of other ranks lie outside this one's rows and add nothing."""
        (local,) = ctx.saved_tensors
        return None, table_gradient(grad, local, ctx.rows, ctx.dtype, ctx.padding_idx, ""), None

    jvp = staticmethod(no_forward_mode("sharded_embedding"))
