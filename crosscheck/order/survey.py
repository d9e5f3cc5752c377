"""Which orders the results of a function have at one setting, and where in [rows, vocab].

Where a sample of masks finds no difference between positions, a tree is sought with many masks a call, and then checked
with masks that all rows have, at every position. Where it finds one, or where the tree does not hold, one is sought for
each kind of position, with one mask a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.order.bench import Bench
from crosscheck.order.checks import (
    mask_trials,
    measured_widths,
    random_rows,
    replayed_rows,
    roundings,
    swapped,
    totals,
    width_trials,
)
from crosscheck.order.masks import (
    SIGNIFICANDS,
    Masks,
    NoTree,
    Scale,
    Sums,
    calibrated,
    mask_rows,
    without_factors,
)
from crosscheck.order.reveal import LIMIT, reveal_with
from crosscheck.order.tree import Tree

__all__ = ["MANY", "Order", "Part", "Survey", "survey"]

Array = NDArray[Any]
SAMPLE = 32  # masks that compare positions
MOST = 6  # orders at one setting that are sought
MANY = f"there are more than {MOST} orders at this setting; no more were sought"


@dataclass(frozen=True)
class Order:
    """How a sum is made.

    Arguments:
        widths: of each node, the bits that its sum keeps (`measured_widths`).
        rounding: as in `order_checks.totals`, where random values that are added so have the candidate's bits; None
            where they were not, for the tree and its widths do not say how terms are aligned.
        reach: how many bits the largest product asked for is above the smallest; what is wider, or exact, looks exact.
    """

    tree: Tree
    widths: tuple[int | None, ...]
    rounding: tuple[int, int] | None
    reach: int


@dataclass(frozen=True)
class Part:
    """Some of the results, and their order.

    Arguments:
        cells: which of [rows, vocab].
        order: None where there is none; `reason` says why. It is MANY where none was sought.
    """

    cells: NDArray[np.bool_]
    order: Order | None
    reason: str = ""


@dataclass
class Survey:
    """What was found at a setting.

    Arguments:
        parts: they have all of [rows, vocab] between them.
        calls: that were made.
        singly: why orders were sought with one mask a call; empty where they were not.
    """

    parts: list[Part] = field(default_factory=list)
    calls: int = 0
    singly: str = ""


def survey(bench: Bench, known: Sequence[Order] = (), limit: int = LIMIT) -> Survey:
    """The orders at a setting.

    Arguments:
        known: orders that are tried first. A new one is in no part where a known one explains the results.
        limit: of probes, for each order.

    Raises:
        TooMany.
    """
    surveyor = _Surveyor(bench, limit)
    surveyor.look(known)
    surveyor.found.calls = bench.calls
    return surveyor.found


class _Surveyor:
    def __init__(self, bench: Bench, limit: int) -> None:
        self.bench, self.limit, self.found = bench, limit, Survey()

    def look(self, known: Sequence[Order]) -> None:
        bench = self.bench
        left = np.ones((bench.rows, bench.vocab), bool)
        try:
            scale = calibrated(bench.at(0, 0), bench.width, bench.dtype)
            kinds = self._sample(scale)
        except NoTree as error:
            self.found.parts.append(Part(left, None, str(error)))
            return
        for order in known:
            if order.tree.leaves == bench.width and left.any():
                self._take(order, explained(bench, order, scale) & left, left)
        while left.any() and len(self.found.parts) < MOST:
            row, column = (int(k) for k in np.argwhere(left)[0])
            try:
                order, cells = self._order_at(row, column, scale, kinds)
                self._take(order, cells & left, left)
            except NoTree as error:
                alike = left & (kinds == kinds[row, column])
                self.found.parts.append(Part(alike, None, str(error)))
                left &= ~alike
        if left.any():
            self.found.parts.append(Part(left, None, MANY))

    def _take(self, order: Order, cells: NDArray[np.bool_], left: NDArray[np.bool_]) -> None:
        if cells.any():
            self.found.parts.append(Part(cells, order))
            left &= ~cells

    def _sample(self, scale: Scale) -> NDArray[np.int64]:
        """A number for each of [rows, vocab]; those with the same number have the same sums of a sample of masks.

        Raises:
            NoTree: the same masks give other sums when they are asked again.
        """
        bench, rng = self.bench, np.random.default_rng(1)
        pairs, units = [], []
        for _ in range(SAMPLE):
            i, j = (int(k) for k in rng.choice(bench.width, 2, replace=False))
            some = rng.permutation(bench.width)[: min(scale.capacity, bench.width)]
            pairs.append((i, j))
            units.append(sum(1 << int(k) for k in some if k not in (i, j)))
        masks = mask_rows(bench.width, pairs, units, scale)
        kinds = np.zeros(bench.rows * bench.vocab, np.int64)
        for first, again in zip(bench.everywhere(masks), bench.everywhere(masks), strict=True):
            if not np.array_equal(first, again, equal_nan=True):
                raise NoTree("it is not repeatable: the same inputs gave other sums when they were asked again")
            for sums in first:
                found, which = np.unique(sums, return_inverse=True)
                _, kinds = np.unique(kinds * len(found) + which.reshape(-1), return_inverse=True)
        return np.asarray(kinds).reshape(bench.rows, bench.vocab)

    def _order_at(
        self, row: int, column: int, scale: Scale, kinds: NDArray[np.int64]
    ) -> tuple[Order, NDArray[np.bool_]]:
        """The order of one result, and which results it explains: with many masks a call where no position differs."""
        bench = self.bench
        if not kinds.any() and not self.found.parts and kinds.size > 1:
            try:
                order = self._order_by(bench.spread(), without_factors(scale, bench.dtype))
                cells = explained(bench, order, scale)
                if cells[row, column]:
                    return replace(order, reach=_reach(scale)), cells
                self.found.singly = "an order from many masks a call did not explain what one mask in all rows gives"
            except NoTree as error:
                self.found.singly = f"from many masks a call, {error}"
        elif kinds.size > 1:
            self.found.singly = "positions have different sums"
        order = self._order_by(bench.at(row, column), scale)
        cells = explained(bench, order, scale)
        if not cells[row, column]:
            raise NoTree("it is not repeatable: what explained its sums once did not explain them again")
        return order, cells

    def _order_by(self, sums: Sums, scale: Scale) -> Order:
        tree = reveal_with(Masks(sums, self.bench.width, scale, self.limit))
        return _checked(tree, self.bench, sums, scale)


def _checked(tree: Tree, bench: Bench, sums: Sums, scale: Scale) -> Order:
    """The tree with its widths.

    Raises:
        NoTree: it does not explain what it was made from, or random values.
    """
    masks, expected = mask_trials(tree, scale, np.random.default_rng(2))
    wrong = int((sums(masks) != expected).sum())
    if wrong:
        raise NoTree(f"no tree explains its sums: the nearest one predicts {wrong} of {len(masks)} new masks wrongly")
    widths = tuple(measured_widths(sums, tree, scale))
    values, others = _swapped_values(tree, widths, scale)
    if (sums(values) != sums(others)).any():
        raise NoTree(
            "the masks are those of a sum that adds all products at once, but random values in another order "
            "give other sums: it may be a compensated sum"
            if tree.orderless else
            "the masks fit a tree, but random values that change places in it give other sums: it may be a "
            "compensated sum"
        )  # fmt: skip
    return Order(tree, widths, _rounding(tree, widths, bench, sums, scale), _reach(scale))


def _reach(scale: Scale) -> int:
    return int(np.log2(scale.huge / scale.unit))


def _rounding(
    tree: Tree, widths: Sequence[int | None], bench: Bench, sums: Sums, scale: Scale
) -> tuple[int, int] | None:
    """How sums are rounded, beyond what their widths say.

    Raises:
        NoTree: in no way are the sums of random values what the tree predicts.
    """
    rows = replayed_rows(tree, widths, scale)
    if not rows:
        return None
    found, result = sums(_in_units(rows, scale)), SIGNIFICANDS[bench.result]
    fewest = len(rows)
    for rounding in roundings(tree, widths, result):
        expected = _in_units([totals(tree, rows, widths, rounding, result)], scale)[0]
        misses = int((found != expected).sum())
        if not misses:
            return rounding
        fewest = min(fewest, misses)
    kept = sorted({width for width in widths[:-1] if width is not None})
    how = f"in its order and rounded to {' and '.join(map(str, kept))} bits" if kept else "exactly"
    raise NoTree(
        f"the masks fit a tree, but {fewest} of {len(rows)} rows of random values, added {how}, have another sum: it "
        "may be a compensated sum"
    )


def explained(bench: Bench, order: Order, scale: Scale) -> NDArray[np.bool_]:
    """Which of [rows, vocab] have the sums that an order predicts: of new masks, and of random values."""
    grid = bench.agrees(*mask_trials(order.tree, scale, np.random.default_rng(2)))
    if not grid.any():
        return grid
    grid &= bench.same(*_swapped_values(order.tree, order.widths, scale))
    rows, kept = width_trials(order.tree, order.widths, scale)
    grid &= bench.agrees(rows, kept, lambda sums: sums == scale.unit)
    values = replayed_rows(order.tree, order.widths, scale)
    if values and order.rounding is not None:
        expected = totals(order.tree, values, order.widths, order.rounding, SIGNIFICANDS[bench.result])
        grid &= bench.agrees(_in_units(values, scale), _in_units([expected], scale)[0])
    return grid


def _in_units(rows: Sequence[Sequence[int]], scale: Scale) -> Array:
    return np.array(rows, dtype=float) * scale.unit


def _swapped_values(tree: Tree, widths: Sequence[int | None], scale: Scale) -> tuple[Array, Array]:
    """Random rows, and the same values in places that make no difference in the tree's order."""
    rng = np.random.default_rng(4)
    rows = _in_units(random_rows(tree.leaves, scale, rng), scale)
    others = np.empty_like(rows)
    for row, other in zip(rows, others, strict=True):
        other[swapped(tree, widths, rng)] = row
    return rows, others
