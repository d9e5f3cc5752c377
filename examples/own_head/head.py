"""An LM head of one's own, as decoding kernels do it: few rows would leave a GPU idle, so more blocks share K."""

import torch
from torch import Tensor


def lm_head(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., K], [V, K], [V] -> [..., V] in hidden's dtype, added in float32."""
    rows = hidden.numel() // hidden.shape[-1]
    return _split_k(hidden, weight, bias, blocks=4 if rows <= 2 else 1)


def mended(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As many blocks for many rows as for few."""
    return _split_k(hidden, weight, bias, blocks=4)


@torch.compiler.disable  # as an extension's kernel is: the compiler sees none of it
@torch.no_grad()
def _split_k(hidden: Tensor, weight: Tensor, bias: Tensor | None, blocks: int) -> Tensor:
    """Each block adds its products, and the blocks' sums are added one after another."""
    rows, columns = hidden.reshape(-1, hidden.shape[-1]).float().contiguous(), weight.float().contiguous()
    total = rows.new_zeros(len(rows), len(columns))
    for of_rows, of_columns in zip(rows.chunk(blocks, dim=1), columns.chunk(blocks, dim=1), strict=True):
        total += (of_rows[:, None] * of_columns).sum(dim=-1)
    if bias is not None:
        total += bias.float()
    return total.to(hidden.dtype).reshape(*hidden.shape[:-1], len(weight))
