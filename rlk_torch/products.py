"""Exact dot products of aligned rows, and their one rounding.

Sections 2 and 3 of docs/contract.md: integer matrix products, so that no order of summation exists.
The twin is rlk_jax/products.py.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned
from rlk_torch.devices import has_triton
from rlk_torch.floats import power_of_two_float64

_TINY = 2.0**-126
LONGEST_INT32 = 2**18  # int32 groups hold while digits * L is at most this
_REDUCTION = LONGEST_INT32 // 4  # longer reductions go in chunks
_EXACT_IN_FLOAT64 = 4096  # 27 + 14 + 12 bits
LONGEST_WHOLE = 2**22  # up to it, D of 3 digits fits one int64
_WORD = 14  # with two words, D = high * 2^14 + low


class Shards(Protocol):
    """Who holds the other parts of a reduction. What they agree on is integers, so that no order of theirs exists."""

    def largest(self, top: Tensor) -> Tensor:
        """The largest of all parts' magnitude bits, int32 of one shape."""

    def total(self, words: Tensor) -> Tensor:
        """The sums of all parts' integers, int64 of one shape."""


def default_implementation(device: torch.device, digits: int = 3, length: int = 1) -> str:
    """On the CPU int8 where the processor multiplies bytes in hardware; on CUDA Triton; else float64."""
    if has_triton(device) and digits * length <= LONGEST_INT32:
        return "triton"
    return without_triton(device)


def without_triton(device: torch.device) -> str:
    """The device's own without Triton, for words that are added up before their rounding."""
    return "int8" if device.type == "cpu" and _int8_products_pay() else "float64"


def _int8_products_pay() -> bool:
    """Without oneDNN, torch's int8 product is a plain loop; without AVX-512 it loses to float64."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def rounded_products(hidden: Aligned, weight: Aligned, implementation: str) -> Tensor:
    """r of section 3 for every pair of rows: float32 [Rw, Rh], the weight's rows first."""
    words = int8_words if implementation == "int8" else float64_words
    high, low = words(hidden.planes, weight.planes, hidden.length)
    window = 7 * hidden.digits - 1
    exponent = hidden.exponent - window
    return rounded(high, low, weight.exponent - window, exponent, weight.nonfinite, hidden.nonfinite)


def column_words(rows: Tensor, columns: Tensor, length: int, implementation: str) -> tuple[Tensor | None, Tensor]:
    """D of digits of rows [4, R, l] and of columns [4, l, C], l at most 2^16, as words [R, C].

    One int64 where it holds D of the whole length, of which l may be a part; else two words, not carried.
    """
    n, count, part = rows.shape
    if implementation == "int8":
        stacked = rows.reshape(n * count, part)
        return _words(_groups([torch._int_mm(stacked, plane).view(n, count, -1) for plane in columns]), length)
    low, high = torch.zeros((2, count, columns.shape[2]), dtype=torch.int64, device=rows.device)
    for start in range(0, part, _EXACT_IN_FLOAT64):
        at = slice(start, start + _EXACT_IN_FLOAT64)
        q = _float64(rows[:, :, at])
        low += (q @ _float64(columns[:2, at])).long()
        high += (q @ _float64(columns[2:, at])).long()
    return (None, (high << _WORD) + low) if _bits(n, length) <= 62 else (high, low)


def summed(
    parts: Iterable[tuple[Tensor | None, Tensor]], digits: int, shards: Shards | None
) -> tuple[Tensor | None, Tensor]:
    """Words of parts of a reduction, and of those that others hold, as words of the whole, not carried.

    The whole may be as long as LONGEST_WHOLE.
    """
    words = reduce(torch.add, (_words_of_part(high, low.long(), digits) for high, low in parts))
    words = words if shards is None else shards.total(words)
    return (words[0], words[1]) if len(words) == 2 else (None, words[0])


def _words_of_part(high: Tensor | None, low: Tensor, digits: int) -> Tensor:
    """In a form that does not depend on the part's length: int64 [2, ...] for 4 digits, else [1, ...]."""
    if high is None:
        return torch.stack((low >> _WORD, low & (2**_WORD - 1))) if digits == 4 else low[None]
    return torch.stack((high, low)) if digits == 4 else ((high << _WORD) + low)[None]


def carried(high: Tensor | None, low: Tensor) -> tuple[Tensor | None, Tensor]:
    """Sums of words as words: low in [0, 2^14) where there are two."""
    return (None, low) if high is None else (high + (low >> _WORD), low & (2**_WORD - 1))


def rounded(
    high: Tensor | None,
    low: Tensor,
    row_exponent: Tensor,
    column_exponent: Tensor,
    row_nonfinite: Tensor,
    column_nonfinite: Tensor,
) -> Tensor:
    """The one rounding of D [R, C]; NaN where the row's or the column's vector is not finite. float32."""
    r = _round_once(high, low, row_exponent, column_exponent)
    if r.device.type != "cpu" or bool(row_nonfinite.any() | column_nonfinite.any()):
        r.masked_fill_(row_nonfinite[:, None] | column_nonfinite, float("nan"))
    return r


