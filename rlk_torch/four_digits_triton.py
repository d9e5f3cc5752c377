"""Digit products of many rows and 4 digits on NVIDIA GPUs, in Triton, whose reduction may come in parts.

10 int8 products by digit sums (digit_sums_triton.py says how), not 16. D passes 53 bits, so that a tile cannot keep it
in registers: the products go to memory as int32, and a second kernel puts D together, in two float64, and rounds it.
The D of parts of a reduction are added before the rounding. The reference is products.py; the bits are the same.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from rlk_torch.alignment_triton import float32_bits
from rlk_torch.digit_sums_triton import depth, plane_sums, tile_of, tiles
from rlk_torch.floats import bits_of
from rlk_torch.rounding_triton import finish, words_to_float32

LONGEST_PART = 2**16  # int32 holds a product of digit sums up to this length
_TILES = {"ROWS": 128, "COLUMNS": 256, "GROUP": 16, "num_warps": 8, "num_stages": 4}  # fastest on an H200
_COMBINED = 1024


class Vectors(NamedTuple):
    """Some vectors as integers: int8 planes [digits, R, l], exponents and non-finite flags [R], sums of planes."""

    planes: Tensor
    exponent: Tensor
    nonfinite: Tensor
    sums: Tensor | None = None


@triton.jit
def products_kernel(
    left, right, out, rows, columns, left_plane_rows, right_plane_rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A tile [ROWS left rows, COLUMNS right rows] of the product of two planes a program.

    The operands are tensor descriptors of [rows of all planes, width], out one of [planes, rows, columns]. A tile over
    the end of a plane reads rows of the next one, which are not stored.
    """
    at_n, at_v = tile_of(rows, columns, ROWS, COLUMNS, GROUP)
    p = tl.program_id(1)
    acc = tl.zeros((ROWS, COLUMNS), tl.int32)
    for k in range(0, width, DEPTH):
        a = left.load([p * left_plane_rows + at_n, k])
        b = right.load([p * right_plane_rows + at_v, k])
        acc = tl.dot(a, b.T, acc, out_dtype=tl.int32)
    out.store([p, at_n, at_v], acc.reshape((1, ROWS, COLUMNS)))


@triton.jit
def _coefficients(p):
    """What product p weighs in D = high * 2^21 + low: first the sums (highest pair first), then the digits."""
    low = tl.where(p == 4, 16384.0, tl.where(p == 5, 128.0, 0.0))
    low = tl.where(p == 6, -16511.0, tl.where(p == 7, 16256.0, tl.where(p == 8, -16384.0, low)))
    high = tl.where(p == 0, 16384.0, tl.where(p == 1, 128.0, tl.where((p == 2) | (p == 3), 1.0, 0.0)))
    high = tl.where(p == 6, -1.0, tl.where(p == 7, -129.0, tl.where(p == 8, -16257.0, high)))
    return low, tl.where(p == 9, 2080639.0, high)


@triton.jit
def combine_kernel(
    products, lows, highs, left_exponents, left_flags, right_exponents, right_flags, bias, out,
    columns, product_stride, row_stride, out_stride,
    FIRST: tl.constexpr, LAST: tl.constexpr, BIAS: tl.constexpr, DTYPE: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """A row and COLUMNS columns of D a program. FIRST and LAST part of a reduction: nothing to load, or to keep.

    The product of the top digits comes last: every sum before it is small, so all of them are exact.
    """
    n = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = v < columns
    low = tl.zeros((COLUMNS,), tl.float64)
    high = tl.zeros((COLUMNS,), tl.float64)
    if not FIRST:
        low = tl.load(lows + n * columns + v, mask=inside, other=0)
        high = tl.load(highs + n * columns + v, mask=inside, other=0)
    for p in tl.static_range(10):
        x = tl.load(products + p * product_stride + n * row_stride + v, mask=inside, other=0).to(tl.float64)
        of_low, of_high = _coefficients(p)
        low += x * of_low
        high += x * of_high
    if LAST:
        bits, exponent = words_to_float32(low.to(tl.int64), high.to(tl.int64), True)
        we = tl.load(right_exponents + v, mask=inside, other=0)
        wf = tl.load(right_flags + v, mask=inside, other=0)
        b = we
        if BIAS != "":
            b = float32_bits(tl.load(bias + v, mask=inside, other=0), BIAS)
        he = tl.load(left_exponents + n)
        hf = tl.load(left_flags + n)
        result = finish(bits, exponent, he, hf, we, wf, b, 4, BIAS != "", DTYPE)
        tl.store(out + n * out_stride + v, result, mask=inside)
    else:
        tl.store(lows + n * columns + v, low, mask=inside)
        tl.store(highs + n * columns + v, high, mask=inside)


def four_digits_triton(
    left: Vectors,
    right: Vectors,
    bias: Tensor | None,
    out: Tensor,
    kept: Tensor | None = None,
    first: bool = True,
    last: bool = True,
    config: dict[str, int] | None = None,
) -> None:
    """Fill out [R, C] (any row stride) from two sets of vectors; planes may be those of some rows of a table.

    kept: float64 [2, R, C], for a reduction in parts, of which this is the first, the last or one between.
    """
    _, rows, width = left.planes.shape
    columns = right.planes.shape[1]
    config = {**_TILES, "DEPTH": depth(width), **(config or {})}
    # A row of int32 is a multiple of 16 bytes: tensor descriptors want it.
    products = torch.empty((10, rows, -(-columns // 4) * 4), dtype=torch.int32, device=out.device)
    sums = [plane_sums(x.planes) if x.sums is None else x.sums for x in (left, right)]
    _multiply(sums[0], sums[1], products[:6], columns, config)
    _multiply(left.planes, right.planes, products[6:], columns, config)
    kept = products if kept is None else kept
    with torch.cuda.device(out.device):
        combine_kernel[(rows, triton.cdiv(columns, _COMBINED))](
            products, kept[0], kept[1], left.exponent, left.nonfinite.view(torch.int8),
            right.exponent, right.nonfinite.view(torch.int8), out if bias is None else bits_of(bias), bits_of(out),
            columns, products.stride(0), products.stride(1), out.stride(0),
            FIRST=first, LAST=last, BIAS="" if bias is None else str(bias.dtype).removeprefix("torch."),
            DTYPE=str(out.dtype).removeprefix("torch."), COLUMNS=_COMBINED,
        )  # fmt: skip


def _multiply(left: Tensor, right: Tensor, out: Tensor, columns: int, config: dict[str, int]) -> None:
    """out[p] = left[p] right[p]^T, int8 [planes, R, width] and [planes, C, width], to int32."""
    planes, rows, width = left.shape
    grid = (triton.cdiv(rows, config["ROWS"]) * triton.cdiv(columns, config["COLUMNS"]), planes)
    block = [1, config["ROWS"], config["COLUMNS"]]
    with torch.cuda.device(out.device):
        products_kernel[grid](
            tiles(left, "ROWS", config), tiles(right, "COLUMNS", config),
            TensorDescriptor.from_tensor(out, block), rows, columns, left.stride(0) // width, right.stride(0) // width,
            width, **config,
        )  # fmt: skip
