"""Transforms that must not change a bit of a gradient, beside those of the results in crosscheck/invariance.py.

The calls have the upstream gradient among their inputs, by the name "grad", and results are gradients by name. A
gradient of the weight or of a bias is a sum over the rows of the call, so it stays where rows change places or where
rows come in whose upstream gradient is zero; a gradient of hidden states belongs to its row alone.

The rows that come in are rows of the call once more, or zeros: the contract aligns a column of hidden states as one
vector, so a row of larger values counts there even where its upstream gradient is zero.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.calls import Call
from crosscheck.cases import Inputs
from crosscheck.gradients import Gradients, wanted
from crosscheck.invariance import PADDING, NotApplicable, Trial

__all__ = ["BAD_IDS", "gradient_trials", "work"]

Array = NDArray[Any]
Attempt = Trial[Gradients] | NotApplicable
BAD_IDS = "bad ids added"
EVERYTHING = 2**25  # multiplications; of a larger case few transforms are tried


def work(inputs: Inputs) -> int:
    """The multiplications of one gradient of an LM head, or the elements of a table's gradient."""
    size = int(inputs["weight"].size)
    return size * max(1, inputs["hidden"].size // max(1, inputs["hidden"].shape[-1])) if "hidden" in inputs else size


@dataclass(frozen=True)
class _Call(Call):
    @property
    def grad(self) -> Array:
        """[rows, width]."""
        return self.inputs["grad"].reshape(len(self.rows), self.inputs["grad"].shape[-1])

    def changed(self, rows: Array, grad: Array, **others: Array) -> Inputs:
        """Other rows with their upstream gradients."""
        if len(rows) == len(self.rows) and grad.shape[-1] == self.inputs["grad"].shape[-1]:
            grad = grad.reshape(self.inputs["grad"].shape)
        return self.with_rows(rows, grad=grad, **others)

    def zeros(self, count: int) -> Array:
        return np.zeros((count, self.inputs["grad"].shape[-1]), self.inputs["grad"].dtype)


def gradient_trials(inputs: Inputs, seed: int) -> Iterator[Attempt]:
    """Every transform of a call, one at a time."""
    call = _Call(inputs, np.random.default_rng([seed, 4]))
    if not len(call.rows) or not call.weight.size:
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


def _population(call: _Call) -> Iterator[Attempt]:
    rows, grad, count = call.rows, call.grad, len(call.rows)
    again = np.arange(PADDING) % count
    more = call.changed(np.concatenate([rows, rows[again]]), np.concatenate([grad, call.zeros(PADDING)]))
    yield Trial("grad", "rows added with zero gradient", (more,), _part(hidden=slice(0, count)), _pick())
    if call.axis == "token_ids":
        yield _bad_ids(call)


def _bad_ids(call: _Call) -> Attempt:
    """Adapters take gradients without a check of the ids: a bad one adds nothing, whatever its gradient."""
    name, limits = BAD_IDS, np.iinfo(call.rows.dtype)
    bad = len(call.weight) if len(call.weight) <= limits.max else -1
    if bad < limits.min:
        return NotApplicable("grad", name, f"every {call.rows.dtype} is in the vocab")
    rows = np.concatenate([call.rows, np.full(PADDING, bad, call.rows.dtype)])
    grad = np.concatenate([call.grad, call.zeros(PADDING) + 1])
    return Trial("grad", name, (call.changed(rows, grad),), _part(), _pick())


def _position(call: _Call) -> Iterator[Attempt]:
    rows, grad, count = call.rows, call.grad, len(call.rows)
    if count < 2:
        yield NotApplicable("grad", "rows shuffled", "the case has one row")
    else:
        order = call.rng.permutation(count)
        yield Trial("grad", "rows shuffled", (call.changed(rows[order], grad[order]),), _part(), _pick(hidden=order))
    if call.axis == "hidden" and len(call.weight) > 1:
        order = call.rng.permutation(len(call.weight))
        shuffled = {**call.with_vocab(order), "grad": call.inputs["grad"][..., order]}
        yield Trial("grad", "vocab shuffled", (shuffled,), _part(), _pick(weight=order, bias=order))


def _neighbours(call: _Call) -> Iterator[Attempt]:
    """Upstream gradients of other rows, or of other ids, become huge: nothing may be scaled by all of them."""
    name = "the upstream gradients of others replaced"
    if call.axis == "hidden":
        keep = np.arange(len(call.rows)) % 2 == 0
        what = _only("hidden", keep)
    else:
        named = np.unique(call.rows)[::2]
        keep = np.isin(call.rows, named)
        what = _only("weight", named.astype(int))
    if keep.all():
        yield NotApplicable("grad", name, "there are no others")
        return
    grad = call.grad.copy()
    grad[~keep] = call.rng.standard_normal(grad[~keep].shape) * 1e4
    changed = call.changed(call.rows, grad)
    yield Trial("grad", name, (changed,), lambda results: what(results[0]), what)


def _padding(call: _Call) -> Iterator[Attempt]:
    rows, grad, count = call.rows, call.grad, len(call.rows)
    filling, zeros = np.zeros((PADDING, *rows.shape[1:]), rows.dtype), call.zeros(PADDING)
    after = call.changed(np.concatenate([rows, filling]), np.concatenate([grad, zeros]))
    yield Trial("grad", "padding after", (after,), _part(hidden=slice(0, count)), _pick())
    before = call.changed(np.concatenate([filling, rows]), np.concatenate([zeros, grad]))
    yield Trial("grad", "padding before", (before,), _part(hidden=slice(PADDING, None)), _pick())


def _chunking(call: _Call) -> Iterator[Attempt]:
    """Two chunks of one size, which overlap where the number is odd: rows give their own, shards their part."""
    rows, grad, count, vocab = call.rows, call.grad, len(call.rows), len(call.weight)
    if call.axis == "hidden" and count > 1:
        half = -(-count // 2)
        chunks = call.changed(rows[:half], grad[:half]), call.changed(rows[count - half :], grad[count - half :])
        yield Trial("grad", "rows in two chunks", chunks, _joined(count - half, "hidden"), _only("hidden", ...))
    if vocab < 2:
        yield NotApplicable("grad", "vocab in two shards", "the vocab has one row")
        return
    half, names = -(-vocab // 2), [name for name in wanted(call.inputs) if name != "hidden"]
    shards = (slice(0, half), slice(vocab - half, None))
    calls = tuple(_head_shard(call, at) if call.axis == "hidden" else _table_shard(call, at) for at in shards)
    yield Trial(
        "grad", "vocab in two shards", calls, _joined(vocab - half, *names), lambda found: {n: found[n] for n in names}
    )


def _joined(count: int, *names: str) -> Callable[[list[Gradients]], Gradients]:
    """Of some gradients the first `count` of the first call, then those of the second."""
    return lambda results: {name: np.concatenate([results[0][name][:count], results[1][name]]) for name in names}


def _head_shard(call: _Call, at: slice) -> Inputs:
    return {**call.with_vocab(at), "grad": call.inputs["grad"][..., at]}


def _table_shard(call: _Call, at: slice) -> Inputs:
    """The ids that are in a shard; in place of the others its first row, with zero gradient."""
    start, stop, _ = at.indices(len(call.weight))
    ids = call.rows.astype(np.uint64).astype(np.int64)
    here = (ids >= start) & (ids < stop)
    grad = np.where(here[:, None], call.grad, call.zeros(1))
    return call.changed(np.where(here, ids - start, 0).astype(call.rows.dtype), grad, weight=call.weight[at])


def _layout(call: _Call) -> Iterator[Attempt]:
    inputs = call.inputs
    for layout in ("transposed", "strided", "unaligned"):
        stored = {
            name: "strided" if layout == "transposed" and array.ndim < 2 else layout
            for name, array in inputs.items()
            if array.ndim
        }
        yield Trial("grad", f"{layout} storage", (inputs,), _part(), _pick(), stored)
    leading = (1, len(call.rows)) if inputs["grad"].ndim == 2 else (len(call.rows),)
    reshaped = {
        call.axis: call.rows.reshape(*leading, *call.rows.shape[1:]),
        "grad": call.grad.reshape(*leading, call.grad.shape[-1]),
    }
    yield Trial("grad", f"leading shape {list(leading)}", ({**inputs, **reshaped},), _part(), _pick())
    if call.axis == "hidden" and len(call.rows) > 1:  # as the gradient of a sum has it
        same = call.changed(call.rows, np.repeat(call.grad[:1], len(call.rows), axis=0))
        first = _only("hidden", np.zeros(len(call.rows), int))
        stored = {"grad": "expanded"}
        yield Trial(
            "grad", "one upstream gradient expanded", (same,), lambda r: _only("hidden", ...)(r[0]), first, stored
        )
