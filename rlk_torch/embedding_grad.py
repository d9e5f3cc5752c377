"""Gradient of the embedding's table: aligned sums of the rows of one id, each rounded once, in any order.

Section 6 of docs/contract.md. The twin is rlk_jax/embedding_grad.py.
"""

import torch
from torch import Tensor

from rlk_torch.alignment import exponents, integers
from rlk_torch.checks import as_int64
from rlk_torch.devices import has_triton
from rlk_torch.differentiable import gradient_only, one_by_one
from rlk_torch.floats import magnitude, narrowed, scaled
from rlk_torch.products import rounded_sum

_BLOCK = 2**21  # members summed at a time: some columns of all tokens


def grad_table(
    ids: Tensor, grad_rows: Tensor, vocab: int, dtype: torch.dtype, implementation: str = "gather"
) -> Tensor:
    """int64 ids [...], -1 for one that has no gradient, and [..., H] -> [vocab, H] in dtype.

    Sums exist for the ids that occur, not for the vocab. implementation: the forward's.
    """
    width = grad_rows.shape[-1]
    out = grad_rows.new_zeros((vocab, width), dtype=dtype)
    ids, grad_rows = ids.reshape(-1), grad_rows.reshape(ids.numel(), width)
    if implementation == "triton":
        from rlk_torch.embedding_grad_triton import grad_table_triton

        grad_table_triton(ids, grad_rows, out)
        return out
    kept = ids >= 0
    if not bool(kept.all()):
        ids, grad_rows = ids[kept], grad_rows[kept]
    if ids.numel() == 0 or width == 0:
        return out
    named, of = ids.unique(return_inverse=True)
    step = max(1, _BLOCK // ids.numel())
    for start in range(0, width, step):
        columns = slice(start, start + step)
        out[named, columns] = narrowed(_sums(of, grad_rows[:, columns].float(), len(named)), dtype)
    return out


def _sums(of: Tensor, members: Tensor, count: int) -> Tensor:
    """Aligned sums of float32 members [N, C] by the number of the sum they belong to -> float32 [count, C]."""
    shape = (count, members.shape[1])
    top = members.new_zeros(shape, dtype=torch.int32)
    top.scatter_reduce_(0, of[:, None].expand_as(members), magnitude(members), "amax")
    exponent, nonfinite = exponents(top)
    q = integers(members, exponent[of], nonfinite[of], 4)
    total = members.new_zeros(shape, dtype=torch.int64).index_add_(0, of, q.long())
    return rounded_sum(total, exponent, nonfinite)


@torch.library.custom_op("rlk_torch::embedding_grad", mutates_args=())
def _table_gradient(
    grad_rows: Tensor,
    token_ids: Tensor,
    vocab: int,
    dtype: torch.dtype,
    padding_idx: int,
    implementation: str,
    scale: float | None = None,
) -> Tensor:
    """padding_idx is -1 where there is none. Ids outside the table add nothing. scale: the forward's."""
    ids = as_int64(token_ids)
    ids = torch.where((ids < vocab) & (ids != padding_idx), ids, -1)
    implementation = implementation or ("triton" if has_triton(grad_rows.device) else "gather")
    grad = grad_rows.detach() if scale is None else _scaled(grad_rows.detach(), scale, implementation)
    return grad_table(ids, grad, vocab, dtype, implementation)


def _scaled(grad_rows: Tensor, scale: float, implementation: str) -> Tensor:
    """Float32 gradients of unscaled rows."""
    if implementation == "triton":
        from rlk_torch.embedding_triton import scaled_triton

        return scaled_triton(grad_rows, scale)
    return scaled(grad_rows, scale, torch.float32)


@_table_gradient.register_fake
def _(
    grad_rows: Tensor,
    token_ids: Tensor,
    vocab: int,
    dtype: torch.dtype,
    padding_idx: int,
    implementation: str,
    scale: float | None = None,
) -> Tensor:
    return grad_rows.new_empty((vocab, grad_rows.shape[-1]), dtype=dtype)


_table_gradient.register_vmap(one_by_one(_table_gradient))
table_gradient = gradient_only(_table_gradient, "embedding")
