"""Quantized tables as integers: the `Aligned` of their float32 rows.

Section 1 of docs/contract.md. Where the scales are powers of two, the integers are the values, shifted.
The twin is rlk_jax/quantized_alignment.py.
"""

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned, exponents, integers, largest, padded, write_digits
from rlk_torch.checks import check_digits
from rlk_torch.differentiable import one_by_one
from rlk_torch.quantized import NO_GRADIENT, QuantizedTable, dequantize
from rlk_torch.refusal import without_gradient

_BLOCK = 2**18  # elements aligned at a time, so that temporaries stay in the cache
_BLOCK_GPU = 2**24


def align_quantized(table: QuantizedTable, digits: int) -> Aligned:
    """`align` of a quantized table."""
    planes, exponent, nonfinite, origin = _constant(table.values, table.scale, check_digits(digits))
    return Aligned(planes, exponent, nonfinite, table.shape[1], origin)


@torch.library.custom_op("rlk_torch::align_quantized", mutates_args=())
def aligned_parts(values: Tensor, scale: Tensor, digits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Planes, exponents, flags and the origin of int8 [R, L] and its scales [R]."""
    rows, length = values.shape
    planes = values.new_zeros((digits, rows, padded(length)))
    exponent = values.new_zeros(rows, dtype=torch.int32)
    nonfinite = values.new_zeros(rows, dtype=torch.bool)
    step = max(1, (_BLOCK if values.device.type == "cpu" else _BLOCK_GPU) // max(1, length))
    for start in range(0, rows if length else 0, step):
        part = slice(start, start + step)
        if scale.dtype == torch.int8:
            q, exponent[part], nonfinite[part] = _shifted(values[part].int(), scale[part].int(), digits)
        else:
            x = dequantize(values[part], scale.detach()[part], torch.float32)
            exponent[part], nonfinite[part] = exponents(largest(x, 1))
            q = integers(x, exponent[part, None], nonfinite[part, None], digits)
        write_digits(q, planes[:, part, :length])
    return planes, exponent, nonfinite, scale.new_empty(0, dtype=torch.float32)


def _shifted(values: Tensor, power: Tensor, digits: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, exponents and flags of values * 2^power, without a float: |values| <= 2^7, and the window is wider."""
    size = values.abs()
    least = 1 << (-126 - power).clamp(0, 7)  # what is smaller lies below 2^-126
    values = values.masked_fill(size < least[:, None], 0)
    top = values.abs().amax(1)
    bits = torch.stack([top >= 1 << i for i in range(8)]).sum(0, dtype=torch.int32)  # of the largest value
    nonfinite = bits + power > 128
    exponent = (bits + power).masked_fill((top == 0) | nonfinite, 0)
    q = values << (7 * digits - 1 - bits)[:, None]
    return q.masked_fill(nonfinite[:, None], 0), exponent, nonfinite


@aligned_parts.register_fake
def _(values: Tensor, scale: Tensor, digits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, length = values.shape
    planes = values.new_empty((digits, rows, padded(length)))
    exponent, nonfinite = values.new_empty(rows, dtype=torch.int32), values.new_empty(rows, dtype=torch.bool)
    return planes, exponent, nonfinite, scale.new_empty(0, dtype=torch.float32)


aligned_parts.register_vmap(one_by_one(aligned_parts))
_constant = without_gradient(aligned_parts, NO_GRADIENT)
