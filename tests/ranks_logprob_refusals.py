"""On ranks: what log-probabilities of a sharded vocab exchange, and what ranks are told that differ in their calls."""

import importlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks_exchanges import recorded, refused_by_one, sentence
from ranks_values import drawn, gradients, leaf, of_columns, of_rows
from torch import Tensor

import rlk_torch
from crosscheck.bits import assert_bits_equal

VOCAB, WIDTH = 7, 6


def check_only_integers_pass_between_ranks(rank: int, size: int) -> None:
    """Of each block of rows the largest logits, then the sums; backward what hidden's gradient alone needs."""
    passed: list[torch.dtype] = []
    hidden, rows, bias = leaf(drawn(4, WIDTH)), leaf(of_rows(drawn(VOCAB, WIDTH), rank, size)), drawn(VOCAB)
    offsets, part = leaf(of_rows(bias, rank, size)), leaf(of_columns(drawn(4, VOCAB), rank, size))
    options = {"vocab": VOCAB, "check_shapes": False}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "all_gather"):
            patch.setattr(dist, name, recorded(getattr(dist, name), passed))
        of_logits = rlk_torch.sharded_selected_logprob(part, [6, 0, 3, 3], **options)
        assert passed == [torch.int32, torch.int64]
        gradients(of_logits, torch.ones(4), part)
        assert len(passed) == 2
        options["budget"] = 4 * 3 * 2  # two rows
        frozen = rlk_torch.sharded_linear_logprob(hidden.detach(), rows, [6, 0, 3, 3], offsets, **options)
        assert passed == [torch.int32, torch.int64] * 3
        gradients(frozen, torch.ones(4), rows, offsets)
        assert len(passed) == 6
        of_states = rlk_torch.sharded_linear_logprob(hidden, rows, [6, 0, 3, 3], offsets, **options)
        gradients(of_states, torch.ones(4), hidden)
        assert len(passed) > 10 and not any(dtype.is_floating_point for dtype in passed)


def check_only_the_gradients_asked_for_are_computed(rank: int, size: int) -> None:
    module = importlib.import_module("rlk_torch.sharded_linear_logprob")
    for asked, unasked in ((0, "of_shared"), (1, "grad_hidden")):
        operands = [drawn(2, WIDTH), of_rows(drawn(VOCAB, WIDTH), rank, size)]
        operands[asked] = leaf(operands[asked])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, unasked, None)
            rlk_torch.sharded_linear_logprob(*operands, [0, 6], vocab=VOCAB).sum().backward()
        assert operands[asked].grad is not None


def check_calls_that_differ(rank: int, size: int) -> None:
    """Every rank raises the same sentence, which names what differs, and where."""
    odd = rank == 1
    hidden, weight, logits, ids = drawn(2, WIDTH), drawn(VOCAB, WIDTH), drawn(2, VOCAB), [6, 0]
    rows, part = of_rows(weight, rank, size), of_columns(logits, rank, size)

    def of_logits(logits: Tensor = part, ids: Any = ids, **options: Any) -> Tensor:
        return rlk_torch.sharded_selected_logprob(logits, ids, **{"vocab": VOCAB, **options})

    def of_states(hidden: Tensor = hidden, weight: Tensor = rows, ids: Any = ids, **options: Any) -> Tensor:
        return rlk_torch.sharded_linear_logprob(hidden, weight, ids, vocab=VOCAB, **options)

    for what, usual, other, call in (
        ("logits' dtype", "float32", "bfloat16", lambda: of_logits(part.bfloat16() if odd else part)),
        ("vocab", 7, 8, lambda: of_logits(vocab=VOCAB + odd)),
        ("digits", 4, 3, lambda: of_states(digits=4 - odd)),
        ("budget", 8, 9, lambda: of_states(budget=8 + odd)),
        ("weight's dtype (None: an Aligned)", "float32", "float16",
         lambda: of_states(weight=rows.half() if odd else rows)),
        ("hidden asks for a gradient (1: yes)", 0, 1, lambda: of_states(leaf(hidden) if odd else hidden)),
        ("the operator", "sharded_selected_logprob", "sharded_linear_logprob",
         lambda: of_states() if odd else of_logits()),
    ):  # fmt: skip
        assert sentence(call) == (
            f"the ranks of a group differ in their calls: {what} is {usual} on ranks 0 and 2, {other} on rank 1; "
            "expected one call on all ranks: pass the same everywhere"
        )
    said = sentence(lambda: of_logits(check_ids=odd))  # ids that are not read have no checksum
    assert said.startswith(
        "the ranks of a group differ in their calls: check_ids (1: yes) is 0 on ranks 0 and 2, 1 on rank 1; "
        "target_ids' checksum is 0x0000000000000000 on ranks 0 and 2, 0x"
    ), said
    for call in (of_logits, of_states):
        said = sentence(lambda: call(ids=[0, 6] if odd else ids))  # noqa: B023
        assert said.startswith("the ranks of a group differ in their calls: target_ids' checksum is 0x"), said
        assert " on ranks 0 and 2, 0x" in said and " on rank 1; expected one call" in said, said
    assert_bits_equal(of_logits(), rlk_torch.selected_logprob(logits, ids))  # the group still works


def check_rows_that_differ(rank: int, size: int) -> None:
    count = 2 + (rank == 2)
    part = of_columns(drawn(count, VOCAB), rank, size)
    assert sentence(lambda: rlk_torch.sharded_selected_logprob(part, [0] * count, vocab=VOCAB, check_ids=False)) == (
        "the ranks of a group differ in their calls: logits' leading shape is (2,) on ranks 0 and 1, (3,) on rank 2; "
        "target_ids' shape is (2,) on ranks 0 and 1, (3,) on rank 2; expected one call on all ranks: pass the same "
        "everywhere"
    )


def check_one_rank_refuses(rank: int, size: int) -> None:
    """It raises its own error, the others one that names it."""
    odd, hidden = rank == 1, drawn(2, WIDTH)
    rows, part = of_rows(drawn(VOCAB, WIDTH), rank, size), of_columns(drawn(2, VOCAB), rank, size)
    for name, kind, own, call in (
        ("sharded_selected_logprob", IndexError,
         "target_ids[1] is 7; expected 0 <= id < 7, the vocab: check the tokenizer against the table, or mask padding "
         "ids first",
         lambda: rlk_torch.sharded_selected_logprob(part, [0, 6 + odd], vocab=VOCAB)),
        ("sharded_selected_logprob", ValueError,
         "logits has 2 columns on rank 1 of 3; expected 3, the columns 3 to 6 of 7: divide it as shard_range(7, 3, 1) "
         "or torch.chunk do",
         lambda: rlk_torch.sharded_selected_logprob(part[:, : 3 - odd], [0, 6], vocab=VOCAB)),
        ("sharded_linear_logprob", ValueError,
         "budget is 0; expected a positive number of bytes for the logits of some rows",
         lambda: rlk_torch.sharded_linear_logprob(hidden, rows, [0, 6], vocab=VOCAB, budget=1 - odd)),
    ):  # fmt: skip
        refused_by_one(odd, call, name, kind, own)
