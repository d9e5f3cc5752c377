"""Transforms of any function of a batch that must not change a bit: the same rows in another company, order or chunk.

`crosscheck.invariance` does the same for an LM head and an embedding, whose weight has rows that change, too. Here a
call is a batch alone: arrays by name, whose rows are those of their axis 0, taken together. Each transform is one or
more lists of row numbers: a number below the batch's length is one of its rows, those above are rows that come in.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.cases import Inputs
from crosscheck.judge_candidate import BATCH
from crosscheck.trial import PADDING, Attempt, NotApplicable, Trial

__all__ = ["is_float", "row_trials"]

Array = NDArray[Any]
FLOATS = ("bfloat16", "float16", "float32", "float64")


def is_float(x: Array) -> bool:
    return x.dtype.name in FLOATS


def row_trials(batch: Inputs, seed: int) -> Iterator[Attempt]:
    """Every transform of the batch, one at a time.

    Rows that come in hold, of floats, huge values, NaN and infinities, or zeros; of integers and bools, values that the
    batch has, since no others need be valid.

    Arguments:
        batch: arrays [rows, ...].
    """
    pool = _Pool(batch, np.random.default_rng([seed, 2]))
    if pool.count:
        for transforms in (_population, _position, _neighbours, _padding, _chunking):
            yield from transforms(pool)
    else:
        for column in BATCH:
            yield NotApplicable(column, "any", "the batch has no rows")
    yield from _layout(pool)
    for name in ("second run", "third run"):
        yield pool.trial("repeat", name, pool.rows)


class _Pool:
    """The rows of the batch, and after them those that come in, by the numbers `rows`, `huge`, `nonfinite`, `low`."""

    def __init__(self, batch: Inputs, rng: np.random.Generator) -> None:
        self.batch, self.rng = batch, rng
        self.count = len(next(iter(batch.values())))
        self.floats = any(is_float(x) for x in batch.values())
        self.rows = np.arange(self.count)
        self.huge, self.nonfinite, self.low = (self.count + np.arange(PADDING) + PADDING * i for i in range(3))
        self.arrays = {name: np.concatenate([x, *self._incoming(x)]) for name, x in batch.items()}

    def _incoming(self, x: Array) -> Iterator[Array]:
        shape = (PADDING, *x.shape[1:])
        if is_float(x):
            values = self.rng.standard_normal((2, PADDING, int(np.prod(x.shape[1:])))) * 1e4
            values[1, :, ::2], values[1, :, 1::3] = np.nan, np.inf
            with np.errstate(over="ignore", invalid="ignore"):
                yield from values.astype(x.dtype).reshape(2, *shape)
            yield np.zeros(shape, x.dtype)
        elif x.size:
            yield from self.rng.choice(x.reshape(-1), (2, *shape))
            yield np.full(shape, x.min())
        else:
            yield np.zeros((3 * PADDING, *x.shape[1:]), x.dtype)

    def trial(self, column: str, name: str, *orders: Array, layout: str = "") -> Trial[Array]:
        """A call for each order; what is compared are the rows of the batch, wherever they went."""
        kept = [order < self.count for order in orders]
        origin = np.concatenate([order[keep] for order, keep in zip(orders, kept, strict=True)])
        calls = tuple({name: x[order] for name, x in self.arrays.items()} for order in orders)
        stored = {name: _fitting(layout, x) for name, x in self.batch.items()} if layout else {}
        return Trial(column, name, calls, partial(_kept_rows, kept), partial(_take, origin), stored)


def _kept_rows(kept: list[Array], results: list[Array]) -> Array:
    return np.concatenate([result[keep] for result, keep in zip(results, kept, strict=True)])


def _take(origin: Array, result: Array) -> Array:
    return result[origin]


def _fitting(layout: str, x: Array) -> str:
    return "strided" if layout == "transposed" and x.ndim < 2 else layout


def _population(pool: _Pool) -> Iterator[Attempt]:
    if pool.count < 2:
        yield NotApplicable("population", "rows removed", "the batch has one row")
    else:
        yield pool.trial("population", "first row alone", pool.rows[:1])
        yield pool.trial("population", "last row alone", pool.rows[-1:])
    if pool.count > 2:
        yield pool.trial("population", "every second row removed", pool.rows[::2])
    yield pool.trial("population", "rows added", np.concatenate([pool.rows, pool.huge]))


def _position(pool: _Pool) -> Iterator[Attempt]:
    if pool.count < 2:
        yield NotApplicable("position", "rows in another order", "the batch has one row")
    else:
        yield pool.trial("position", "rows reversed", pool.rows[::-1])
        yield pool.trial("position", "rows shuffled", pool.rng.permutation(pool.count))


def _neighbours(pool: _Pool) -> Iterator[Attempt]:
    if pool.count < 2:
        yield NotApplicable("neighbours", "other rows replaced", "the batch has one row")
        return
    fillings = (("huge values", pool.huge), ("NaN and infinities", pool.nonfinite))
    for start, which in ((0, "even"), (1, "odd")):
        for what, rows in fillings if pool.floats else (("other values", pool.huge),):
            order = rows[pool.rows % PADDING]
            order[start::2] = pool.rows[start::2]
            yield pool.trial("neighbours", f"{which} rows kept, the others replaced by {what}", order)


def _padding(pool: _Pool) -> Iterator[Attempt]:
    fillings = (("zero rows", pool.low), ("NaN and infinite rows", pool.nonfinite))
    for name, rows in fillings if pool.floats else (("rows of the smallest value", pool.low),):
        yield pool.trial("padding", f"{name} after", np.concatenate([pool.rows, rows]))
        yield pool.trial("padding", f"{name} before", np.concatenate([rows, pool.rows]))


def _chunking(pool: _Pool) -> Iterator[Attempt]:
    """Two chunks of one size, which overlap by one where the number is odd: one new shape, not two."""
    if pool.count < 2:
        yield NotApplicable("chunking", "rows in two chunks", "the batch has one row")
    else:
        half = -(-pool.count // 2)
        yield pool.trial("chunking", "rows in two chunks", pool.rows[:half], pool.rows[pool.count - half :])


def _layout(pool: _Pool) -> Iterator[Attempt]:
    for layout in ("transposed", "strided", "unaligned"):
        yield pool.trial("layout", f"{layout} storage", pool.rows, layout=layout)
    if pool.count < 2:
        yield NotApplicable("layout", "one row expanded", "the batch has no second row")
    else:
        yield pool.trial("layout", "one row expanded", np.zeros_like(pool.rows), layout="expanded")
