"""On ranks: what is exchanged, and what ranks are told that differ in their calls."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks_values import drawn, gradients, leaf, of_columns, of_rows
from torch import Tensor

import rlk_torch
from crosscheck.bits import assert_bits_equal

VOCAB, WIDTH = 7, 6


def check_only_integers_pass_between_ranks(rank: int, size: int) -> None:
    """Whatever is asked for: the dtypes of all exchanges. Only hidden's gradient of `sharded_lm_head` is exchanged."""
    passed: list[torch.dtype] = []
    hidden, weight, bias = leaf(drawn(2, 6)), leaf(drawn(7, 6)), leaf(drawn(7))
    rows, offsets = leaf(of_rows(weight, rank, size)), leaf(of_rows(bias, rank, size))
    parts = leaf(of_columns(hidden, rank, size)), leaf(of_columns(weight, rank, size))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "all_gather"):
            patch.setattr(dist, name, recorded(getattr(dist, name), passed))
        results = (
            rlk_torch.sharded_embedding([6, 0], rows, 7),
            rlk_torch.row_parallel_lm_head(*parts, bias),
            rlk_torch.sharded_lm_head(hidden, rows, offsets, vocab=7, gather=True),
        )
        assert passed and not any(dtype.is_floating_point for dtype in passed)
        passed.clear()
        gradients(results[0], torch.ones(2, 6), rows)
        gradients(results[1], torch.ones(2, 7), *parts, bias)
        frozen = rlk_torch.sharded_lm_head(hidden.detach(), rows, offsets, vocab=7, check_shapes=False)
        gradients(frozen, torch.ones_like(frozen), rows, offsets)
        assert not passed
        gradients(results[2], torch.ones(2, 7), hidden)
        assert passed and not any(dtype.is_floating_point for dtype in passed)


def recorded(exchange: Any, passed: list[torch.dtype]) -> Any:
    def call(x: Any, *others: Any, **options: Any) -> Any:
        passed.append(x[0].dtype if isinstance(x, list) else x.dtype)
        return exchange(x, *others, **options)

    return call


def check_only_the_gradients_asked_for_are_computed(rank: int, size: int) -> None:
    hidden, weight = drawn(2, 6), drawn(7, 6)
    parts = of_columns(hidden, rank, size), of_columns(weight, rank, size)
    rows = of_rows(weight, rank, size)
    for asked, unasked in ((0, "weight_gradient"), (1, "hidden_gradient")):
        with pytest.MonkeyPatch.context() as patch:
            for module in ("rlk_torch.sharded_lm_head", "rlk_torch.sharded_parts"):
                for function in (unasked, f"_{unasked}", "bias_gradient"):
                    patch.setattr(importlib.import_module(module), function, None, raising=False)
            for operands, head in (
                ([hidden, rows], lambda *x: rlk_torch.sharded_lm_head(*x, vocab=7, gather=True)),
                (list(parts), rlk_torch.row_parallel_lm_head),
            ):
                operands[asked] = leaf(operands[asked])
                head(*operands).sum().backward()
                assert operands[asked].grad is not None


def sentence(call: Callable[[], Any], kind: type[Exception] = ValueError) -> str:
    """What the call raises on this rank."""
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def refused_by_one(odd: bool, call: Callable[[], Any], name: str, kind: type[Exception], own: str) -> None:
    """The odd rank, 1, raises its own error, and the others one that names it."""
    if odd:
        assert sentence(call, kind) == own
    else:
        assert sentence(call) == (
            f"rank 1 refused the arguments of {name} with an error there; expected a call that every rank accepts: see "
            "that error"
        )


def check_calls_that_differ(rank: int, size: int) -> None:
    """Every rank raises the same sentence, which names what differs, and where."""
    odd = rank == 1
    hidden, weight, bias = drawn(2, WIDTH), drawn(VOCAB, WIDTH), drawn(VOCAB)
    rows, offsets = of_rows(weight, rank, size), of_rows(bias, rank, size)
    columns = of_columns(hidden, rank, size), of_columns(weight, rank, size)

    def head(*operands: Any, vocab: int = VOCAB, **options: Any) -> Tensor:
        return rlk_torch.sharded_lm_head(*operands, vocab=vocab, **options)

    def table(ids: Any, part: Tensor = rows, **options: Any) -> Tensor:
        return rlk_torch.sharded_embedding(ids, part, VOCAB, **options)

    for what, usual, other, call in (
        ("digits", 3, 2, lambda: head(hidden, rows, digits=3 - odd)),
        ("gather (1: yes)", 0, 1, lambda: head(hidden, rows, gather=odd)),
        ("bias' dtype", None, "float32", lambda: head(hidden, rows, offsets if odd else None)),
        ("weight's dtype (None: an Aligned)", "float32", "float16", lambda: head(hidden, rows.half() if odd else rows)),
        ("vocab", 7, 8, lambda: head(hidden, rows, vocab=VOCAB + odd)),
        ("hidden asks for a gradient (1: yes)", 0, 1, lambda: head(leaf(hidden) if odd else hidden, rows)),
        ("hidden's leading shape", (2,), (1,),
         lambda: rlk_torch.row_parallel_lm_head(columns[0][: 2 - odd], columns[1])),
        ("vocab", 7, 6, lambda: rlk_torch.row_parallel_lm_head(columns[0], columns[1][: VOCAB - odd])),
        ("token_ids' dtype", "int64", "int8",
         lambda: table(torch.tensor([1], dtype=torch.int8 if odd else torch.int64))),
        ("padding_idx", None, 4, lambda: table([1, 2], padding_idx=4 if odd else None)),
        ("H", 6, 5, lambda: table([1, 2], rows[:, : WIDTH - odd])),
        ("the operator", "sharded_embedding", "row_parallel_lm_head",
         lambda: rlk_torch.row_parallel_lm_head(*columns) if odd else table([1, 2])),
    ):  # fmt: skip
        assert sentence(call) == (
            f"the ranks of a group differ in their calls: {what} is {usual} on ranks 0 and 2, {other} on rank 1; "
            "expected one call on all ranks: pass the same everywhere"
        )
    assert_bits_equal(head(hidden, rows, gather=True), rlk_torch.lm_head(hidden, weight))  # the group still works


