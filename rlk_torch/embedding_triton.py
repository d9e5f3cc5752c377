"""The gather on NVIDIA GPUs, in Triton. The reference is `gather` in embedding.py; the bits are the same."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlk_torch.floats import QUIET_NAN, bits_of

_TILE = 2048  # elements a program moves; with one warp, the fastest on an H200


@triton.jit
def gather_kernel(
    ids, table, out, tokens, vocab, width, row_stride, column_stride, poison,
    WIDEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens and COLUMNS columns a program, as integers. WIDEN: "", "bfloat16" or "float16" to float32.

    A bad id reads nothing. Offsets are 64-bit: vocab * width of real tables passes 2^31.
    """
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    id = tl.load(ids + token, mask=token < tokens, other=0).to(tl.int64)
    good = (id >= 0) & (id < vocab)
    wanted = (token < tokens)[:, None] & (column < width)[None, :]
    source = tl.where(good, id, 0)[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
    bits = tl.load(table + source, mask=wanted & good[:, None], other=poison)
    if WIDEN == "bfloat16":
        bits = bits.to(tl.int32) << 16
    elif WIDEN == "float16":
        bits = bits.to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    if WIDEN != "":
        bits = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits)
    tl.store(out + token[:, None] * width + column[None, :], bits, mask=wanted)


def gather_triton(token_ids: Tensor, weight: Tensor, widen: bool) -> Tensor:
    """Ids of any integer dtype and any strides, [V, H] of any strides -> [..., H], bad ids poisoned."""
    vocab, width = weight.shape
    ids = token_ids.reshape(-1).contiguous()
    dtype = torch.float32 if widen else weight.dtype
    out = weight.new_empty((*token_ids.shape, width), dtype=dtype)
    if out.numel() == 0:
        return out
    columns = min(_TILE, triton.next_power_of_2(width))
    rows = max(1, _TILE // columns)
    grid = (triton.cdiv(ids.numel(), rows), triton.cdiv(width, columns))
    name = str(weight.dtype).removeprefix("torch.") if widen and dtype != weight.dtype else ""
    with torch.cuda.device(weight.device):
        gather_kernel[grid](
            ids, bits_of(weight), bits_of(out), ids.numel(), vocab, width, *weight.stride(), QUIET_NAN[weight.dtype],
            WIDEN=name, ROWS=rows, COLUMNS=columns, num_warps=1,
        )  # fmt: skip
    return out
