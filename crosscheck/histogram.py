"""Histograms of ULPs: counts over bins whose upper bounds double, after one for 0 and before one without a bound."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["DISTANCES", "ERRORS", "histogram"]

ERRORS = (0.0, *(2.0**i for i in range(-4, 17)), math.inf)  # of logits, from the exact answer
DISTANCES = (0.0, *(2.0**i for i in range(25)), math.inf)  # representable values between two results


def histogram(values: ArrayLike, bounds: Sequence[float]) -> list[int]:
    """How many values each bin holds: those above the bound before its own, up to and with its own.

    Arguments:
        values: numbers from 0 to infinity, [N].
        bounds: the bins' upper bounds, ascending; the last is infinite.

    Example:
        >>> histogram([0, 0.5, 1, 1, 3], (0, 1, 2, math.inf))
        [1, 3, 0, 1]
    """
    bins = np.searchsorted(np.asarray(bounds), np.asarray(values, np.float64), side="left")
    return [int(count) for count in np.bincount(bins, minlength=len(bounds))]
