"""How the differing elements of two results are spread: where they lie, and how far apart the values are.

A tile, a row or a shard of the vocab that is computed otherwise shows in the first, rounding in the second.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.bits import compare, to_bits, ulp_distances
from crosscheck.histogram import DISTANCES, histogram
from crosscheck.verdict import Check

__all__ = ["Spread", "enter_compared", "spread"]

Array = NDArray[Any]
ROWS, COLUMNS = 32, 64  # bins at most


@dataclass(frozen=True)
class Spread:
    """The differing elements of two arrays [R, W], with all leading axes in R; a vector has one column.

    Arguments:
        shape: [R, W].
        grid: how many differ in each bin, at most [32, 64]; bin i of n has the rows r with r * n // R == i, and the
            columns likewise.
        rows, columns: how many rows and columns have an element that differs.
        distances: a histogram of the ULP distances, over the bins of `crosscheck.histogram.DISTANCES`.
        nan: how many of the pairs have no distance, one or both being NaN.
    """

    shape: list[int]
    grid: list[list[int]]
    rows: int
    columns: int
    distances: list[int]
    nan: int


def spread(actual: Array, expected: Array) -> Spread | None:
    """None where no element differs, or where dtype or shape do, so that no elements can be compared.

    Example:
        >>> found = spread(np.float32([[1, 2], [3, 4]]), np.float32([[1, 2], [3, 5]]))
        >>> found.grid, found.rows, found.columns, sum(found.distances)
        ([[0, 0], [0, 1]], 1, 1, 1)
    """
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return None
    width = actual.shape[-1] if actual.ndim > 1 else 1
    got, want = (to_bits(x).reshape(-1, width) if x.size else np.zeros((0, 1)) for x in (actual, expected))
    differs = got != want
    rows, columns = np.nonzero(differs)
    if not len(rows):
        return None
    high, wide = min(ROWS, len(got)), min(COLUMNS, width)
    bins = (rows * high // len(got)) * wide + columns * wide // width
    grid = np.bincount(bins, minlength=high * wide).reshape(high, wide)
    distances = ulp_distances(got[differs], want[differs], actual.dtype.name)
    return Spread(
        list(got.shape), grid.tolist(), int(differs.any(1).sum()), int(differs.any(0).sum()),
        histogram(distances, DISTANCES), len(rows) - len(distances),
    )  # fmt: skip


def enter_compared(checks: Mapping[str, Check], name: str, trial: str, actual: Array, expected: Array) -> None:
    """Compare, and enter in checks[name]; with the spread where no failure before has one: a verdict stays small."""
    difference = compare(actual, expected)
    known = any(failure.spread is not None for check in checks.values() for failure in check.failed)
    found = None if difference is None or known else spread(actual, expected)
    checks[name].enter(trial, difference, None if found is None else asdict(found))
