"""Gradient of a table on NVIDIA GPUs, in Triton. The reference is embedding_grad.py; the bits are the same.

Positions are sorted by id, so that the members of a sum lie side by side. A short sum is one program's. A long one is
cut into chunks that meet in integers, by atomic operations whose order does not matter: maxima, then sums.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlk_torch.alignment_triton import float32_bits, window_integers
from rlk_torch.floats import bits_of
from rlk_torch.rounding_triton import output_bits, scaled

_CHUNK = 64  # members that one program adds up
_COLUMNS = 1024


@triton.jit
def _top(grad, order, first, last, offset, mask, row_stride, DTYPE: tl.constexpr, COLUMNS: tl.constexpr):
    """The magnitude bits of the largest member in each column."""
    top = tl.zeros((COLUMNS,), tl.int32)
    for j in range(first, last):
        row = tl.load(order + j)
        bits = float32_bits(tl.load(grad + row * row_stride + offset, mask=mask, other=0), DTYPE)
        top = tl.maximum(top, bits & 0x7FFFFFFF)
    return top


@triton.jit
def _total(grad, order, first, last, offset, mask, row_stride, top, DTYPE: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum of the members' integers in each column, at the exponent of the whole sum's largest."""
    nonfinite = top >= 0x7F800000
    exponent = (top >> 23) - 126
    total = tl.zeros((COLUMNS,), tl.int64)
    for j in range(first, last):
        row = tl.load(order + j)
        bits = float32_bits(tl.load(grad + row * row_stride + offset, mask=mask, other=0), DTYPE)
        total += window_integers(bits, exponent, nonfinite, 4)
    return total


@triton.jit
def _rounded(total, top, OUT: tl.constexpr):
    """The one rounding of a sum, int64, and the output rounding."""
    bits = scaled(total.to(tl.float32).to(tl.int32, bitcast=True), (top >> 23) - 126 - 27)
    return output_bits(tl.where(top >= 0x7F800000, 0x7FC00000, bits), OUT)


@triton.jit
def table_gradient_kernel(
    ids, order, starts, ends, grad, out, tops, sums, width, row_stride, column_stride,
    STEP: tl.constexpr, DTYPE: tl.constexpr, OUT: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program for each sorted position and block of columns; most have nothing to do.

    STEP 0: short sums, and the maxima of long ones. 1: the integers of long ones. 2: their rounding. A long sum
    keeps its integers in line start // CHUNK, which no other has.
    """
    i = tl.program_id(0)
    id = tl.load(ids + i)
    start = tl.load(starts + i)
    end = tl.load(ends + i)
    long = end - start > CHUNK
    head = (i == start) if STEP == 2 else ((i - start) % CHUNK == 0)
    if (id >= 0) & head & (long | (STEP == 0)):
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        mask = column < width
        offset = column.to(tl.int64) * column_stride
        last = tl.minimum(i + CHUNK, end)
        target = id * width + column
        line = (start // CHUNK) * width + column
        if STEP == 0:
            top = _top(grad, order, i, last, offset, mask, row_stride, DTYPE, COLUMNS)
            if long:
                tl.atomic_max(tops + line, top, mask=mask, sem="relaxed")
            else:
                total = _total(grad, order, i, last, offset, mask, row_stride, top, DTYPE, COLUMNS)
                tl.store(out + target, _rounded(total, top, OUT), mask=mask)
        else:
            top = tl.load(tops + line, mask=mask, other=0)
            if STEP == 1:
                total = _total(grad, order, i, last, offset, mask, row_stride, top, DTYPE, COLUMNS)
                tl.atomic_add(sums + line, total, mask=mask, sem="relaxed")
            else:
                total = tl.load(sums + line, mask=mask, other=0)
                tl.store(out + target, _rounded(total, top, OUT), mask=mask)


def grad_table_triton(ids: Tensor, grad_rows: Tensor, out: Tensor) -> None:
    """int64 ids [N], -1 for one without a gradient, [N, H] of any strides; out [vocab, H] comes filled with zeros."""
    (tokens, width) = grad_rows.shape
    if tokens == 0 or out.numel() == 0:
        return
    sorted_ids, order = ids.sort()
    starts = torch.searchsorted(sorted_ids, sorted_ids)
    ends = torch.searchsorted(sorted_ids, sorted_ids, right=True)
    lines = tokens // _CHUNK + 1
    tops = out.new_zeros((lines, width), dtype=torch.int32)
    sums = out.new_zeros((lines, width), dtype=torch.int64)
    columns = min(_COLUMNS, triton.next_power_of_2(width))
    with torch.cuda.device(out.device):
        for step in (0, 1, 2) if tokens > _CHUNK else (0,):
            table_gradient_kernel[(tokens, triton.cdiv(width, columns))](
                sorted_ids, order, starts, ends, bits_of(grad_rows), bits_of(out), tops, sums,
                width, *grad_rows.stride(), STEP=step, DTYPE=str(grad_rows.dtype).removeprefix("torch."),
                OUT=str(out.dtype).removeprefix("torch."), CHUNK=_CHUNK, COLUMNS=columns, num_warps=4,
            )  # fmt: skip
