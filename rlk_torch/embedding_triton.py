"""The gather on NVIDIA GPUs, in Triton. The reference is `gather` in embedding.py; the bits are the same."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlk_torch.alignment_triton import float32_bits
from rlk_torch.floats import QUIET_NAN, bits_of, significand_and_power
from rlk_torch.rounding_triton import output_bits, times

_TILE = 2048  # elements a program moves; with one warp, the fastest on an H200


@triton.jit
def gather_kernel(
    ids, table, out, tokens, vocab, width, row_stride, column_stride, poison, significand, power,
    WIDEN: tl.constexpr, SCALED: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens and COLUMNS columns a program, as integers.

    WIDEN: "" or the table's type, to float32. SCALED: that times significand * 2^power, rounded to the type OUT.
    A bad id reads nothing. Offsets are 64-bit: vocab * width of real tables passes 2^31.
    """
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    id = tl.load(ids + token, mask=token < tokens, other=0).to(tl.int64)
    good = (id >= 0) & (id < vocab)
    wanted = (token < tokens)[:, None] & (column < width)[None, :]
    source = tl.where(good, id, 0)[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
    bits = tl.load(table + source, mask=wanted & good[:, None], other=poison)
    if WIDEN != "":
        bits = float32_bits(bits, WIDEN)
        if SCALED:
            bits = times(bits, significand, power)
        bits = output_bits(bits, OUT)
    tl.store(out + token[:, None] * width + column[None, :], bits, mask=wanted)


def gather_triton(token_ids: Tensor, weight: Tensor, widen: bool, scale: float | None = None) -> Tensor:
    """Ids of any integer dtype and any strides, [V, H] of any strides -> [..., H] on the device of the ids.

    Bad ids are poisoned. The table may be in pinned host memory.
    """
    vocab, width = weight.shape
    ids = token_ids.reshape(-1).contiguous()
    dtype = torch.float32 if widen else weight.dtype
    out = torch.empty((*token_ids.shape, width), dtype=dtype, device=token_ids.device)
    if out.numel() == 0:
        return out
    columns = min(_TILE, triton.next_power_of_2(width))
    rows = max(1, _TILE // columns)
    grid = (triton.cdiv(ids.numel(), rows), triton.cdiv(width, columns))
    as_it_is = scale is None and dtype == weight.dtype
    with torch.cuda.device(token_ids.device):
        gather_kernel[grid](
            ids, bits_of(weight), bits_of(out), ids.numel(), vocab, width, *weight.stride(), QUIET_NAN[weight.dtype],
            *significand_and_power(1.0 if scale is None else scale),
            WIDEN="" if as_it_is else str(weight.dtype).removeprefix("torch."), SCALED=scale is not None,
            OUT=str(dtype).removeprefix("torch."), ROWS=rows, COLUMNS=columns, num_warps=1,
        )  # fmt: skip
    return out


def scaled_triton(rows: Tensor, scale: float) -> Tensor:
    """Rows [..., H] of any float type and any strides times a float32 number, float32: a gather of all of them."""
    flat = rows.reshape(-1, rows.shape[-1]) if rows.numel() else rows.new_empty((0, rows.shape[-1]))
    return gather_triton(torch.arange(len(flat), device=rows.device), flat, True, scale).view(rows.shape)
