"""Digit products of many rows on NVIDIA GPUs, in Triton: limited by int8 matrix products, so by fewer of them.

With digit sums (Karatsuba's trick) 3 digits need 6 products, not 9, and 2 digits 3, not 4:
a_i b_j + a_j b_i = (a_i + a_j)(b_i + b_j) - a_i b_i - a_j b_j, every sum of two digits fitting int8.
The reference is products.py; the bits are the same.

Karatsuba and Ofman, "Multiplication of Multidigit Numbers on Automata", 1962.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from rlk_torch.alignment import Aligned
from rlk_torch.alignment_triton import float32_bits
from rlk_torch.floats import bits_of
from rlk_torch.rounding_triton import finish

LONGEST = 8192  # D is summed in float64: exact while 2 * 20 bits + log2 of the length stay within 53
_TILES = {"ROWS": 128, "COLUMNS": 128, "GROUP": 16, "num_warps": 8, "num_stages": 4}  # fastest on an H200


@triton.jit
def plane_sums_kernel(planes, out, count, plane_stride, DIGITS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of pairs of planes, the highest pair first: d1+d0 for 2 digits; d2+d1, d2+d0, d1+d0 for 3; 6 for 4."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    d0 = tl.load(planes + at, mask=mask)
    d1 = tl.load(planes + plane_stride + at, mask=mask)
    tl.store(out + (DIGITS * (DIGITS - 1) // 2 - 1) * count + at, d1 + d0, mask=mask)
    if DIGITS >= 3:
        d2 = tl.load(planes + 2 * plane_stride + at, mask=mask)
        tl.store(out + (DIGITS * (DIGITS - 1) // 2 - 3) * count + at, d2 + d1, mask=mask)
        tl.store(out + (DIGITS * (DIGITS - 1) // 2 - 2) * count + at, d2 + d0, mask=mask)
    if DIGITS == 4:
        d3 = tl.load(planes + 3 * plane_stride + at, mask=mask)
        tl.store(out + at, d3 + d2, mask=mask)
        tl.store(out + count + at, d3 + d1, mask=mask)
        tl.store(out + 2 * count + at, d3 + d0, mask=mask)


@triton.jit
def tile_of(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """The first row and column of this program's tile. GROUP columns of tiles go together, and share the cache."""
    tiles_n = tl.cdiv(rows, ROWS)
    tiles_v = tl.cdiv(columns, COLUMNS)
    pid = tl.program_id(0)
    first = (pid // (GROUP * tiles_n)) * GROUP
    size = tl.minimum(tiles_v - first, GROUP)
    at_v = (first + (pid % (GROUP * tiles_n)) % size) * COLUMNS
    at_n = ((pid % (GROUP * tiles_n)) // size) * ROWS
    return at_n, at_v


@triton.jit
def _coefficient(p, DIGITS: tl.constexpr):
    """What product p weighs in D, B = 128: first the sums (highest pair first), then the digits, highest last."""
    if DIGITS == 2:
        return tl.where(p == 0, 128.0, tl.where(p == 1, -127.0, 16256.0)).to(tl.float64)
    else:
        sums = tl.where(p == 0, 2097152.0, tl.where(p == 1, 16384.0, 128.0))
        digits = tl.where(p == 3, -16511.0, tl.where(p == 4, -2080896.0, 266321920.0))
        return tl.where(p < 3, sums, digits).to(tl.float64)


@triton.jit
def many_rows_kernel(
    hidden, hidden_sums, weight, weight_sums,
    hidden_exponents, hidden_flags, weight_exponents, weight_flags, bias, out,
    rows, columns, weight_plane_rows, out_stride, width,
    DIGITS: tl.constexpr, BIAS: tl.constexpr, DTYPE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A tile [ROWS hidden rows, COLUMNS weight rows] a program; one int32 accumulator, D in float64.

    The first four arguments are tensor descriptors of [planes * rows of a plane, width]. A tile over the end
    of a plane reads rows of the next one, which are not stored. One loop runs through all products, so that
    copies stay in flight from one to the next. The product of the top digits comes last: every sum before
    it is small, so all of them are exact.
    """
    SUMS: tl.constexpr = DIGITS * (DIGITS - 1) // 2
    at_n, at_v = tile_of(rows, columns, ROWS, COLUMNS, GROUP)
    steps = width // DEPTH
    total = tl.zeros((ROWS, COLUMNS), tl.float64)
    acc = tl.zeros((ROWS, COLUMNS), tl.int32)
    for i in range(0, SUMS * steps):
        p = i // steps
        k = (i % steps) * DEPTH
        h = hidden_sums.load([p * rows + at_n, k])
        w = weight_sums.load([p * columns + at_v, k])
        acc = tl.dot(h, w.T, acc, out_dtype=tl.int32)
        if k == width - DEPTH:
            total += acc.to(tl.float64) * _coefficient(p, DIGITS)
            acc = tl.zeros((ROWS, COLUMNS), tl.int32)
    for i in range(0, DIGITS * steps):
        p = i // steps
        k = (i % steps) * DEPTH
        h = hidden.load([p * rows + at_n, k])
        w = weight.load([p * weight_plane_rows + at_v, k])
        acc = tl.dot(h, w.T, acc, out_dtype=tl.int32)
        if k == width - DEPTH:
            total += acc.to(tl.float64) * _coefficient(SUMS + p, DIGITS)
            acc = tl.zeros((ROWS, COLUMNS), tl.int32)
    n = at_n + tl.arange(0, ROWS)
    v = at_v + tl.arange(0, COLUMNS)
    n_in, v_in = n < rows, v < columns
    he = tl.load(hidden_exponents + n, mask=n_in, other=0)
    hf = tl.load(hidden_flags + n, mask=n_in, other=0)
    we = tl.load(weight_exponents + v, mask=v_in, other=0)
    wf = tl.load(weight_flags + v, mask=v_in, other=0)
    b = we
    if BIAS != "":
        b = float32_bits(tl.load(bias + v, mask=v_in, other=0), BIAS)
    rounded = total.to(tl.float32).to(tl.int32, bitcast=True)
    bits = finish(
        rounded, 0, he[:, None], hf[:, None], we[None, :], wf[None, :], b[None, :], DIGITS, BIAS != "", DTYPE
    )  # fmt: skip
    tl.store(out + n.to(tl.int64)[:, None] * out_stride + v[None, :], bits, mask=n_in[:, None] & v_in[None, :])


def plane_sums(planes: Tensor) -> Tensor:
    """int8 [digits, R, width], rows of a plane contiguous -> [digits (digits - 1) / 2, R, width]."""
    digits, rows, width = planes.shape
    out = planes.new_empty((digits * (digits - 1) // 2, rows, width))
    count = rows * width
    with torch.cuda.device(planes.device):
        plane_sums_kernel[(triton.cdiv(count, 8192),)](
            planes, out, count, planes.stride(0), DIGITS=digits, BLOCK=8192, num_warps=4
        )  # fmt: skip
    return out


def many_rows_triton(
    hidden: Aligned, weight: Aligned, bias: Tensor | None, out: Tensor, config: dict[str, int] | None = None
) -> None:
    """Fill logits out [N, v] (any row stride) of many rows; weight may be a view of some rows of a table."""
    rows, columns, width = hidden.shape[0], weight.shape[0], hidden.planes.shape[2]
    config = {**_TILES, "DEPTH": depth(width), **(config or {})}
    grid = (triton.cdiv(rows, config["ROWS"]) * triton.cdiv(columns, config["COLUMNS"]),)
    with torch.cuda.device(out.device):
        many_rows_kernel[grid](
            tiles(hidden.planes, "ROWS", config), tiles(plane_sums(hidden.planes), "ROWS", config),
            tiles(weight.planes, "COLUMNS", config), tiles(plane_sums(weight.planes), "COLUMNS", config),
            hidden.exponent, hidden.nonfinite.view(torch.int8), weight.exponent, weight.nonfinite.view(torch.int8),
            out if bias is None else bits_of(bias), bits_of(out),
            rows, columns, weight.planes.stride(0) // width, out.stride(0), width,
            DIGITS=hidden.digits, BIAS="" if bias is None else str(bias.dtype).removeprefix("torch."),
            DTYPE=str(out.dtype).removeprefix("torch."), **config,
        )  # fmt: skip


def depth(width: int) -> int:
    """Members of a reduction that a tile holds; planes are padded to 64."""
    return 128 if width % 128 == 0 else 64


def tiles(planes: Tensor, side: str, config: dict[str, int]) -> TensorDescriptor:
    """Tiles of config[side] rows: all rows of all planes as one matrix, from the first row asked for to the last."""
    count, length, width = planes.shape
    lines = (count - 1) * (planes.stride(0) // width) + length
    return TensorDescriptor.from_tensor(planes.as_strided((lines, width), (width, 1)), [config[side], config["DEPTH"]])
