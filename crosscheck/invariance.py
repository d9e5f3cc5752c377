"""Transforms that must not change a bit: the same rows in another company, order, chunk or storage.

Each transform is a pure NumPy function of a call's inputs. It gives the transformed call (or calls) and says
what part of the untransformed result the new result must equal, so a candidate is compared with itself: a
candidate may be wrong everywhere and still batch-invariant, and the report tells the two apart.

Few row counts are used (1, half, all, all + 2), since each new shape costs a compiler some tenths of a second.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from crosscheck.calls import Call
from crosscheck.cases import Inputs

__all__ = ["COLUMNS", "LARGE", "LAYOUTS", "Attempt", "NotApplicable", "Trial", "trials"]

Array = NDArray[Any]
Result = TypeVar("Result")

COLUMNS = ("population", "position", "neighbours", "padding", "chunking", "layout", "repeat")
LAYOUTS = ("transposed", "strided", "expanded", "unaligned")
LARGE = 256 * 2**20  # bytes; of a larger weight no transformed copy is made
PADDING = 2  # rows


@dataclass(frozen=True)
class Trial(Generic[Result]):
    """One transform of one call, whose result is an array [rows, width] or, of a gradient, arrays by name.

    Arguments:
        column: one of COLUMNS, or "grad".
        name: what was done, in a few words.
        calls: the inputs of each call to make.
        join: the results to what is compared.
        expected: the untransformed result to what it must equal.
        layout: how to store the named inputs, of LAYOUTS.
    """

    column: str
    name: str
    calls: tuple[Inputs, ...]
    join: Callable[[list[Result]], Result]
    expected: Callable[[Result], Result]
    layout: dict[str, str] = field(default_factory=dict)

    def keeps_shapes(self, inputs: Inputs) -> bool:
        """Whether the calls have the shapes and the storage of the untransformed one: no new compilation."""
        return not self.layout and all(
            call[name].shape == array.shape for call in self.calls for name, array in inputs.items()
        )


@dataclass(frozen=True)
class NotApplicable:
    column: str
    name: str
    reason: str


Attempt = Trial[Array] | NotApplicable


def trials(inputs: Inputs, seed: int) -> Iterator[Attempt]:
    """Every transform of a call, one at a time: of each the inputs exist only while it is looked at."""
    call = Call(inputs, np.random.default_rng([seed, 1]))
    if len(call.rows) and call.weight.size:
        for transforms in (_population, _position, _neighbours, _padding, _chunking):
            yield from transforms(call)
    else:
        for column in ("population", "position", "neighbours", "padding", "chunking"):
            yield NotApplicable(column, "any", "the case has no rows, or an empty weight")
    yield from _layout(call)
    yield from _repeat(call)


def _first(results: list[Array]) -> Array:
    return results[0]


def _part(index: Any) -> Callable[[list[Array]], Array]:
    """Of the one result, a part."""
    return lambda results: results[0][index]


def _pick(index: Any) -> Callable[[Array], Array]:
    """Of the untransformed result, a part."""
    return lambda result: result[index]


def _all(result: Array) -> Array:
    return result


def _population(call: Call) -> Iterator[Attempt]:
    rows, count = call.rows, len(call.rows)
    if count < 2:
        yield NotApplicable("population", "rows removed", "the case has one row")
    else:
        for name, at in (("first row alone", 0), ("last row alone", count - 1)):
            one = slice(at, at + 1)
            yield Trial("population", name, (call.with_rows(rows[one]),), _first, _pick(one))
    if count > 2:
        second = call.with_rows(rows[::2])
        yield Trial("population", "every second row removed", (second,), _first, _pick(slice(None, None, 2)))
    more = call.with_rows(np.concatenate([rows, call.garbage(PADDING, finite=True)]))
    yield Trial("population", "rows added", (more,), _part(slice(0, count)), _all)


def _position(call: Call) -> Iterator[Attempt]:
    rows, count = call.rows, len(call.rows)
    if count < 2:
        yield NotApplicable("position", "rows in another order", "the case has one row")
    else:
        for name, order in (
            ("rows reversed", np.arange(count)[::-1]),
            ("rows shuffled", call.rng.permutation(count)),
        ):
            yield Trial("position", name, (call.with_rows(rows[order]),), _first, _pick(order))
    if call.axis == "hidden":
        vocab = len(call.weight)
        order = call.rng.permutation(vocab)
        if vocab < 2:
            yield NotApplicable("position", "vocab shuffled", "the vocab has one row")
        elif call.weight.nbytes > LARGE:
            yield _too_large(call, "position", "vocab shuffled")
        else:
            shuffled = call.with_vocab(order)
            yield Trial("position", "vocab shuffled", (shuffled,), _first, _pick((slice(None), order)))


def _too_large(call: Call, column: str, name: str) -> NotApplicable:
    size = call.weight.nbytes // 2**20
    return NotApplicable(column, name, f"the weight has {size} MB; above {LARGE // 2**20} MB it is not copied")


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
                changed = call.garbage(count, finite=finite)
                changed[keep] = rows[keep]
                name = f"{kept} rows kept, the others replaced by {what}"
                yield Trial("neighbours", name, (call.with_rows(changed),), _part(keep), _pick(keep))
    yield from _vocab_neighbours(call)


def _vocab_neighbours(call: Call) -> Iterator[Attempt]:
    vocab = len(call.weight)
    if call.axis == "hidden":
        name = "every second weight row replaced by NaN"
        keep = np.arange(vocab) % 2 == 0
    else:
        name = "table rows that no id names replaced by NaN"
        keep = np.isin(np.arange(vocab), call.rows)
    if keep.all():
        yield NotApplicable("neighbours", name, "there is no such row")
    elif call.weight.nbytes > LARGE:
        yield _too_large(call, "neighbours", name)
    else:
        changed = call.weight.copy()
        changed[~keep] = np.nan
        index = (slice(None), keep) if call.axis == "hidden" else slice(None)
        inputs = {**call.inputs, "weight": changed}
        yield Trial("neighbours", name, (inputs,), _part(index), _pick(index))


def _padding(call: Call) -> Iterator[Attempt]:
    rows, count = call.rows, len(call.rows)
    fillings: tuple[tuple[str, Array], ...]
    if call.axis == "hidden":
        zeros = np.zeros((PADDING, rows.shape[1]), rows.dtype)
        fillings = ("zero rows", zeros), ("NaN and infinite rows", call.garbage(PADDING, finite=False))
    else:
        last = min(len(call.weight) - 1, int(np.iinfo(rows.dtype).max))
        fillings = tuple((f"pad token {pad}", np.full(PADDING, pad, rows.dtype)) for pad in dict.fromkeys((0, last)))
    for name, filling in fillings:
        right = call.with_rows(np.concatenate([rows, filling]))
        yield Trial("padding", f"{name} after", (right,), _part(slice(0, count)), _all)
        left = call.with_rows(np.concatenate([filling, rows]))
        yield Trial("padding", f"{name} before", (left,), _part(slice(PADDING, None)), _all)


def _chunking(call: Call) -> Iterator[Attempt]:
    """Two chunks of one size each, which overlap by one where the number is odd: one new shape, not two."""
    rows, count = call.rows, len(call.rows)
    if count < 2:
        yield NotApplicable("chunking", "rows in two chunks", "the case has one row")
    else:
        half = -(-count // 2)
        calls = (call.with_rows(rows[:half]), call.with_rows(rows[count - half :]))
        yield Trial("chunking", "rows in two chunks", calls, _joined(0, count - half), _all)
    vocab = len(call.weight)
    if vocab < 2:
        yield NotApplicable("chunking", "vocab in two shards", "the vocab has one row")
    elif call.axis == "hidden":
        yield _head_shards(call, vocab, -(-vocab // 2))
    else:
        yield _table_shards(call, vocab, -(-vocab // 2))


def _joined(axis: int, count: int) -> Callable[[list[Array]], Array]:
    """The first `count` of the first result along an axis, then the second."""

    def join(results: list[Array]) -> Array:
        first = results[0][:count] if axis == 0 else results[0][:, :count]
        return np.concatenate([first, results[1]], axis)

    return join


def _head_shards(call: Call, vocab: int, half: int) -> Trial[Array]:
    calls = (call.with_vocab(slice(0, half)), call.with_vocab(slice(vocab - half, None)))
    return Trial("chunking", "vocab in two shards", calls, _joined(1, vocab - half), _all)


def _table_shards(call: Call, vocab: int, half: int) -> Trial[Array]:
    """Each shard looks up the ids that it holds, and row 0 in place of the others."""
    rows, base = call.rows, vocab - half
    low = rows < base
    first = call.with_rows(np.where(low, rows, 0).astype(rows.dtype), weight=call.weight[:half])
    shifted = np.where(low, 0, rows.astype(np.int64) - base).astype(rows.dtype)
    second = call.with_rows(shifted, weight=call.weight[base:])

    def join(results: list[Array]) -> Array:
        joined = results[1].copy()
        joined[low] = results[0][low]
        return joined

    return Trial("chunking", "vocab in two shards", (first, second), join, _all)


def _layout(call: Call) -> Iterator[Attempt]:
    rows = call.rows
    copied = ["weight"] if call.weight.nbytes <= LARGE else []
    if not copied:
        yield _too_large(call, "layout", "weight transposed, strided, unaligned")
    names = [call.axis, *copied, *(["bias"] if "bias" in call.inputs else [])]
    for layout in ("transposed", "strided", "unaligned"):
        stored = {
            name: "strided" if layout == "transposed" and call.inputs[name].ndim < 2 else layout
            for name in names
            if call.inputs[name].ndim
        }
        if stored:
            yield Trial("layout", f"{layout} storage", (call.inputs,), _first, _all, stored)
    if len(rows) < 2:
        yield NotApplicable(
            "layout", "one row expanded", "the case has one row" if len(rows) else "the case has no rows"
        )
    else:
        same = np.repeat(rows[:1], len(rows), axis=0)
        inputs = {**call.inputs, call.axis: same}
        first = np.zeros(len(rows), int)
        yield Trial("layout", "one row expanded", (inputs,), _first, _pick(first), {call.axis: "expanded"})


def _repeat(call: Call) -> Iterator[Attempt]:
    for name in ("second run", "third run"):
        yield Trial("repeat", name, (call.inputs,), _first, _all)