def rounded_sum(total: Tensor, exponent: Tensor, nonfinite: Tensor) -> Tensor:
    """The one rounding of aligned sums with 4 digits: int64, exponents and flags of one shape -> float32."""
    r = total.to(torch.float32).to(torch.float64)
    r *= power_of_two_float64(exponent - 27)
    r.masked_fill_(r.abs() < _TINY, 0.0)
    return r.to(torch.float32).masked_fill_(nonfinite, float("nan"))


def _bits(digits: int, length: int) -> int:
    """|D| <= 2^bits."""
    return 2 * (7 * digits - 1) + max(1, length - 1).bit_length()


def int8_words(hidden: Tensor, weight: Tensor, length: int) -> tuple[Tensor | None, Tensor]:
    """D from int8 matrix products, as two words, one int64 or one exact float64, whichever is the least that holds it.

    The hidden planes are stacked, so each weight plane is read once.
    """
    n, rows, width = hidden.shape
    groups: list[Tensor] = []
    for start in range(0, width, _REDUCTION):
        part = slice(start, start + _REDUCTION)
        stacked = hidden[:, :, part].reshape(n * rows, -1).contiguous()
        products = [torch._int_mm(plane[:, part].contiguous(), stacked.T).view(-1, n, rows) for plane in weight]
        sums = _groups([product.unbind(1) for product in products])
        groups = sums if not groups else [a.long() + b for a, b in zip(groups, sums, strict=True)]
    if _bits(n, length) <= 53:
        return None, _horner(groups, torch.float64)
    return carried(*_words(groups, length))


def _groups(products: Sequence[Sequence[Tensor] | Tensor]) -> list[Tensor]:
    """products[j][i] of the digits i and j, summed over those with one i + j."""
    n = len(products)
    return [_sum([products[j][group - j] for j in range(n) if 0 <= group - j < n]) for group in range(2 * n - 1)]


def _words(groups: list[Tensor], length: int) -> tuple[Tensor | None, Tensor]:
    """D of this length as one int64 where that holds it, else as two words, not carried."""
    if _bits((len(groups) + 1) // 2, length) <= 62:
        return None, _horner(groups, torch.int64)
    return _horner(groups[2:], torch.int64), _horner(groups[:2], torch.int64)


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _horner(groups: list[Tensor], dtype: torch.dtype) -> Tensor:
    """sum of groups[i] * 128^i."""
    total = groups[-1].to(dtype)
    for group in reversed(groups[:-1]):
        torch.add(group.to(dtype), total, alpha=128, out=total)
    return total


def float64_words(hidden: Tensor, weight: Tensor, length: int) -> tuple[Tensor | None, Tensor]:
    """D from float64 matrix products of integers, every partial sum below 2^53; 4 digits split the weight."""
    dtype = torch.float64 if _bits(len(hidden), length) <= 53 else torch.int64
    low = hidden.new_zeros((weight.shape[1], hidden.shape[1]), dtype=dtype)
    high = torch.zeros_like(low)
    for start in range(0, hidden.shape[2], _EXACT_IN_FLOAT64):
        part = slice(start, start + _EXACT_IN_FLOAT64)
        q = _float64(hidden[:, :, part]).T
        if len(hidden) < 4:
            low += (_float64(weight[:, :, part]) @ q).to(dtype)
        else:
            low += (_float64(weight[:2, :, part]) @ q).to(dtype)
            high += (_float64(weight[2:, :, part]) @ q).to(dtype)
    if len(hidden) < 4 and _bits(len(hidden), length) <= 62:
        return None, low
    if _bits(len(hidden), length) <= 62:
        return None, (high << _WORD) + low
    return carried(high, low)


def _float64(planes: Tensor) -> Tensor:
    """The integers of some digit planes, float64 [R, L]."""
    total = planes[-1].to(torch.float64)
    for plane in reversed(planes[:-1]):
        total.mul_(128.0).add_(plane)
    return total


def _round_once(high: Tensor | None, low: Tensor, row_exponent: Tensor, column_exponent: Tensor) -> Tensor:
    """RN_float32(D * 2^exponent), flushed to +0 below 2^-126; the exponent is a row's plus a column's.

    An integer becomes float32 in one correct rounding. A longer D is taken as 2 * high with a sticky last
    bit, which lies under every tie of 24 bits. What follows is exact.
    """
    if high is None:
        r = low.to(torch.float32).to(torch.float64)
    else:
        short = high.abs() < 2**38
        integer = torch.where(short, (high << _WORD) | low, (high << 1) | (low != 0))
        r = integer.to(torch.float32).to(torch.float64)
        r *= torch.where(short, 1.0, 2.0 ** (_WORD - 1))
    r *= power_of_two_float64(row_exponent)[:, None]
    r *= power_of_two_float64(column_exponent)
    # A D other than 0 is at least 1, so with large exponents nothing is flushed.
    if r.device.type != "cpu" or int(row_exponent.min()) + int(column_exponent.min()) < -126:
        r.masked_fill_(r.abs() < _TINY, 0.0)
    return r.to(torch.float32)
