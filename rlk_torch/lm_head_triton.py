"""The LM head on NVIDIA GPUs: which Triton kernel takes which part. The reference is `_logits` in lm_head.py."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned, align, padded
from rlk_torch.devices import has_tensor_copies
from rlk_torch.digit_sums_triton import LONGEST, many_rows_triton
from rlk_torch.products_triton import few_rows_triton

_FEW = 256  # rows up to which fewer products do not pay for the sums of digits
_BLOCK_ROWS = 4096
_BLOCK_WEIGHTS = 2**26  # weights whose planes or digit sums exist at a time: 6 bytes each


def logits_triton(
    hidden: Tensor,
    vocab: int,
    digits: int,
    block: Callable[[int, int], Aligned],
    whole: bool,
    bias: Tensor | None,
    out: Tensor,
) -> None:
    """Fill out [N, V] from hidden [N, K] and `block(start, count)`, aligned rows of the weight.

    whole: the weight is aligned already, so that one block costs no memory.
    """
    rows, length = hidden.shape
    sums = rows > _FEW and digits < 4 and length <= LONGEST and has_tensor_copies(hidden.device)
    step = vocab if whole and not sums else min(vocab, max(1, _BLOCK_WEIGHTS // padded(length)))
    with torch.cuda.device(hidden.device):
        for start in range(0, vocab, step):
            columns = slice(start, min(start + step, vocab))
            weight = block(start, columns.stop - start)
            part = None if bias is None else bias[columns].contiguous()
            for first in range(0, rows, _BLOCK_ROWS):
                lines = slice(first, first + _BLOCK_ROWS)
                aligned = align(hidden[lines], digits)
                if sums:
                    many_rows_triton(aligned, weight, part, out[lines, columns])
                else:
                    few_rows_triton(aligned, weight, part, out[lines, columns])
