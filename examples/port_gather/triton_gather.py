"""A gather as one writes it in Triton: one program copies a tile of one row. The port is in pallas_gather.py."""

import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024


@triton.jit
def gather_kernel(ids, table, out, vocab, width, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.load(ids + token).to(tl.int64)  # vocab * width of a real table passes 2^31
    inside = (row >= 0) & (row < vocab)
    wanted = column < width
    values = tl.load(table + row * width + column, mask=wanted & inside, other=float("nan"))
    tl.store(out + token * width + column, values, mask=wanted)


def gather(token_ids: Tensor, weight: Tensor) -> Tensor:
    """[...] of any integer dtype, [V, H] -> [..., H]. An id that is not in the vocab gives a row of NaN."""
    ids, table = token_ids.reshape(-1).contiguous(), weight.contiguous()
    vocab, width = table.shape
    out = table.new_empty(ids.numel(), width)
    if out.numel():
        gather_kernel[ids.numel(), triton.cdiv(width, COLUMNS)](ids, table, out, vocab, width, COLUMNS)
    return out.reshape(*token_ids.shape, width)
