"""Section 7 of the contract on NVIDIA GPUs, in Triton. The reference is logprob.py; the bits are the same.

A product of two 32-bit integers that is then shifted right by 32 is one instruction, and the constants are scaled
so that every shift of the contract becomes one of 32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlk_torch.alignment_triton import float32_bits
from rlk_torch.floats import bits_of
from rlk_torch.rounding_triton import flushed, output_bits, scaled

_TILE = 2048


@triton.jit
def load_logits(logits, at, mask, DTYPE: tl.constexpr):
    """Float32 bits of logits, given as integers; magnitudes below 2^-126 are +0, and where there is none -inf."""
    bits = float32_bits(tl.load(logits + at, mask=mask, other=0), DTYPE)
    return tl.where(mask, flushed(bits), -8388608)  # 0xFF800000


@triton.jit
def exponentials(top, bits):
    """E of steps 1 and 2, int64, for the largest logit (float32) and the bits of others."""
    d = flushed((top - bits.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    near = d < 32.0
    large = tl.where(near, d, 0.0) * 16777216.0  # exact; below 2^23 the addition rounds to an integer, ties to even
    D = tl.where(large < 8388608.0, (large + 8388608.0) - 8388608.0, large).to(tl.uint32)  # below 2^29
    y = tl.umulhi(D << 2, tl.full(d.shape, 1549082005, tl.uint32))
    z = (16777216 - (y & 0xFFFFFF)) << 6
    p = tl.full(d.shape, 11619, tl.uint32)
    p = tl.umulhi(p << 2, z) + 76786
    p = tl.umulhi(p << 2, z) + 720984
    p = tl.umulhi(p << 2, z) + 5161244
    p = tl.umulhi(p << 2, z) + 29799171
    p = tl.umulhi(p << 2, z) + 128970545
    p = tl.umulhi(p << 2, z) + 372130563
    p = tl.umulhi(p << 2, z) + 536870912
    return tl.where(near, (p.to(tl.int64) << 14) >> (y >> 24).to(tl.int64), 0)


@triton.jit
def sums_kernel(
    logits, top_out, total_out, vocab, row_stride, column_stride, DTYPE: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """A row a program, read twice: the bits of its largest logit, NaN where there is one, then S."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * row_stride
    lane = tl.arange(0, TILE)
    largest = tl.full((TILE,), -2147483648, tl.int32)
    for first in range(0, vocab, TILE):
        column = first + lane
        bits = load_logits(start, column.to(tl.int64) * column_stride, column < vocab, DTYPE)
        bits = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits)
        largest = tl.maximum(largest, bits ^ ((bits >> 31) & 0x7FFFFFFF))  # orders as the values do, NaN last
    order = tl.max(largest, 0)
    top_bits = order ^ ((order >> 31) & 0x7FFFFFFF)
    tl.store(top_out + row, top_bits)
    top = tl.where((top_bits & 0x7FFFFFFF) >= 0x7F800000, 0, top_bits).to(tl.float32, bitcast=True)
    total = tl.zeros((TILE,), tl.int64)
    for first in range(0, vocab, TILE):
        column = first + lane
        bits = load_logits(start, column.to(tl.int64) * column_stride, column < vocab, DTYPE)
        total += tl.where(column < vocab, exponentials(top, bits), 0)
    tl.store(total_out + row, tl.sum(total, 0))


@triton.jit
def gradients_kernel(
    logits, out, targets, significands, exponents, totals, tops, reciprocals, flags, vocab, first, row_stride,
    column_stride, DTYPE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A tile of a row a program. The upstream gradient comes as significand and exponent: a product of two numbers
    near 1 is rounded to 24 bits whatever its size, and takes its exponent last."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = column < vocab
    target, flag = tl.load(targets + row), tl.load(flags + row)
    bits = load_logits(logits + row * row_stride, column.to(tl.int64) * column_stride, mask, DTYPE)
    E = exponentials(tl.load(tops + row), bits)
    own = column + first == target
    part = tl.where(own, tl.load(totals + row) - E, E).to(tl.float32) * 5.684341886080802e-14  # 2^-44
    probability = (part * tl.load(reciprocals + row)).to(tl.int32, bitcast=True)
    near_one = ((probability & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    product = (near_one * tl.load(significands + row)).to(tl.int32, bitcast=True)
    new = scaled(product, (probability >> 23) - 127 + tl.load(exponents + row))
    new = tl.where((probability == 0) | (new == 0), 0, tl.where(own, new, new ^ -2147483648))
    new = tl.where(target < 0, 0, tl.where(flag != 0, 0x7FC00000, new))
    tl.store(out + row * vocab + column, output_bits(new, DTYPE), mask=mask)


def sums_triton(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[N, V] of any strides -> the largest logit [N] float32, NaN where there is one, and S [N] int64."""
    rows, vocab = logits.shape
    top, total = logits.new_empty(rows, dtype=torch.int32), logits.new_empty(rows, dtype=torch.int64)
    if rows:
        with torch.cuda.device(logits.device):
            sums_kernel[(rows,)](
                bits_of(logits), top, total, vocab, *logits.stride(), DTYPE=_name(logits), TILE=_TILE, num_warps=8
            )
    return top.view(torch.float32), total


def gradients_triton(
    logits: Tensor,
    targets: Tensor,
    start: int,
    grad: Tensor,
    bad: Tensor,
    total: Tensor,
    top: Tensor,
    r: Tensor,
    out: Tensor,
) -> Tensor:
    """Fill out [N, V]: see `gradients` of logprob.py; bad flags rows of NaN, targets of -1 rows of zeros."""
    rows, vocab = logits.shape
    if rows:
        significand, exponent = torch.frexp(grad.double().masked_fill(bad, 0.0))  # subnormal gradients count
        with torch.cuda.device(logits.device):
            gradients_kernel[(rows, triton.cdiv(vocab, _TILE))](
                bits_of(logits), bits_of(out), targets, significand.float(), exponent, total, top, r,
                bad.to(torch.int8), vocab, start, *logits.stride(), DTYPE=_name(logits), TILE=_TILE, num_warps=8,
            )  # fmt: skip
    return out


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
