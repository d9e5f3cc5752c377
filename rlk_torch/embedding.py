"""Token embedding: the bits of the rows, on every device, with ids that never wrap or clamp.

Section 5 of docs/contract.md. The twin is rlk_jax/embedding.py.
"""

from typing import Any

import torch
from torch import Tensor

from rlk_torch.checks import as_int64, as_padding_idx, as_token_ids, check_floats, outside, raise_bad_id
from rlk_torch.devices import has_triton
from rlk_torch.differentiable import differentiable, member
from rlk_torch.embedding_grad import table_gradient
from rlk_torch.floats import QUIET_NAN, bits_of, narrowed, scaled


def embedding(token_ids: Any, weight: Tensor, *, check_ids: bool = True, padding_idx: int | None = None) -> Tensor:
    """Rows of a table, bit for bit: NaN payloads, -0 and subnormals included.

    Arguments:
        token_ids: [...] of any integer dtype (a tensor, a NumPy array, integers), 0 <= id < V.
        weight: [V, H] bfloat16, float16 or float32, any strides.
        check_ids: read the ids and refuse bad ones. False skips that (no wait for the device) and gives a
            bad id the row that compiled code gives it: all elements the quiet NaN.
        padding_idx: an id, 0 <= padding_idx < V, whose row gets no gradient, or None. The result is the same.

    Returns:
        [..., H] in weight's dtype. Nothing is rounded.

    The gradient of weight is offered in reverse mode: a row's is the exact sum over all positions of its id,
    rounded once to float32 and once to weight's dtype; +0 where no id names the row. Bad ids add nothing.

    Raises:
        IndexError: an id outside the table, with its position (eager calls; compiled code cannot read ids).
        TypeError: bool or float ids, a table of another dtype, a padding_idx that is no integer.
        ValueError: a table that is not [V, H], ids on another device, or a padding_idx outside the table.
        NotImplementedError: forward mode, or a second derivative.

    Example:
        >>> table = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> embedding([1, 0, 1], table)
        tensor([[3., 4.],
                [1., 2.],
                [3., 4.]])
    """
    return run_embedding(token_ids, weight, check_ids, padding_idx, widen=False)


def embedding_fp32(token_ids: Any, weight: Tensor, *, check_ids: bool = True, padding_idx: int | None = None) -> Tensor:
    """Rows of a table widened exactly to float32.

    Arguments:
        token_ids: [...] of any integer dtype, as for `embedding`.
        weight: [V, H] bfloat16, float16 or float32, any strides.
        check_ids: as for `embedding`.
        padding_idx: as for `embedding`.

    Returns:
        [..., H] float32. Nothing is rounded; where a 16-bit table is widened, a NaN becomes 0x7FC00000. The
        gradient of weight is as for `embedding`.

    Raises:
        IndexError, TypeError, ValueError, NotImplementedError: as for `embedding`.

    Example:
        >>> embedding_fp32(1, torch.tensor([[1.0], [3.0]], dtype=torch.bfloat16))
        tensor([3.])
    """
    return run_embedding(token_ids, weight, check_ids, padding_idx, widen=True)


def run_embedding(
    token_ids: Any,
    weight: Tensor,
    check_ids: bool,
    padding_idx: int | None,
    widen: bool,
    implementation: str = "",
    scale: float | None = None,
) -> Tensor:
    """Both paths, by a named implementation or, with the empty name, the device's own.

    scale: what rows are multiplied by, a float32 number, or None; docs/tables.md has its rounding.
    """
    check_floats("weight", weight, "[V, H]", 2)
    padding_idx = as_padding_idx(padding_idx, weight.shape[0])
    ids = as_token_ids(token_ids, weight.device, weight.shape[0], check_ids)
    readable = check_ids and not torch.compiler.is_compiling()
    return _forward(ids, weight, readable, widen, implementation, -1 if padding_idx is None else padding_idx, scale)