def check_replicas_that_differ(rank: int, size: int) -> None:
    """One bit of hidden or bias, or the order of ids: a sum over ranks would mean nothing."""
    hidden, weight, bias = drawn(2, WIDTH), drawn(VOCAB, WIDTH), drawn(VOCAB)
    rows, columns = of_rows(weight, rank, size), (of_columns(hidden, rank, size), of_columns(weight, rank, size))
    if rank == 1:
        bias[3:4].view(torch.int32).bitwise_xor_(1)
        hidden[1:].view(torch.int32).bitwise_xor_(1)
    for name, call in (
        ("hidden's", lambda: rlk_torch.sharded_lm_head(hidden, rows, vocab=VOCAB)),
        ("bias'", lambda: rlk_torch.row_parallel_lm_head(*columns, bias)),
        ("token_ids'", lambda: rlk_torch.sharded_embedding([1, 2] if rank == 1 else [2, 1], rows, VOCAB)),
    ):
        said = sentence(call)
        assert said.startswith(f"the ranks of a group differ in their calls: {name} checksum is 0x"), said
        assert " on ranks 0 and 2, 0x" in said and " on rank 1; expected one call" in said, said


def check_shapes_that_differ(rank: int, size: int) -> None:
    hidden = drawn(2 + (rank == 2), WIDTH)
    said = sentence(lambda: rlk_torch.sharded_lm_head(hidden, of_rows(drawn(VOCAB, WIDTH), rank, size), vocab=VOCAB))
    shapes = "hidden's shape is (2, 6) on ranks 0 and 1, (3, 6) on rank 2; hidden's checksum is 0x"
    assert said.startswith(f"the ranks of a group differ in their calls: {shapes}"), said


def check_a_rank_outside_the_group(rank: int, size: int) -> None:
    group, weight = dist.new_group([0, 2]), drawn(4, 3)
    if rank == 1:
        said = sentence(lambda: rlk_torch.sharded_embedding([0], weight[:2], 4, group=group))
        assert said == "this rank is not in group; expected a call on the ranks of the group alone"
    else:
        rows = rlk_torch.sharded_embedding([3, 0], of_rows(weight, rank // 2, 2), 4, group=group)
        assert_bits_equal(rows, weight[[3, 0]])


def check_one_rank_refuses(rank: int, size: int) -> None:
    """It raises its own error, the others one that names it."""
    weight, hidden = drawn(VOCAB, WIDTH), drawn(2, WIDTH)
    rows, columns = of_rows(weight, rank, size), (of_columns(hidden, rank, size), of_columns(weight, rank, size))
    odd = rank == 1
    for name, kind, own, call in (
        ("sharded_lm_head", TypeError,
         "weight has dtype int32; expected bfloat16, float16 or float32: convert it first",
         lambda: rlk_torch.sharded_lm_head(hidden, rows.int() if odd else rows, vocab=VOCAB)),
        ("row_parallel_lm_head_fp32", ValueError,
         "digits is 5; expected 2 (coarse), 3 or 4 (ground truth)",
         lambda: rlk_torch.row_parallel_lm_head_fp32(*columns, digits=4 + odd)),
        ("sharded_embedding", IndexError,
         "token_ids[1] is 7; expected 0 <= id < 7, the vocab: check the tokenizer against the table, or mask padding "
         "ids first",
         lambda: rlk_torch.sharded_embedding([0, 6 + odd], rows, VOCAB)),
        ("sharded_embedding", ValueError,
         "weight has 2 rows on rank 1 of 3; expected 3, the rows 3 to 6 of 7: divide it as shard_range(7, 3, 1) or "
         "torch.chunk do",
         lambda: rlk_torch.sharded_embedding([0, 6], rows[: 3 - odd], VOCAB)),
    ):  # fmt: skip
        refused_by_one(odd, call, name, kind, own)
