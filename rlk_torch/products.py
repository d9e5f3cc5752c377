"""Exact dot products of aligned rows, and their one rounding.

Sections 2 and 3 of docs/contract.md: integer matrix products, so that no order of summation exists.
The twin is rlk_jax/products.py.
"""

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned
from rlk_torch.devices import has_triton
from rlk_torch.floats import power_of_two_float64

_TINY = 2.0**-126
LONGEST_INT32 = 2**18  # int32 groups hold while digits * L is at most this
_REDUCTION = LONGEST_INT32 // 4  # longer reductions go in chunks
_EXACT_IN_FLOAT64 = 4096  # 27 + 14 + 12 bits
_WORD = 14  # with two words, D = high * 2^14 + low


def default_implementation(device: torch.device, digits: int = 3, length: int = 1) -> str:
    """On the CPU int8 where the processor multiplies bytes in hardware; on CUDA Triton; else float64."""
    if device.type == "cpu":
        return "int8" if _int8_products_pay() else "float64"
    return "triton" if has_triton(device) and digits * length <= LONGEST_INT32 else "float64"


def _int8_products_pay() -> bool:
    """Without oneDNN, torch's int8 product is a plain loop; without AVX-512 it loses to float64."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def rounded_products(hidden: Aligned, weight: Aligned, implementation: str) -> Tensor:
    """r of section 3 for every pair of rows: float32 [Rw, Rh], the weight's rows first."""
    words = int8_words if implementation == "int8" else float64_words
    high, low = words(hidden.planes, weight.planes, hidden.length)
    window = 7 * hidden.digits - 1
    scale = (
        power_of_two_float64(weight.exponent - window)[:, None]
        * power_of_two_float64(hidden.exponent - window)[None, :]
    )
    r = _round_once(high, low, scale)
    nonfinite = weight.nonfinite[:, None] | hidden.nonfinite[None, :]
    return r.masked_fill_(nonfinite, float("nan"))


def int8_words(hidden: Tensor, weight: Tensor, length: int) -> tuple[Tensor | None, Tensor]:
    """D from int8 matrix products. The hidden planes are stacked, so each weight plane is read once."""
    n, rows, width = hidden.shape
    groups: list[Tensor] = []
    for start in range(0, width, _REDUCTION):
        part = slice(start, start + _REDUCTION)
        stacked = hidden[:, :, part].reshape(n * rows, -1).contiguous()
        sums: list[Tensor] = []
        for j in range(n):
            product = torch._int_mm(weight[j, :, part].contiguous(), stacked.T).view(-1, n, rows)
            for i in range(n):
                if i + j < len(sums):
                    sums[i + j] += product[:, i]
                else:
                    sums.append(product[:, i].clone() if j else product[:, i].contiguous())
        groups = sums if not groups else [a.long() + b for a, b in zip(groups, sums, strict=True)]
    if 2 * (7 * n - 1) + max(1, length - 1).bit_length() <= 62:
        return None, _horner(groups)
    low = _horner(groups[:2])
    return _horner(groups[2:]) + (low >> _WORD), low & (2**_WORD - 1)


def _horner(groups: list[Tensor]) -> Tensor:
    """sum of groups[i] * 128^i in int64."""
    total = groups[-1].to(torch.int64)
    for group in reversed(groups[:-1]):
        total = (total << 7).add_(group)
    return total


def float64_words(hidden: Tensor, weight: Tensor, length: int) -> tuple[Tensor | None, Tensor]:
    """D from float64 matrix products of integers, every partial sum below 2^53; 4 digits split the weight."""
    high = hidden.new_zeros((weight.shape[1], hidden.shape[1]), dtype=torch.int64)
    low = high.clone()
    for start in range(0, hidden.shape[2], _EXACT_IN_FLOAT64):
        part = slice(start, start + _EXACT_IN_FLOAT64)
        q = _float64(hidden[:, :, part]).T
        if len(hidden) < 4:
            low += (_float64(weight[:, :, part]) @ q).to(torch.int64)
        else:
            low += (_float64(weight[:2, :, part]) @ q).to(torch.int64)
            high += (_float64(weight[2:, :, part]) @ q).to(torch.int64)
    if 2 * (7 * len(hidden) - 1) + max(1, length - 1).bit_length() <= 62:
        return None, (high << _WORD) + low
    return high + (low >> _WORD), low & (2**_WORD - 1)


def _float64(planes: Tensor) -> Tensor:
    """The integers of some digit planes, float64 [R, L]."""
    total = planes[-1].to(torch.float64)
    for plane in reversed(planes[:-1]):
        total.mul_(128.0).add_(plane)
    return total


def _round_once(high: Tensor | None, low: Tensor, scale: Tensor) -> Tensor:
    """RN_float32(D * scale), flushed to +0 below 2^-126; scale is a power of two in float64.

    An int64 becomes float32 in one correct rounding. A longer D is taken as 2 * high with a sticky last
    bit, which lies under every tie of 24 bits. What follows is exact.
    """
    if high is None:
        r = low.to(torch.float32).to(torch.float64)
    else:
        short = high.abs() < 2**38
        integer = torch.where(short, (high << _WORD) | low, (high << 1) | (low != 0))
        r = integer.to(torch.float32).to(torch.float64)
        r *= torch.where(short, 1.0, 2.0 ** (_WORD - 1))
    r *= scale
    return r.masked_fill_(r.abs() < _TINY, 0.0).to(torch.float32)
