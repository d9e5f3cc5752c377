"""Transforms that must not change a bit: the same rows in another company, order, chunk or storage.

Each transform is a pure NumPy function of a call's inputs. It gives the transformed call (or calls) and says
what part of the untransformed result the new result must equal, so a candidate is compared with itself: a
candidate may be wrong everywhere and still batch-invariant, and the report tells the two apart.

Few row counts are used (1, half, all, all + 2), since each new shape costs a compiler some tenths of a second.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.calls import Call, Rows
from crosscheck.cases import Inputs
from crosscheck.logprob import MAX_VOCAB
from crosscheck.shards import shard_trials
from crosscheck.trial import (
    COLUMNS,
    LARGE,
    PADDING,
    SHARDS,
    Attempt,
    NotApplicable,
    Trial,
    all_of,
    first,
    joined,
    part,
    pick,
)

__all__ = ["COLUMNS", "LARGE", "PADDING", "SHARDS", "Attempt", "NotApplicable", "Trial", "trials"]

Array = NDArray[Any]


def trials(inputs: Inputs, seed: int, shards: Sequence[int] = SHARDS) -> Iterator[Attempt]:
    """Every transform of a call, one at a time: of each the inputs exist only while it is looked at.

    Arguments:
        shards: into how many parts the vocab and the hidden dimension are divided, one number after the other.
    """
    call = Call(inputs, np.random.default_rng([seed, 1]))
    if len(call.rows) and call.large.size:
        for transforms in (_population, _position, _neighbours, _padding, _chunking):
            yield from transforms(call)
        yield from shard_trials(call, shards)
    else:
        for column in ("population", "position", "neighbours", "padding", "chunking"):
            yield NotApplicable(column, "any", "the case has no rows, or an empty weight")
    yield from _layout(call)
    yield from _repeat(call)


def _population(call: Call) -> Iterator[Attempt]:
    rows, count = call.rows, len(call.rows)
    if count < 2:
        yield NotApplicable("population", "rows removed", "the case has one row")
    else:
        for name, at in (("first row alone", 0), ("last row alone", count - 1)):
            one = slice(at, at + 1)
            yield Trial("population", name, (call.with_rows(rows[one]),), first, pick(one))
    if count > 2:
        second = call.with_rows(rows[::2])
        yield Trial("population", "every second row removed", (second,), first, pick(slice(None, None, 2)))
    more = call.with_rows(rows.then(call.garbage(PADDING, finite=True)))
    yield Trial("population", "rows added", (more,), part(slice(0, count)), all_of)


def _position(call: Call) -> Iterator[Attempt]:
    rows, count = call.rows, len(call.rows)
    if count < 2:
        yield NotApplicable("position", "rows in another order", "the case has one row")
    else:
        for name, order in (
            ("rows reversed", np.arange(count)[::-1]),
            ("rows shuffled", call.rng.permutation(count)),
        ):
            yield Trial("position", name, (call.with_rows(rows[order]),), first, pick(order))
    if call.axis != "token_ids":
        if call.vocab < 2:
            yield NotApplicable("position", "vocab shuffled", "the vocab has one row")
        elif call.large.nbytes > LARGE:
            yield _too_large(call, "position", "vocab shuffled")
        else:
            order, shuffled = call.permuted()
            whole = all_of if call.ids else pick((slice(None), order))
            yield Trial("position", "vocab shuffled", (shuffled,), first, whole)
            if call.ids:  # in each sum over the vocab one order is as good as few
                yield Trial("position", "vocab reversed", (call.permuted(reverse=True)[1],), first, all_of)


def _too_large(call: Call, column: str, name: str) -> NotApplicable:
    size, what = call.large.nbytes // 2**20, "weight has" if "weight" in call.inputs else "logits have"
    return NotApplicable(column, name, f"the {what} {size} MB; above {LARGE // 2**20} MB no copy is made")


def _neighbours(call: Call) -> Iterator[Attempt]:
    rows, count = call.rows, len(call.rows)
    if count < 2:
        yield NotApplicable("neighbours", "other rows replaced", "the case has one row")
    else:
        for start, kept in ((0, "even"), (1, "odd")):
            keep = slice(start, None, 2)
            for what, finite in (("huge values", True), ("NaN and infinities", False)):
                if call.axis == "token_ids":
                    what = "other ids"
                    if not finite:
                        continue
                changed = rows.where(keep, call.garbage(count, finite=finite))
                name = f"{kept} rows kept, the others replaced by {what}"
                yield Trial("neighbours", name, (call.with_rows(changed),), part(keep), pick(keep))
    yield from _vocab_neighbours(call)


def _vocab_neighbours(call: Call) -> Iterator[Attempt]:
    vocab = call.vocab
    if call.ids == "target_ids":
        yield from _impossible_ids(call)
        return
    if call.axis == "hidden":
        name = "every second weight row replaced by NaN"
        keep = np.arange(vocab) % 2 == 0
    else:
        name = "table rows that no id names replaced by NaN"
        keep = np.isin(np.arange(vocab), call.inputs["token_ids"])
    if keep.all():
        yield NotApplicable("neighbours", name, "there is no such row")
    elif call.large.nbytes > LARGE:
        yield _too_large(call, "neighbours", name)
    else:
        changed = call.inputs["weight"].copy()
        changed[~keep] = np.nan
        index = (slice(None), keep) if call.axis == "hidden" else slice(None)
        inputs = {**call.inputs, "weight": changed}
        yield Trial("neighbours", name, (inputs,), part(index), pick(index))


def _impossible_ids(call: Call) -> Iterator[Attempt]:
    """Ids with a logit of -inf, which cannot occur: they are nothing to a log-probability."""
    name = "ids added that cannot occur"
    if "logits" not in call.inputs:
        yield NotApplicable("neighbours", name, "the logits are made in the call")
    elif call.vocab > MAX_VOCAB - PADDING:
        yield NotApplicable("neighbours", name, f"the vocab has {call.vocab} ids, and at most {MAX_VOCAB} are allowed")
    elif (call.inputs["target_ids"] >= call.vocab).any():
        yield NotApplicable("neighbours", name, "a target is beyond the vocab, and would be an id that is added")
    elif call.large.nbytes > LARGE:
        yield _too_large(call, "neighbours", name)
    else:
        logits = call.inputs["logits"]
        added = np.full((*logits.shape[:-1], PADDING), -np.inf, logits.dtype)
        inputs = {**call.inputs, "logits": np.concatenate([logits, added], -1)}
        yield Trial("neighbours", name, (inputs,), first, all_of)


def _padding(call: Call) -> Iterator[Attempt]:
    rows, count = call.rows, len(call.rows)
    fillings: tuple[tuple[str, Rows], ...]
    if call.axis == "token_ids":
        last = min(call.vocab - 1, int(np.iinfo(call.inputs["token_ids"].dtype).max))
        fillings = tuple((f"pad token {pad}", call.same(PADDING, pad)) for pad in dict.fromkeys((0, last)))
    else:
        zeros = call.same(PADDING)
        fillings = ("zero rows", zeros), ("NaN and infinite rows", call.garbage(PADDING, finite=False))
    for name, filling in fillings:
        right = call.with_rows(rows.then(filling))
        yield Trial("padding", f"{name} after", (right,), part(slice(0, count)), all_of)
        left = call.with_rows(filling.then(rows))
        yield Trial("padding", f"{name} before", (left,), part(slice(PADDING, None)), all_of)


def _chunking(call: Call) -> Iterator[Attempt]:
    """Two chunks of one size each, which overlap by one where the number is odd: one new shape, not two."""
    rows, count = call.rows, len(call.rows)
    if count < 2:
        yield NotApplicable("chunking", "rows in two chunks", "the case has one row")
    else:
        half = -(-count // 2)
        calls = (call.with_rows(rows[:half]), call.with_rows(rows[count - half :]))
        join = joined((slice(0, count - half), slice(0, half)), 0)
        yield Trial("chunking", "rows in two chunks", calls, join, all_of)


def _layout(call: Call) -> Iterator[Attempt]:
    rows = call.rows
    names = [name for name, x in call.inputs.items() if name != "weight" or x.nbytes <= LARGE]
    if "weight" in call.inputs and "weight" not in names:
        yield _too_large(call, "layout", "weight transposed, strided, unaligned")
    for layout in ("transposed", "strided", "unaligned"):
        stored = {
            name: "strided" if layout == "transposed" and call.inputs[name].ndim < 2 else layout
            for name in names
            if call.inputs[name].ndim
        }
        if stored:
            yield Trial("layout", f"{layout} storage", (call.inputs,), first, all_of, stored)
    if len(rows) < 2:
        yield NotApplicable(
            "layout", "one row expanded", "the case has one row" if len(rows) else "the case has no rows"
        )
    else:
        again = np.zeros(len(rows), int)
        stored = dict.fromkeys(rows.arrays, "expanded")
        yield Trial("layout", "one row expanded", (call.with_rows(rows[again]),), first, pick(again), stored)


def _repeat(call: Call) -> Iterator[Attempt]:
    for name in ("second run", "third run"):
        yield Trial("repeat", name, (call.inputs,), first, all_of)
