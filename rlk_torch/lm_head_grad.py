"""Gradients of the LM head: exact dot products and sums, each rounded once, whatever the layout.

Section 6 of docs/contract.md, always with 4 digits. The twin is rlk_jax/lm_head_grad.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned, Vectors, exact_values, exponents, integers, largest, planes_at
from rlk_torch.devices import has_tensor_copies
from rlk_torch.differentiable import gradient_only, more_rows, one_by_one
from rlk_torch.floats import narrowed
from rlk_torch.products import (
    LONGEST_INT32,
    Shards,
    carried,
    column_words,
    default_implementation,
    rounded,
    rounded_sum,
    summed,
)
from rlk_torch.quantized import QuantizedTable, dequantize

DIGITS = 4
_WINDOW = 7 * DIGITS - 1
_BLOCK_SUMS = 2**17  # sums made at a time: their integers stay in the cache
_BLOCK = 2**18  # members aligned at a time, likewise
_BLOCK_GPU = 2**25  # the same for sums on a GPU, where some hundred megabytes are the limit
_LONGEST_PART = LONGEST_INT32 // DIGITS  # a reduction longer than this goes in parts
_LONGEST_TRITON = 2**19  # D is summed in two float64: both are exact up to this length


@dataclass(frozen=True)
class _Budget:
    """sums: held at a time, 16 bytes each where a reduction goes in parts. members: whose digits exist at a time."""

    sums: int
    members: int

    def part(self, length: int, width: int) -> int:
        """Members of a reduction that are taken at a time, for width vectors."""
        return min(length, _LONGEST_PART, max(64, self.members // width // 64 * 64))


_BUDGETS = (_Budget(2**23, 2**23), _Budget(2**23, 2**24))  # 4 bytes a member; with Triton 10, and 40 more a sum


class GradLogits(Protocol):
    """Gradients of logits [N, V] that are made when a part is looked at."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def __getitem__(self, part: tuple[slice, slice]) -> Tensor:
        """Some rows and columns."""

    def largest(self, rows: slice) -> Tensor:
        """The magnitude bits of the largest of each row, int32."""


