"""Transforms that divide the vocab or the hidden dimension into parts, as devices would hold them.

Parts of a table or of an LM head are calls of their own. Parts of the hidden dimension, or of the vocab of a
log-probability, are added up inside one call, which an implementation offers or not: `crosscheck.trial.Trial.parts`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.calls import Call
from crosscheck.trial import SHARDS, Attempt, NotApplicable, Trial, all_of, first, joined
from crosscheck.verdict import counted

__all__ = ["NAMES", "in_shards", "shard_trials"]

Array = NDArray[Any]


def in_shards(what: str, count: int) -> str:
    """The name of a transform.

    Example:
        >>> in_shards("vocab", 3)
        'vocab in 3 shards'
    """
    return f"{what} in {counted(count, 'shard')}"


NAMES = tuple(in_shards(what, count) for what in ("vocab", "hidden") for count in SHARDS)


def shard_trials(call: Call, counts: Sequence[int]) -> Iterator[Attempt]:
    """One transform for each number of shards, of the vocab and then of the hidden dimension."""
    for count in counts:
        if call.ids == "target_ids":
            yield Trial("chunking", in_shards("vocab", count), (call.inputs,), first, all_of, parts=("vocab", count))
        elif count > 1:
            yield _vocab(call, count)
    if call.axis == "hidden":
        for count in counts:
            yield Trial("chunking", in_shards("hidden", count), (call.inputs,), first, all_of, parts=("hidden", count))


def _vocab(call: Call, count: int) -> Attempt:
    """Shards of one size, which overlap where it does not divide the vocab: one new shape, not two."""
    vocab = call.vocab
    if vocab < count:
        return NotApplicable("chunking", in_shards("vocab", count), f"the vocab has {counted(vocab, 'row')}")
    size = -(-vocab // count)
    starts = [min(i * size, vocab - size) for i in range(count)]
    make = _table if call.axis == "token_ids" else _head
    return make(call, in_shards("vocab", count), size, starts)


def _head(call: Call, name: str, size: int, starts: Sequence[int]) -> Trial[Array]:
    calls = tuple(call.with_vocab(slice(start, start + size)) for start in starts)
    ends = [*starts[1:], call.vocab]  # of what is taken of each
    parts = [slice(0, end - start) for start, end in zip(starts, ends, strict=True)]
    return Trial("chunking", name, calls, joined(parts, 1), all_of)


def _table(call: Call, name: str, size: int, starts: Sequence[int]) -> Trial[Array]:
    """Each shard looks up the ids that it holds, and its first row in place of the others. Bad ids are so in each."""
    ids, good = call.rows.arrays["token_ids"], call.good_ids.reshape(-1)
    wide = np.where(good, ids, 0).astype(np.int64)
    holders = np.minimum(wide // size, len(starts) - 1)
    calls = []
    for i, start in enumerate(starts):
        here = np.where(good, np.where(holders == i, wide - start, 0), ids).astype(ids.dtype)
        calls.append(call.with_rows(call.rows.but(token_ids=here), weight=call.inputs["weight"][start : start + size]))
    return Trial("chunking", name, tuple(calls), _chosen(holders), all_of)


def _chosen(holders: Array) -> Callable[[list[Array]], Array]:
    """Of each row the result of the shard that holds it."""

    def choose(results: list[Array]) -> Array:
        out = results[0].copy()
        for i, result in enumerate(results):
            out[holders == i] = result[holders == i]
        return out

    return choose