def default_implementation(device: torch.device) -> str:
    """Triton on CUDA where it is installed, else the plain gather."""
    return "triton" if has_triton(device) else "gather"


@torch.library.custom_op("rlk_torch::embedding", mutates_args=())
def _embedding(
    token_ids: Tensor,
    weight: Tensor,
    check_ids: bool,
    widen: bool,
    implementation: str,
    padding_idx: int,
    scale: float | None = None,
) -> Tensor:
    """One operator for all implementations; the empty name lets the device choose.

    padding_idx is for the gradient alone, -1 where there is none.
    """
    triton = (implementation or default_implementation(weight.device)) == "triton"
    if check_ids or not triton:
        ids = as_int64(token_ids)
        bad = outside(ids, weight.shape[0])
        if check_ids and bad.any():
            raise_bad_id(token_ids, weight.shape[0], bad)
    if triton:
        from rlk_torch.embedding_triton import gather_triton

        return gather_triton(token_ids, weight, widen, scale)
    rows = gather(ids, bad, weight)
    if scale is not None:
        return scaled(rows, scale, torch.float32 if widen else weight.dtype)
    return widened(rows) if widen else rows


@_embedding.register_fake
def _(
    token_ids: Tensor,
    weight: Tensor,
    check_ids: bool,
    widen: bool,
    implementation: str,
    padding_idx: int,
    scale: float | None = None,
) -> Tensor:
    dtype = torch.float32 if widen else weight.dtype
    return weight.new_empty((*token_ids.shape, weight.shape[1]), dtype=dtype)


def _vmap(op: Any) -> Any:
    """A batch of ids is more ids; a batch of tables is taken table by table."""

    def rule(info: Any, in_dims: Any, token_ids: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, int]:
        if in_dims[1] is None:
            return op(token_ids.movedim(in_dims[0], 0), weight, *options), 0
        if info.batch_size == 0:
            shape = token_ids.shape if in_dims[0] is None else member(token_ids, in_dims[0], 0).shape
            dtype = torch.float32 if options[1] else weight.dtype
            return weight.new_empty((0, *shape, member(weight, in_dims[1], 0).shape[1]), dtype=dtype), 0
        tables = weight.unbind(in_dims[1])
        ids = [token_ids] * len(tables) if in_dims[0] is None else token_ids.unbind(in_dims[0])
        return torch.stack([op(i, w, *options) for i, w in zip(ids, tables, strict=True)]), 0

    return rule


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    token_ids, weight, _, _, ctx.implementation, ctx.padding_idx, ctx.scale = inputs
    ctx.save_for_backward(token_ids)
    ctx.vocab, ctx.dtype = weight.shape[0], weight.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Of the table: nothing else here can require a gradient."""
    (token_ids,) = ctx.saved_tensors
    options = (ctx.padding_idx, ctx.implementation, ctx.scale)
    return None, table_gradient(grad, token_ids, ctx.vocab, ctx.dtype, *options), *[None] * 5


_forward = differentiable("embedding", _embedding, _save, _backward, _vmap)


def gather(ids: Tensor, bad: Tensor, weight: Tensor, fill: int | None = None) -> Tensor:
    """The plain gather on any device: int64 ids, the mask of bad ones, [V, H] -> [..., H].

    fill: the bits of a bad one's elements, by default the quiet NaN's.
    """
    out = weight.new_empty((*ids.shape, weight.shape[1]))
    rows = bits_of(out).view(ids.numel(), weight.shape[1])
    if weight.shape[0]:
        torch.index_select(bits_of(weight.detach()), 0, ids.masked_fill(bad, 0).reshape(-1), out=rows)
    rows.masked_fill_(bad.reshape(-1, 1), QUIET_NAN[weight.dtype] if fill is None else fill)
    return out


def widened(rows: Tensor) -> Tensor:
    """Any float type to float32, exactly; a NaN that is widened becomes the quiet NaN."""
    return rows if rows.dtype == torch.float32 else narrowed(rows.float(), torch.float32)
