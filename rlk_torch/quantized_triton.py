"""Rows of quantized tables on NVIDIA GPUs, in Triton. The reference is quantized.py; the bits are the same."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlk_torch.floats import bits_of, significand_and_power
from rlk_torch.rounding_triton import output_bits, scaled, times

_TILE = 2048  # elements a program moves, as in embedding_triton.py


@triton.jit
def product_bits(word, exponent, OUT: tl.constexpr):
    """word * 2^exponent, int32, rounded once to the type OUT: the bits of that number in float32."""
    if OUT == "float32":
        return scaled(word.to(tl.float32).to(tl.int32, bitcast=True), exponent)
    else:
        word = (word >> 8) | ((word & 255) != 0).to(tl.int32)
        bits = word.to(tl.float32).to(tl.int32, bitcast=True)
        if OUT == "bfloat16":
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return scaled(bits, exponent + 8)


@triton.jit
def quantized_rows_kernel(
    ids, values, scales, out, tokens, vocab, width, row_stride, column_stride, scale_stride, significand, power,
    EXPONENTS: tl.constexpr, SCALED: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens and COLUMNS columns a program.

    EXPONENTS: scales are exponents of powers of two, int8; else the bits of float32. SCALED: the float32 row times
    significand * 2^power. A bad id reads nothing, and gives the quiet NaN. Offsets are 64-bit.
    """
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    id = tl.load(ids + token, mask=token < tokens, other=0).to(tl.int64)
    good = (token < tokens) & (id >= 0) & (id < vocab)
    row = tl.where(good, id, 0)
    scale = tl.load(scales + row * scale_stride, mask=good, other=0).to(tl.int32)
    if EXPONENTS:
        m = tl.full(scale.shape, 0x800000, tl.int32)
        exponent = scale - 23
        nonfinite = scale != scale
    else:
        size = scale & 0x7FFFFFFF
        subnormal = size < 0x800000
        normal = tl.where(subnormal, size.to(tl.float32).to(tl.int32, bitcast=True), size)
        m = tl.where(size == 0, 0, (normal & 0x7FFFFF) | 0x800000)
        m = tl.where(scale < 0, -m, m)
        exponent = (normal >> 23) - 150 - tl.where(subnormal, 149, 0)
        nonfinite = size >= 0x7F800000
    inside = (column < width)[None, :]
    source = row[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
    word = tl.load(values + source, mask=good[:, None] & inside, other=0).to(tl.int32) * m[:, None]
    if SCALED:
        bits = times(product_bits(word, exponent[:, None], "float32"), significand, power)
    else:
        bits = product_bits(word, exponent[:, None], OUT)
    bits = tl.where((good & (nonfinite == 0))[:, None], bits, 0x7FC00000)
    result = output_bits(bits, OUT)
    if OUT == "float16" and not SCALED:
        result = tl.where((result & 0x7FFF) == 0, 0, result).to(tl.int16)  # one rounding, whose every zero is +0
    tl.store(out + token[:, None] * width + column[None, :], result, mask=(token < tokens)[:, None] & inside)


def quantized_rows_triton(
    token_ids: Tensor, values: Tensor, scale: Tensor, dtype: torch.dtype, times: float | None
) -> Tensor:
    """Ids of any integer dtype and strides, int8 [V, H], float32 or int8 [V] -> [..., H] on the device of the ids.

    The table may be in pinned host memory.
    """
    vocab, width = values.shape
    ids = token_ids.reshape(-1).contiguous()
    out = torch.empty((*token_ids.shape, width), dtype=dtype, device=token_ids.device)
    if out.numel() == 0:
        return out
    columns = min(_TILE, triton.next_power_of_2(width))
    rows = max(1, _TILE // columns)
    grid = (triton.cdiv(ids.numel(), rows), triton.cdiv(width, columns))
    exponents = scale.dtype == torch.int8
    with torch.cuda.device(token_ids.device):
        quantized_rows_kernel[grid](
            ids, values, scale if exponents else bits_of(scale), bits_of(out), ids.numel(), vocab, width,
            *values.stride(), scale.stride(0), *significand_and_power(1.0 if times is None else times),
            EXPONENTS=exponents, SCALED=times is not None, OUT=str(dtype).removeprefix("torch."),
            ROWS=rows, COLUMNS=columns, num_warps=1,
        )  # fmt: skip
    return out
