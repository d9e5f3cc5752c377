"""What is asked of a sum, and what its answers mean: masks, their scale, and counts.

A mask is a row of K products: a huge value M at one, -M at another, and a unit at some of the rest; the others are 0.
While M is in a partial sum, what is added to it is lost: M swallows it. After M has met -M, units count again. So
the result counts the units that were not lost, and tells how many products are added to one of the two before they
meet. The weight is all ones, so that every product is exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.order.tree import bits_of
from crosscheck.verdict import counted

__all__ = [
    "SIGNIFICANDS",
    "Masks",
    "NoTree",
    "Scale",
    "TooMany",
    "calibrated",
    "counts",
    "mask_rows",
    "without_factors",
]

Array = NDArray[Any]
Sums = Callable[[Array], Array]  # float64 rows of products [P, K] -> sums [P]

SIGNIFICANDS = {"bfloat16": 8, "float16": 11, "float32": 24}  # bits, the hidden one with them


class NoTree(Exception):
    """The answers are not those of a sum of rounded additions in a fixed order; the text says which are not."""


class TooMany(Exception):
    """The order needs more probes than are allowed."""


@dataclass(frozen=True)
class Scale:
    """The values of a mask.

    Arguments:
        huge: M. It swallows `capacity` units where their quotient is twice 2 to the accumulator's bits: with 2^100 in
            float64, too, with 2^30 and 2^15 above units of 2^-14 in float32.
        unit: whole multiples of it up to `capacity` are exact in every accumulator and in the result.
        capacity: how many units a mask may have.
    """

    huge: float
    unit: float
    capacity: int


_WIDE = Scale(2.0**100, 1.0, 2**22)
_OF_FACTORS = Scale(2.0**30, 2.0**-14, 2**11)  # of two factors in float16 each, and with float16's results
_NARROW = Scale(2.0**15, 2.0**-14, 16)  # within the normal numbers of float16
SCALES = {"bfloat16": (_WIDE, _NARROW), "float32": (_WIDE, _NARROW), "float16": (_OF_FACTORS, _NARROW)}


def without_factors(scale: Scale, dtype: str) -> Scale:
    """The scale for hidden states alone, beside a weight of ones."""
    return _NARROW if dtype == "float16" else scale


def mask_rows(width: int, pairs: Sequence[tuple[int, int]], units: Sequence[int], scale: Scale) -> Array:
    """The rows [P, width] in float64: for each pair M and -M, and units where the bits of `units` are set.

    Example:
        >>> mask_rows(4, [(0, 2)], [0b1010], Scale(huge=64.0, unit=1.0, capacity=16))
        array([[ 64.,   1., -64.,   1.]])
    """
    rows = np.zeros((len(pairs), width))
    for row, (i, j), span in zip(rows, pairs, units, strict=True):
        row[list(bits_of(span))] = scale.unit
        row[i], row[j] = scale.huge, -scale.huge
    return rows


def counts(sums: Array, rows: Array, scale: Scale) -> NDArray[np.int64]:
    """The units that were not lost.

    Arguments:
        sums: [P], of `rows` [P, width].

    Raises:
        NoTree: a sum is no whole number of units, or of more than there were.
    """
    units = (rows == scale.unit).sum(axis=1)
    found = np.asarray(sums, np.float64) / scale.unit
    wrong = ~((found >= 0) & (found <= units) & (found == np.floor(found)))
    if wrong.any():
        k = int(np.flatnonzero(wrong)[0])
        raise NoTree(
            f"{_mask_text(rows[k], scale)} gave {found[k]:.6g} units; expected a whole number from 0 to {units[k]}"
        )
    return found.astype(np.int64)


def _mask_text(row: Array, scale: Scale) -> str:
    units = int((row == scale.unit).sum())
    huge, negative = np.flatnonzero(row == scale.huge), np.flatnonzero(row == -scale.huge)
    if not huge.size:
        return f"{counted(units, 'unit')} alone"
    return f"M at product {huge[0]}, -M at {negative[0]} and {counted(units, 'unit')}"


def calibrated(sums: Sums, width: int, dtype: str) -> Scale:
    """A scale that suits the dtype of the inputs and the accumulators, as far as a few sums tell.

    Raises:
        NoTree: no scale does: units and M, -M alone are not summed exactly.
    """
    reasons = []
    for scale in SCALES[dtype]:
        exact = 2 ** SIGNIFICANDS[dtype]  # an accumulator may have fewer bits than float32, and seldom than its terms
        for capacity in dict.fromkeys(min(scale.capacity, limit, exact, width) for limit in (2**22, 256, 16)):
            tried = replace(scale, capacity=capacity)
            try:
                _try(sums, width, tried)
                return tried
            except NoTree as error:
                reasons.append(str(error))
    raise NoTree(f"it is no plain sum of products: {reasons[-1]}")


def _try(sums: Sums, width: int, scale: Scale) -> None:
    """M alone, M and -M alone, a unit alone, and as many units as there may be.

    Results in float16 have no M of two factors. Where an accumulator has none either, neighbours that are terms of
    different sums show it.
    """
    rng = np.random.default_rng(0)
    of_factors = scale.huge == _OF_FACTORS.huge
    alone = sums(np.eye(1, width) * scale.huge)[0]
    if not of_factors and alone != scale.huge:
        raise NoTree(f"{scale.huge:.6g} alone gave {alone:.6g}")
    pairs = [(k, (k + 1) % width) for k in (range(width) if of_factors else (0, width - 1))]
    rows = [mask_rows(width, pairs, [0] * len(pairs), scale)]
    for units in (1, *rng.integers(scale.capacity // 2, scale.capacity, 6, endpoint=True), scale.capacity):
        rows.append(np.zeros((1, width)))
        rows[-1][0, rng.choice(width, max(1, units), replace=False)] = scale.unit
    asked = np.concatenate(rows)
    found = counts(sums(asked), asked, scale)
    expected = (asked == scale.unit).sum(axis=1)
    if (found != expected).any():
        k = int(np.flatnonzero(found != expected)[0])
        raise NoTree(f"{_mask_text(asked[k], scale)} gave {found[k]} units; expected {expected[k]}")


class Masks:
    """Asks one sum for counts, no more often than is allowed."""

    def __init__(self, sums: Sums, width: int, scale: Scale, limit: int) -> None:
        self.sums, self.width, self.scale, self.limit = sums, width, scale, limit
        self.asked = 0

    def _survivors(self, rows: Array) -> NDArray[np.int64]:
        """For each mask how many units are not lost."""
        if not len(rows):
            return np.zeros(0, np.int64)
        self.asked += len(rows)
        if self.asked > self.limit:
            raise TooMany(f"its order needs more than {self.limit} probes; a smaller width needs fewer")
        return counts(self.sums(rows), rows, self.scale)

    def lost(self, pairs: Sequence[tuple[int, int]], among: Sequence[int]) -> list[int]:
        """For each pair how many products of `among` are lost, M and -M with them, which are of `among`.

        Where there are more products than a mask may have units, several masks share them out.
        """
        survived = np.zeros(len(pairs), np.int64)
        ones, others = np.array(pairs).T
        for k in range(0, len(among), self.scale.capacity):
            rows = np.zeros((len(pairs), self.width))
            rows[:, among[k : k + self.scale.capacity]] = self.scale.unit
            rows[np.arange(len(pairs)), ones], rows[np.arange(len(pairs)), others] = self.scale.huge, -self.scale.huge
            survived += self._survivors(rows)
        return [len(among) - int(count) for count in survived]

    def lost_span(self, i: int, j: int, among: Sequence[int]) -> int:
        """The products of `among` that are lost, as bits, each asked for alone."""
        alone = [leaf for leaf in among if leaf not in (i, j)]
        found = self._survivors(mask_rows(self.width, [(i, j)] * len(alone), [1 << leaf for leaf in alone], self.scale))
        return sum(1 << leaf for leaf, survived in zip(alone, found, strict=True) if not survived) | 1 << i | 1 << j
