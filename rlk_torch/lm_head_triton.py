"""The LM head on NVIDIA GPUs: which Triton kernel takes which part. The reference is `_logits` in lm_head.py."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned, align, padded
from rlk_torch.devices import has_tensor_copies
from rlk_torch.digit_sums_triton import LONGEST, many_rows_triton
from rlk_torch.four_digits_triton import LONGEST_PART, Vectors, four_digits_triton
from rlk_torch.products_triton import few_rows_triton

_FEW = 512  # rows up to which fewer products do not pay for the sums of digits
_BLOCK_ROWS = 4096
_BLOCK_BYTES = 2**29  # of what exists at a time for a block of the weight


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
    longest = LONGEST if digits < 4 else LONGEST_PART
    many = rows > _FEW and length <= longest and has_tensor_copies(hidden.device)
    with torch.cuda.device(hidden.device):
        for first in range(0, rows, _BLOCK_ROWS):
            lines = slice(first, min(first + _BLOCK_ROWS, rows))
            aligned = align(hidden[lines], digits)
            step = _step(vocab, _bytes(digits, lines.stop - first, padded(length), whole, many))
            for start in range(0, vocab, step):
                columns = slice(start, min(start + step, vocab))
                weight = block(start, columns.stop - start)
                part = None if bias is None else bias[columns].contiguous()
                _products(aligned, weight, part, out[lines, columns], many)


def _products(hidden: Aligned, weight: Aligned, bias: Tensor | None, out: Tensor, many: bool) -> None:
    if not many:
        few_rows_triton(hidden, weight, bias, out)
    elif hidden.digits < 4:
        many_rows_triton(hidden, weight, bias, out)
    else:
        left, right = (Vectors(x.planes, x.exponent, x.nonfinite) for x in (hidden, weight))
        four_digits_triton(left, right, bias, out)


def _bytes(digits: int, rows: int, width: int, whole: bool, many: bool) -> int:
    """What a row of the weight costs: digits that are made for this call, sums of digits, products in memory."""
    pairs = digits * (digits - 1) // 2 if many else 0
    products = 4 * (pairs + digits) * rows if many and digits == 4 else 0
    return (0 if whole else digits) * width + pairs * width + products


def _step(vocab: int, bytes_of_row: int) -> int:
    """Rows of the weight that are taken at a time: blocks of one size, so that none is a small rest."""
    blocks = max(1, -(-vocab * bytes_of_row // _BLOCK_BYTES))
    return -(-vocab // blocks)
