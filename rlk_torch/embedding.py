"""Token embedding: the bits of the rows, on every device, with ids that never wrap or clamp.

Section 5 of docs/contract.md. The twin is rlk_jax/embedding.py.
"""

from typing import Any

import torch
from torch import Tensor

from rlk_torch.checks import as_int64, as_token_ids, check_floats, raise_bad_id
from rlk_torch.devices import has_triton
from rlk_torch.floats import QUIET_NAN, bits_of, narrowed
from rlk_torch.refusal import without_gradient


def embedding(token_ids: Any, weight: Tensor, *, check_ids: bool = True) -> Tensor:
    """Rows of a table, bit for bit: NaN payloads, -0 and subnormals included.

    Arguments:
        token_ids: [...] of any integer dtype (a tensor, a NumPy array, integers), 0 <= id < V.
        weight: [V, H] bfloat16, float16 or float32, any strides.
        check_ids: read the ids and refuse bad ones. False skips that (no wait for the device) and gives a
            bad id the row that compiled code gives it: all elements the quiet NaN.

    Returns:
        [..., H] in weight's dtype. Nothing is rounded.

    Raises:
        IndexError: an id outside the table, with its position (eager calls; compiled code cannot read ids).
        TypeError: bool or float ids, a table of another dtype.
        ValueError: a table that is not [V, H], or ids on another device.
        NotImplementedError: a gradient is asked for.

    Example:
        >>> table = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> embedding([1, 0, 1], table)
        tensor([[3., 4.],
                [1., 2.],
                [3., 4.]])
    """
    return run_embedding(token_ids, weight, check_ids, widen=False)


def embedding_fp32(token_ids: Any, weight: Tensor, *, check_ids: bool = True) -> Tensor:
    """Rows of a table widened exactly to float32.

    Arguments:
        token_ids: [...] of any integer dtype, as for `embedding`.
        weight: [V, H] bfloat16, float16 or float32, any strides.
        check_ids: as for `embedding`.

    Returns:
        [..., H] float32. Nothing is rounded; where a 16-bit table is widened, a NaN becomes 0x7FC00000.

    Raises:
        IndexError, TypeError, ValueError, NotImplementedError: as for `embedding`.

    Example:
        >>> embedding_fp32(1, torch.tensor([[1.0], [3.0]], dtype=torch.bfloat16))
        tensor([3.])
    """
    return run_embedding(token_ids, weight, check_ids, widen=True)


def run_embedding(token_ids: Any, weight: Tensor, check_ids: bool, widen: bool, implementation: str = "") -> Tensor:
    """Both paths, by a named implementation or, with the empty name, the device's own."""
    check_floats("weight", weight, "[V, H]", 2)
    ids = as_token_ids(token_ids, weight.device, weight.shape[0], check_ids)
    readable = check_ids and not torch.compiler.is_compiling()
    return _forward(ids, weight, readable, widen, implementation)


def default_implementation(device: torch.device) -> str:
    """Triton on CUDA where it is installed, else the plain gather."""
    return "triton" if has_triton(device) else "gather"


@torch.library.custom_op("rlk_torch::embedding", mutates_args=())
def _embedding(token_ids: Tensor, weight: Tensor, check_ids: bool, widen: bool, implementation: str) -> Tensor:
    """One operator for all implementations; the empty name lets the device choose."""
    triton = (implementation or default_implementation(weight.device)) == "triton"
    if check_ids or not triton:
        ids = as_int64(token_ids)
        bad = (ids < 0) | (ids >= weight.shape[0])
        if check_ids and bad.any():
            raise_bad_id(token_ids, weight.shape[0], bad)
    if triton:
        from rlk_torch.embedding_triton import gather_triton

        return gather_triton(token_ids, weight, widen)
    rows = gather(ids, bad, weight)
    return widened(rows) if widen else rows


@_embedding.register_fake
def _(token_ids: Tensor, weight: Tensor, check_ids: bool, widen: bool, implementation: str) -> Tensor:
    dtype = torch.float32 if widen else weight.dtype
    return weight.new_empty((*token_ids.shape, weight.shape[1]), dtype=dtype)


@_embedding.register_vmap
def _(info: Any, in_dims: Any, token_ids: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, int]:
    """A batch of ids is more ids; a batch of tables is taken table by table."""
    if in_dims[0] is not None:
        token_ids = token_ids.movedim(in_dims[0], 0)
    if in_dims[1] is None:
        return _embedding(token_ids, weight, *options), 0
    if info.batch_size == 0:
        shape = token_ids.shape[1:] if in_dims[0] is not None else token_ids.shape
        width = weight.movedim(in_dims[1], 0).shape[2]
        return weight.new_empty((0, *shape, width), dtype=torch.float32 if options[1] else weight.dtype), 0
    tables = weight.unbind(in_dims[1])
    ids = token_ids.unbind(0) if in_dims[0] is not None else [token_ids] * len(tables)
    return torch.stack([_embedding(i, w, *options) for i, w in zip(ids, tables, strict=True)]), 0


_forward = without_gradient(
    _embedding, "the gradient of embedding is not offered yet: detach weight, or call it under torch.no_grad()"
)


def gather(ids: Tensor, bad: Tensor, weight: Tensor) -> Tensor:
    """The plain gather on any device: int64 ids, the mask of bad ones, [V, H] -> [..., H]."""
    out = weight.new_empty((*ids.shape, weight.shape[1]))
    rows = bits_of(out).view(ids.numel(), weight.shape[1])
    if weight.shape[0]:
        torch.index_select(bits_of(weight.detach()), 0, ids.masked_fill(bad, 0).reshape(-1), out=rows)
    rows.masked_fill_(bad.reshape(-1, 1), QUIET_NAN[weight.dtype])
    return out


def widened(rows: Tensor) -> Tensor:
    """Any float type to float32, exactly; a NaN that is widened becomes the quiet NaN."""
    return rows if rows.dtype == torch.float32 else narrowed(rows.float(), torch.float32)
