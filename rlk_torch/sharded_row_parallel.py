"""The LM head of a hidden dimension that is sharded over ranks, with the bits of the whole one's.

Sections 1 to 4 and 6 of docs/contract.md. The sum is that of sharded_parts.py.
The twin is rlk_jax/sharded_row_parallel.py.
"""

from typing import Any

import torch
from torch import Tensor

from rlk_torch.differentiable import left_to_eager_code
from rlk_torch.lm_head import check_call, default_digits
from rlk_torch.sharded import check_device, check_length, check_plain, local_part, ranks_of, refuse_vmap
from rlk_torch.sharded_parts import refuse_aligned, run_parts
from rlk_torch.sharded_record import Fact, agreed, of_hidden


def row_parallel_lm_head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: Any = None,
    digits: int | None = None,
    check_shapes: bool = True,
) -> Tensor:
    """Logits where the hidden dimension is sharded, with the bits of `lm_head` on the whole.

    Arguments:
        hidden: [..., K_r] bfloat16, float16 or float32, this rank's part of the hidden dimension, any strides.
        weight: [V, K_r] of any of these types, the same part of it; or a DTensor [V, K] placed `Shard(1)` on a mesh of
            one dimension.
        bias: [V] of any of these types, the same on every rank, or None.
        group: the process group whose ranks hold the parts; None is the default group, or the group of a DTensor's
            mesh.
        digits: 2 (coarse), 3 or 4; None means 3, or 4 where hidden is float32.
        check_shapes: compare first what the ranks were called with. False skips that; then ranks that differ wait
            for each other until the group's timeout, or add up what does not belong together.

    Returns:
        [..., V] in hidden's dtype, a plain tensor, the same on every rank: the parts may be of any sizes, also empty.
        Ranks agree on the exponents of whole rows, then add up integers, before the one rounding; on CUDA these come
        from float64 products.

    The gradients of hidden and weight are this rank's parts of `lm_head`'s, for an upstream gradient that is the same
    on every rank, and need no exchange. Under `torch.compile` the call is left to eager code, and fullgraph=True is
    refused.

    Raises:
        TypeError: as for `lm_head`; an `Aligned`, whose rows were aligned by themselves.
        ValueError: as for `lm_head`; a DTensor placed otherwise, no process group, or ranks that differ in their
            calls.
        NotImplementedError: forward mode, a second derivative, or vmap.

    Example:
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        >>> row_parallel_lm_head(torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.5], [0.0, -1.0]]))
        tensor([ 2., -2.])
        >>> destroy_process_group()
    """
    digits = default_digits(hidden) if digits is None else digits
    dtype = getattr(hidden, "dtype", torch.float32)
    return _run("row_parallel_lm_head", hidden, weight, bias, group, digits, dtype, check_shapes)


def row_parallel_lm_head_fp32(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: Any = None,
    digits: int = 4,
    check_shapes: bool = True,
) -> Tensor:
    """Ground-truth logits where the hidden dimension is sharded, in float32.

    Arguments:
        hidden: [..., K_r], as for `row_parallel_lm_head`.
        weight: [V, K_r] or a DTensor, as for `row_parallel_lm_head`.
        bias: [V] or None, as for `row_parallel_lm_head`.
        group: as for `row_parallel_lm_head`.
        digits: 2, 3 or 4.
        check_shapes: as for `row_parallel_lm_head`.

    Returns:
        [..., V] float32, the bits of `lm_head_fp32` on the whole. Gradients as for `row_parallel_lm_head`.

    Raises:
        TypeError, ValueError, NotImplementedError: as for `row_parallel_lm_head`.

    Example:
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        >>> row_parallel_lm_head_fp32(torch.tensor([1.0, 2.0]).bfloat16(), torch.tensor([[1.0, 0.5]]))
        tensor([2.])
        >>> destroy_process_group()
    """
    return _run("row_parallel_lm_head_fp32", hidden, weight, bias, group, digits, torch.float32, check_shapes)


def _run_eagerly(
    name: str,
    hidden: Tensor,
    weight: Any,
    bias: Tensor | None,
    group: Any,
    digits: int,
    dtype: torch.dtype,
    check_shapes: bool,
) -> Tensor:
    ranks = ranks_of(group, weight)

    def prepare() -> tuple[tuple[Tensor, Tensor], list[Fact]]:
        refuse_vmap(name)
        check_plain("hidden", hidden)
        check_plain("bias", bias)
        part = local_part("weight", weight, 1, ranks)
        refuse_aligned("weight", part)
        check_call(hidden, part, bias, digits)
        check_device(hidden, ranks)
        check_length("hidden's last size times the ranks", hidden.shape[-1] * ranks.size)
        return (hidden, part), [*of_hidden(hidden, part, bias, digits, sharded=True), Fact("vocab", part.shape[0])]

    part_of_hidden, part_of_weight = agreed(name, ranks, check_shapes, prepare)
    return run_parts([part_of_hidden], [part_of_weight], bias, digits, dtype, ranks)


_run = left_to_eager_code(_run_eagerly)
