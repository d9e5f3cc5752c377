"""Transforms that must not change a bit of a gradient, beside those of the results in crosscheck/invariance.py.

The calls have the upstream gradient among their inputs, by the name "grad", and results are gradients by name. A
gradient of the weight or of a bias is a sum over the rows of the call, so it stays where rows change places or where
rows come in whose upstream gradient is zero; a gradient of hidden states belongs to its row alone.

The rows that come in are rows of the call once more, or zeros: the contract aligns a column of hidden states as one
vector, so a row of larger values counts there even where its upstream gradient is zero.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.calls import Call, Rows
from crosscheck.cases import Inputs
from crosscheck.gradients import Gradients, wanted
from crosscheck.shards import in_shards
from crosscheck.trial import PADDING, NotApplicable, Trial

__all__ = ["BAD_IDS", "gradient_trials", "work"]

Array = NDArray[Any]
Attempt = Trial[Gradients] | NotApplicable
BAD_IDS = "bad ids added"
EVERYTHING = 2**25  # multiplications; of a larger case few transforms are tried


def work(inputs: Inputs) -> int:
    """The multiplications of one gradient of an LM head, or the elements of a table's or of logits' gradient."""
    size = int(inputs["logits" if "logits" in inputs else "weight"].size)
    return size * max(1, inputs["hidden"].size // max(1, inputs["hidden"].shape[-1])) if "hidden" in inputs else size


def _no_gradient(rows: Rows) -> Rows:
    """These rows with an upstream gradient of zero."""
    return rows.but(grad=np.zeros_like(rows.arrays["grad"]))


def gradient_trials(inputs: Inputs, seed: int) -> Iterator[Attempt]:
    """Every transform of a call, one at a time."""
    call = Call(inputs, np.random.default_rng([seed, 4]))
    if not len(call.rows) or not call.large.size:
        yield NotApplicable("grad", "rows changed", "the case has no rows, or an empty weight")
    elif work(inputs) > EVERYTHING:
        yield NotApplicable("grad", "all but another order and a second run", "the case is large, and these take long")
        yield from _position(call)
    else:
        for transforms in (_population, _position, _neighbours, _padding, _chunking, _layout):
            yield from transforms(call)
    yield Trial("grad", "second run", (inputs,), _part(), _pick())


def _pick(**index: Any) -> Callable[[Gradients], Gradients]:
    """All gradients, of some a part."""
    return lambda found: {name: array[index.get(name, ...)] for name, array in found.items()}


def _only(name: str, index: Any) -> Callable[[Gradients], Gradients]:
    """One gradient, or a part of it."""
    return lambda found: {name: found[name][index]}


def _part(**index: Any) -> Callable[[list[Gradients]], Gradients]:
    return lambda results: _pick(**index)(results[0])


def _population(call: Call) -> Iterator[Attempt]:
    rows, count = call.rows, len(call.rows)
    more = call.with_rows(rows.then(_no_gradient(rows[np.arange(PADDING) % count])))
    yield Trial("grad", "rows added with zero gradient", (more,), _part(**_own(slice(0, count))), _pick())
    if call.ids:
        yield _bad_ids(call)


def _own(index: Any) -> dict[str, Any]:
    """An index for each gradient that has an entry for each row."""
    return {"hidden": index, "logits": index}


def _bad_ids(call: Call) -> Attempt:
    """Adapters take gradients without a check of the ids: a bad one adds nothing, whatever its gradient."""
    name, rows, ids = BAD_IDS, call.rows, str(call.ids)
    limits = np.iinfo(rows.arrays[ids].dtype)
    bad = call.vocab if call.vocab <= limits.max else -1
    if bad < limits.min:
        return NotApplicable("grad", name, f"every {limits.dtype} is in the vocab")
    more = call.same(PADDING)
    more = more.but(**{ids: np.full_like(more.arrays[ids], bad), "grad": np.ones_like(more.arrays["grad"])})
    return Trial("grad", name, (call.with_rows(rows.then(more)),), _part(**_own(slice(0, len(rows)))), _pick())


def _position(call: Call) -> Iterator[Attempt]:
    rows, count = call.rows, len(call.rows)
    if count < 2:
        yield NotApplicable("grad", "rows shuffled", "the case has one row")
    else:
        order = call.rng.permutation(count)
        yield Trial("grad", "rows shuffled", (call.with_rows(rows[order]),), _part(), _pick(**_own(order)))
    if call.axis != "token_ids" and call.vocab > 1:
        order, shuffled = call.permuted()
        moved = {"weight": order, "bias": order, "logits": (slice(None), order)}
        yield Trial("grad", "vocab shuffled", (shuffled,), _part(), _pick(**moved))


def _neighbours(call: Call) -> Iterator[Attempt]:
    """Upstream gradients of other rows, or of other ids, become huge: nothing may be scaled by all of them."""
    name, rows = "the upstream gradients of others replaced", call.rows
    if call.axis == "token_ids":
        named = np.unique(rows.arrays["token_ids"])[::2]
        keep = np.isin(rows.arrays["token_ids"], named)
        what = _only("weight", named.astype(int))
    else:
        keep = np.arange(len(rows)) % 2 == 0
        what = _only(call.axis, keep)
    if keep.all():
        yield NotApplicable("grad", name, "there are no others")
        return
    grad = rows.arrays["grad"].copy()
    grad[~keep] = call.rng.standard_normal(grad[~keep].shape) * 1e4
    changed = call.with_rows(rows.but(grad=grad))
    yield Trial("grad", name, (changed,), lambda results: what(results[0]), what)


def _padding(call: Call) -> Iterator[Attempt]:
    rows, count, filling = call.rows, len(call.rows), call.same(PADDING)
    after = call.with_rows(rows.then(filling))
    yield Trial("grad", "padding after", (after,), _part(**_own(slice(0, count))), _pick())
    before = call.with_rows(filling.then(rows))
    yield Trial("grad", "padding before", (before,), _part(**_own(slice(PADDING, None))), _pick())


def _chunking(call: Call) -> Iterator[Attempt]:
    """Two chunks of one size, which overlap where the number is odd: rows give their own, shards their part."""
    rows, count, vocab, name = call.rows, len(call.rows), call.vocab, in_shards("vocab", 2)
    if call.axis != "token_ids" and count > 1:
        half = -(-count // 2)
        chunks = call.with_rows(rows[:half]), call.with_rows(rows[count - half :])
        yield Trial("grad", "rows in two chunks", chunks, _joined(count - half, call.axis), _only(call.axis, ...))
    if call.ids == "target_ids":
        return  # the whole vocab takes part in each
    if vocab < 2:
        yield NotApplicable("grad", name, "the vocab has one row")
        return
    half, names = -(-vocab // 2), [name for name in wanted(call.inputs) if name != "hidden"]
    make = _table_shard if call.ids else Call.with_vocab
    calls = tuple(make(call, at) for at in (slice(0, half), slice(vocab - half, None)))
    yield Trial("grad", name, calls, _joined(vocab - half, *names), lambda found: {n: found[n] for n in names})


def _joined(count: int, *names: str) -> Callable[[list[Gradients]], Gradients]:
    """Of some gradients the first `count` of the first call, then those of the second."""
    return lambda results: {name: np.concatenate([results[0][name][:count], results[1][name]]) for name in names}


def _table_shard(call: Call, at: slice) -> Inputs:
    """The ids that are in a shard; in place of the others its first row, with zero gradient."""
    start, stop, _ = at.indices(call.vocab)
    rows, narrow = call.rows, call.rows.arrays["token_ids"]
    ids = np.where(call.good_ids.reshape(-1), narrow, -1).astype(np.int64)
    here = (ids >= start) & (ids < stop)
    grad = np.where(here[:, None], rows.arrays["grad"], np.zeros((), rows.arrays["grad"].dtype))
    changed = rows.but(token_ids=np.where(here, ids - start, 0).astype(narrow.dtype), grad=grad)
    return call.with_rows(changed, weight=call.inputs["weight"][at])


def _layout(call: Call) -> Iterator[Attempt]:
    inputs = call.inputs
    for layout in ("transposed", "strided", "unaligned"):
        stored = {
            name: "strided" if layout == "transposed" and array.ndim < 2 else layout
            for name, array in inputs.items()
            if array.ndim
        }
        yield Trial("grad", f"{layout} storage", (inputs,), _part(), _pick(), stored)
    shape = (1, len(call.rows)) if len(call.shape) == 1 else (len(call.rows),)
    yield Trial("grad", f"leading shape {list(shape)}", (call.in_shape(shape),), _part(), _pick())
    if call.axis != "token_ids" and len(call.rows) > 1:  # as the gradient of a sum has it
        again = np.zeros(len(call.rows), int)
        same, stored = call.with_rows(call.rows[again]), {"grad": "expanded"}
        first, every = _only(call.axis, again), _only(call.axis, ...)
        yield Trial("grad", "one upstream gradient expanded", (same,), lambda r: every(r[0]), first, stored)