def grad_hidden(
    grad_logits: Tensor | GradLogits,
    weight: Tensor | Aligned | QuantizedTable,
    dtype: torch.dtype,
    implementation: str = "",
    shards: Shards | None = None,
) -> Tensor:
    """[N, V], [V, K] -> [N, K] in dtype: exact dot products over the vocab.

    An `Aligned` weight counts as the matrix that its planes stand for. shards: who holds the rest of the vocab, of
    which V is then a part; without Triton.
    """
    (rows, vocab), width = grad_logits.shape, weight.shape[1]
    out = torch.zeros((rows, width), dtype=dtype, device=weight.device)
    if out.numel() == 0 or vocab == 0:
        return out
    chosen = _implementation(implementation, weight.device, vocab)
    budget = _BUDGETS[chosen == "triton"]
    part = budget.part(vocab, width)
    columns = _largest(lambda at: largest(_values(weight, at), 0), vocab, part, shards)
    step = max(1, budget.sums // width)
    for start in range(0, rows, step):
        some = slice(start, start + step)
        lines = _lines(grad_logits, some, part, shards)
        _dots(
            lambda at: _planes(grad_logits[some, at], lines, chosen),  # noqa: B023
            lambda at: _planes(_values(weight, at), columns, chosen, True),
            (lines, columns),
            (vocab, part),
            chosen,
            out[some],
            shards,
        )
    return out


def _lines(grad_logits: Tensor | GradLogits, rows: slice, part: int, shards: Shards | None) -> Vectors:
    """Exponents and flags of some rows."""
    if isinstance(grad_logits, Tensor):
        return _largest(lambda at: largest(grad_logits[rows, at], 1), grad_logits.shape[1], part, shards)
    return _largest(lambda _: grad_logits.largest(rows), 1, 1, shards)


def grad_weight(grad_logits: Tensor, hidden: Tensor, dtype: torch.dtype, implementation: str = "") -> Tensor:
    """[N, V], [N, K] -> [V, K] in dtype: exact dot products over the rows."""
    (rows, vocab), width = grad_logits.shape, hidden.shape[1]
    out = grad_logits.new_zeros((vocab, width), dtype=dtype)
    if out.numel() == 0 or rows == 0:
        return out
    chosen = _implementation(implementation, grad_logits.device, rows)
    budget = _BUDGETS[chosen == "triton"]
    part = budget.part(rows, width)
    columns = _largest(lambda at: largest(hidden[at], 0), rows, part)
    kept = _planes(hidden, columns, chosen, True) if part == rows else None
    step = max(1, min(budget.sums // width, budget.members // part))
    for start in range(0, vocab, step):
        grad = grad_logits[:, start : start + step]
        lines = _largest(lambda at: largest(grad[at], 0), rows, part)  # noqa: B023
        _dots(
            lambda at: _planes(grad[at].T, lines, chosen),  # noqa: B023
            lambda at: _planes(hidden[at], columns, chosen, True) if kept is None else kept,
            (lines, columns),
            (rows, part),
            chosen,
            out[start : start + step],
        )
    return out


def grad_bias(grad_logits: Tensor, dtype: torch.dtype) -> Tensor:
    """[N, V] -> [V] in dtype: aligned sums over the rows."""
    rows, vocab = grad_logits.shape
    out = grad_logits.new_zeros(vocab, dtype=dtype)
    if rows == 0:
        return out
    step = max(1, (_BLOCK if out.device.type == "cpu" else _BLOCK_GPU) // rows)
    for start in range(0, vocab, step):
        part = grad_logits[:, start : start + step]
        exponent, nonfinite = exponents(largest(part, 0))
        total = integers(part, exponent, nonfinite, DIGITS).sum(0, dtype=torch.int64)
        out[start : start + step] = narrowed(rounded_sum(total, exponent, nonfinite), dtype)
    return out


def _implementation(asked: str, device: torch.device, length: int) -> str:
    """As the forward's; where its Triton kernels serve and those of the gradients do not, float64."""
    chosen = asked or default_implementation(device)
    triton = chosen == "triton" and length <= _LONGEST_TRITON and has_tensor_copies(device)
    return "float64" if chosen == "triton" and not triton else chosen


def _largest(of_part: Callable[[slice], Tensor], length: int, part: int, shards: Shards | None = None) -> Vectors:
    """Exponents and flags of vectors that are read in parts."""
    tops = [of_part(slice(start, min(start + part, length))) for start in range(0, length, part)]
    top = torch.stack(tops).amax(0)
    return exponents(top if shards is None else shards.largest(top))


def _dots(
    left: Callable[[slice], Any],
    right: Callable[[slice], Any],
    vectors: tuple[Vectors, Vectors],
    lengths: tuple[int, int],
    implementation: str,
    out: Tensor,
    shards: Shards | None = None,
) -> None:
    """Fill out [R, C] with rounded D. Parts share the exponents of the whole, so their integers add up.

    left and right: what `_planes` makes of a part of the reduction. lengths: of the whole and of a part.
    """
    length, part = lengths
    if implementation == "triton":
        from rlk_torch.lm_head_grad_triton import dots_triton

        return dots_triton(left, right, length, part, out)
    step = max(1, _BLOCK_SUMS // out.shape[1])
    blocks = [slice(first, min(first + step, len(out))) for first in range(0, len(out), step)]
    sums: dict[int, tuple[Tensor | None, Tensor]] = {}
    for start in range(0, length, part):
        at = slice(start, min(start + part, length))
        rows, columns = left(at), right(at)
        for block in blocks:
            high, low = column_words(rows[:, block], columns, length, implementation)
            if start:
                more, less = sums[block.start]
                high, low = None if high is None or more is None else high + more, low + less
            if at.stop < length:
                sums[block.start] = high, low
                continue
            if shards is not None:
                high, low = summed([(high, low)], DIGITS, shards)
            out[block] = _finished(high, low, vectors, block, out.dtype)


def _finished(
    high: Tensor | None, low: Tensor, vectors: tuple[Vectors, Vectors], block: slice, dtype: torch.dtype
) -> Tensor:
    (row_exponent, row_nonfinite), (column_exponent, column_nonfinite) = vectors
    high, low = carried(high, low)
    row_exponent, column_exponent = row_exponent[block] - _WINDOW, column_exponent - _WINDOW
    return narrowed(rounded(high, low, row_exponent, column_exponent, row_nonfinite[block], column_nonfinite), dtype)


def _planes(x: Tensor, vectors: Vectors, implementation: str, columns: bool = False) -> Any:
    """Digits of x, whose rows are the vectors, or its columns: int8 [4, *x.shape], or what the Triton kernels want."""
    if implementation == "triton":
        from rlk_torch.lm_head_grad_triton import row_planes_triton

        return row_planes_triton(x.T if columns else x, *vectors)
    return planes_at(x, lambda at: vectors if columns else (vectors[0][at, None], vectors[1][at, None]), DIGITS)


def _values(weight: Tensor | Aligned | QuantizedTable, part: slice) -> Tensor:
    """Some rows of the weight; those of an `Aligned` exactly, in float32, a non-finite row as NaN."""
    if isinstance(weight, Tensor):
        return weight[part]
    if isinstance(weight, QuantizedTable):
        return dequantize(weight.values[part], weight.scale[part], torch.float32)
    return exact_values(weight.rows(part.start, part.stop - part.start))


@torch.library.custom_op("rlk_torch::lm_head_grad_hidden", mutates_args=())
def _hidden_gradient(grad_logits: Tensor, weight: Tensor, dtype: torch.dtype, implementation: str) -> Tensor:
    rows = grad_logits.detach().reshape(grad_logits.shape[:-1].numel(), weight.shape[0])
    out = grad_hidden(rows, weight.detach(), dtype, implementation)
    return out.view(*grad_logits.shape[:-1], weight.shape[1])


@torch.library.custom_op("rlk_torch::lm_head_grad_hidden_aligned", mutates_args=())
def _aligned_hidden_gradient(
    grad_logits: Tensor,
    planes: Tensor,
    exponent: Tensor,
    nonfinite: Tensor,
    length: int,
    dtype: torch.dtype,
    implementation: str,
) -> Tensor:
    rows = grad_logits.detach().reshape(grad_logits.shape[:-1].numel(), planes.shape[1])
    out = grad_hidden(rows, Aligned(planes, exponent, nonfinite, length), dtype, implementation)
    return out.view(*grad_logits.shape[:-1], length)


@torch.library.custom_op("rlk_torch::lm_head_grad_weight", mutates_args=())
def _weight_gradient(grad_logits: Tensor, hidden: Tensor, dtype: torch.dtype, implementation: str) -> Tensor:
    count = hidden.shape[:-1].numel()
    rows = grad_logits.detach().reshape(count, grad_logits.shape[-1])
    return grad_weight(rows, hidden.detach().reshape(count, hidden.shape[-1]), dtype, implementation)


@torch.library.custom_op("rlk_torch::lm_head_grad_bias", mutates_args=())
def _bias_gradient(grad_logits: Tensor, dtype: torch.dtype) -> Tensor:
    return grad_bias(grad_logits.detach().reshape(grad_logits.shape[:-1].numel(), grad_logits.shape[-1]), dtype)


@_hidden_gradient.register_fake
def _(grad_logits: Tensor, weight: Tensor, dtype: torch.dtype, implementation: str) -> Tensor:
    return grad_logits.new_empty((*grad_logits.shape[:-1], weight.shape[1]), dtype=dtype)


@_aligned_hidden_gradient.register_fake
def _(
    grad_logits: Tensor,
    planes: Tensor,
    exponent: Tensor,
    nonfinite: Tensor,
    length: int,
    dtype: torch.dtype,
    implementation: str,
) -> Tensor:
    return grad_logits.new_empty((*grad_logits.shape[:-1], length), dtype=dtype)


@_weight_gradient.register_fake
def _(grad_logits: Tensor, hidden: Tensor, dtype: torch.dtype, implementation: str) -> Tensor:
    return grad_logits.new_empty((grad_logits.shape[-1], hidden.shape[-1]), dtype=dtype)


@_bias_gradient.register_fake
def _(grad_logits: Tensor, dtype: torch.dtype) -> Tensor:
    return grad_logits.new_empty(grad_logits.shape[-1:], dtype=dtype)


_hidden_gradient.register_vmap(more_rows(_hidden_gradient))
_aligned_hidden_gradient.register_vmap(more_rows(_aligned_hidden_gradient))
_weight_gradient.register_vmap(one_by_one(_weight_gradient))
_bias_gradient.register_vmap(one_by_one(_bias_gradient))

hidden_gradient = gradient_only(_hidden_gradient, "lm_head")
aligned_hidden_gradient = gradient_only(_aligned_hidden_gradient, "lm_head")
weight_gradient = gradient_only(_weight_gradient, "lm_head")
bias_gradient = gradient_only(_bias_gradient, "lm_head")
