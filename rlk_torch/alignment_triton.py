"""Alignment on NVIDIA GPUs, in Triton: one read of the rows, digit planes out.

The reference is `integers` and `write_digits` in alignment.py; the bits are the same.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlk_torch.floats import bits_of

_ONE_READ = 16384  # rows up to this width are held in registers between the maximum and the digits


@triton.jit
def float32_bits(bits, DTYPE: tl.constexpr):
    """The bits of bfloat16, float16 or float32 values as those of float32, exactly."""
    if DTYPE == "bfloat16":
        return bits.to(tl.int32) << 16
    elif DTYPE == "float16":
        return bits.to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    else:
        return bits


@triton.jit
def window_integers(bits, exponent, nonfinite, DIGITS: tl.constexpr):
    """q of section 1 from float32 bits: the significand shifted into the window, ties to even."""
    WINDOW: tl.constexpr = 7 * DIGITS - 1
    size = bits & 0x7FFFFFFF
    significand = (size & 0x7FFFFF) | 0x800000
    right = exponent + 126 - (size >> 23)
    if WINDOW > 24:
        significand = significand << (WINDOW - 24)
    else:
        right += 24 - WINDOW
    right = tl.minimum(tl.maximum(right, 0), 30)
    half_up = ((1 << right) >> 1) - 1 + ((significand >> right) & 1)
    q = tl.where(right == 0, significand, (significand + half_up) >> right)
    q = tl.where((size < 0x800000) | nonfinite, 0, q)
    return tl.where(bits < 0, -q, q)


@triton.jit
def store_digits(q, planes, offset, plane_stride, mask, DIGITS: tl.constexpr):
    """Digits in [-64, 63], the top digit keeping what is left."""
    for i in tl.static_range(DIGITS - 1):
        q += 64
        tl.store(planes + i * plane_stride + offset, ((q & 127) - 64).to(tl.int8), mask=mask)
        q = q >> 7
    tl.store(planes + (DIGITS - 1) * plane_stride + offset, q.to(tl.int8), mask=mask)


@triton.jit
def align_kernel(
    x, planes, exponents, flags, length, padded, row_stride, column_stride, plane_stride,
    DTYPE: tl.constexpr, DIGITS: tl.constexpr, BLOCK: tl.constexpr, ONE_READ: tl.constexpr,
):  # fmt: skip
    """One row a program. Columns from length to padded get zero digits. plane_stride is 64-bit."""
    row = tl.program_id(0).to(tl.int64)
    x += row * row_stride
    column = tl.arange(0, BLOCK).to(tl.int64)
    bits = float32_bits(tl.load(x + column * column_stride, mask=column < length, other=0), DTYPE)
    top = tl.max(bits & 0x7FFFFFFF, axis=0)
    if not ONE_READ:
        for start in range(BLOCK, length, BLOCK):
            at = start + column
            bits = float32_bits(tl.load(x + at * column_stride, mask=at < length, other=0), DTYPE)
            top = tl.maximum(top, tl.max(bits & 0x7FFFFFFF, axis=0))
    nonfinite = top >= 0x7F800000
    exponent = tl.where((top < 0x800000) | nonfinite, 0, (top >> 23) - 126)
    tl.store(exponents + row, exponent)
    tl.store(flags + row, nonfinite.to(tl.int8))
    for start in range(0, padded, BLOCK):
        at = start + column
        if not ONE_READ:
            bits = float32_bits(tl.load(x + at * column_stride, mask=at < length, other=0), DTYPE)
        q = window_integers(bits, exponent, nonfinite, DIGITS)
        store_digits(q, planes, row * padded + at, plane_stride, at < padded, DIGITS)


def align_triton(x: Tensor, planes: Tensor, exponent: Tensor, nonfinite: Tensor) -> None:
    """Fill the parts of an `Aligned` from x [R, L] of any strides."""
    rows, length = x.shape
    digits, _, padded = planes.shape
    if rows == 0:
        return
    block = min(triton.next_power_of_2(padded), _ONE_READ)
    with torch.cuda.device(x.device):
        align_kernel[(rows,)](
            bits_of(x), planes, exponent, nonfinite.view(torch.int8), length, padded, *x.stride(), planes.stride(0),
            DTYPE=str(x.dtype).removeprefix("torch."), DIGITS=digits, BLOCK=block, ONE_READ=padded <= block,
            num_warps=8 if block >= 8192 else 4,
        )  # fmt: skip
