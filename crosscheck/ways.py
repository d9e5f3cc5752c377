"""In which way two arrays differ, so that what is made smaller stays the failure that it was."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["SIGNS", "Way", "way_of"]

SIGNS, PATTERNS = "signs of zeros", "NaN patterns"
_SIGNIFICAND = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}  # bits
NEAR, FAR = 1, 2


@dataclass(frozen=True)
class Way:
    """What is known of a difference by its record.

    Arguments:
        pair: of the first two values that differ, in words; of dtypes and shapes, how they do. Empty where these two
            are zeros, or NaN, and values that differ come after them.
        apart: how far the values are apart that are farthest: 0 where none is known to be another, NEAR, or FAR where
            half the bits of the significand differ and more.

    `Way()` is any.
    """

    pair: str = ""
    apart: int = 0

    def keeps(self, other: "Way") -> bool:
        """Whether another difference is of the same kind, and its values are as far apart, or farther."""
        if self == Way():
            return True
        if self.pair and other.pair != self.pair:
            return False
        return other.apart >= self.apart if self.apart else not other.apart


def way_of(difference: Mapping[str, Any]) -> Way:
    """
    Arguments:
        difference: the fields of `crosscheck.bits.Difference`.

    Example:
        >>> from dataclasses import asdict
        >>> from crosscheck.bits import compare
        >>> way_of(asdict(compare(np.float32([0, 1]), np.float32([-0.0, 1]))))
        Way(pair='signs of zeros', apart=0)
        >>> way_of(asdict(compare(np.float32([0, 1]), np.float32([-0.0, 2]))))
        Way(pair='', apart=2)
    """
    if difference["kind"] == "dtype":
        return Way(f"{difference['actual_dtype']} for {difference['expected_dtype']}")
    if difference["kind"] == "shape":
        return Way(f"{len(difference['actual_shape']) - len(difference['expected_shape']):+d} axes")
    pair, apart = _pair(difference), _apart(difference)
    return Way("" if pair in (SIGNS, PATTERNS) and apart else pair, apart)


def _pair(difference: Mapping[str, Any]) -> str:
    one, other = (_kind(difference[side]) for side in ("actual", "expected"))
    if one == other == "NaN":
        return PATTERNS
    return SIGNS if difference["ulp"] == 0 else f"{one} for {other}"


def _kind(value: float) -> str:
    if np.isnan(value):
        return "NaN"
    return "number" if np.isfinite(value) else "infinity"


def _apart(difference: Mapping[str, Any]) -> int:
    most = difference["max_ulp"]
    if not most:  # none has a distance, or they are zeros of two signs
        return 0
    bits = _SIGNIFICAND.get(difference["expected_dtype"])
    return FAR if bits is not None and most >= 2 ** (bits // 2) else NEAR
