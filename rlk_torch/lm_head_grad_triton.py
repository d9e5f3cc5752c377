"""Gradients of the LM head on NVIDIA GPUs, in Triton. The reference is lm_head_grad.py; the bits are the same."""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlk_torch.alignment import padded
from rlk_torch.alignment_triton import float32_bits, store_digits, window_integers
from rlk_torch.digit_sums_triton import plane_sums
from rlk_torch.floats import bits_of
from rlk_torch.four_digits_triton import Vectors, four_digits_triton

_ROWS, _COLUMNS = 64, 128


@triton.jit
def part_kernel(
    x, planes, exponents, flags, rows, length, padded, row_stride, column_stride, plane_stride,
    DTYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Digits of a tile of vectors, the rows, at exponents that come from elsewhere. Columns past length get zeros."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row_in = row < rows
    source = row.to(tl.int64)[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
    inside = row_in[:, None] & (column < length)[None, :]
    bits = float32_bits(tl.load(x + source, mask=inside, other=0), DTYPE)
    exponent = tl.load(exponents + row, mask=row_in, other=0)
    nonfinite = tl.load(flags + row, mask=row_in, other=0) != 0
    q = window_integers(bits, exponent[:, None], nonfinite[:, None], 4)
    target = row.to(tl.int64)[:, None] * padded + column[None, :]
    store_digits(q, planes, target, plane_stride, row_in[:, None] & (column < padded)[None, :], 4)


def row_planes_triton(x: Tensor, exponent: Tensor, nonfinite: Tensor) -> Vectors:
    """Digits of x [R, L] of any strides, whose rows are the vectors, and their sums."""
    rows, length = x.shape
    planes = torch.empty((4, rows, padded(length)), dtype=torch.int8, device=x.device)
    grid = (triton.cdiv(rows, _ROWS), triton.cdiv(planes.shape[2], _COLUMNS))
    with torch.cuda.device(x.device):
        part_kernel[grid](
            bits_of(x), planes, exponent, nonfinite.view(torch.int8), rows, length, planes.shape[2],
            *x.stride(), planes.stride(0), DTYPE=str(x.dtype).removeprefix("torch."), ROWS=_ROWS, COLUMNS=_COLUMNS,
        )  # fmt: skip
        return Vectors(planes, exponent, nonfinite, plane_sums(planes))


def dots_triton(
    left: Callable[[slice], Vectors], right: Callable[[slice], Vectors], length: int, part: int, out: Tensor
) -> None:
    """Fill out [R, C] with rounded D, from the vectors' members of each part of the reduction."""
    starts = range(0, length, part)
    kept = None
    if len(starts) > 1:
        kept = torch.empty((2, *out.shape), dtype=torch.float64, device=out.device)
    with torch.cuda.device(out.device):
        for start in starts:
            at = slice(start, min(start + part, length))
            four_digits_triton(left(at), right(at), None, out, kept, at.start == 0, at.stop == length)
