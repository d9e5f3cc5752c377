"""Tables of int8 values with one scale a row: kept as they are, dequantized with exactly one rounding.

docs/tables.md says what that is. The twin is rlk_jax/quantized.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlk_torch.checks import check_floats, check_same_device, dtype_name
from rlk_torch.differentiable import one_by_one
from rlk_torch.floats import (
    INFINITY,
    SMALLEST_NORMAL,
    magnitude,
    narrowed,
    power_of_two_float64,
)
from rlk_torch.refusal import without_gradient

NO_GRADIENT = "the gradient of a quantized table is not offered, it is a constant: train the weight itself"
_BLOCK = 2**18  # elements at a time, so that temporaries stay in the cache
_BLOCK_GPU = 2**25
_PLAIN = {torch.float32: torch.int32, torch.int8: torch.int8}  # the dtypes of scales, and integers of their width
_TINY = 2.0**-126


class QuantizedTable(nn.Module):
    """A table of int8 values, each row with a scale: row v is values[v] * scale[v].

    Arguments:
        values: int8 [V, H].
        scale: float32 [V], or int8 [V], the exponents of powers of two.

    `EmbeddingTable`, `lm_head` and `align` take it as a weight. As a weight of an LM head it is the matrix
    `dequantized()`: products rounded once to float32, those below 2^-126 are +0. It is a constant: its gradient is
    refused.

    Raises:
        TypeError: another dtype.
        ValueError: shapes that do not meet, values and scale on two devices.

    Example:
        >>> table = QuantizedTable(torch.tensor([[127, -1]], dtype=torch.int8), torch.tensor([-3], dtype=torch.int8))
        >>> table.dequantized()
        tensor([[15.8750, -0.1250]])
    """

    values: Tensor
    scale: Tensor

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        super().__init__()
        check_quantized(values, scale)
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)

    @property
    def shape(self) -> tuple[int, int]:
        """[V, H], the shape of the matrix."""
        return self.values.shape[0], self.values.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    def rows(self, start: int, count: int) -> "QuantizedTable":
        """A view of some rows."""
        return QuantizedTable(self.values[start : start + count], self.scale[start : start + count])

    def dequantized(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix [V, H] in a float type, float32 unless named, each element rounded once."""
        return _dequantized(self.values, self.scale, torch.float32 if dtype is None else dtype)

    def extra_repr(self) -> str:
        return f"shape={self.shape}, scale={dtype_name(self.scale)}, device={self.device}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantizedTable":
        """Moved, and never cast: the bits of the scales are the numbers."""
        self.values = fn(self.values)
        self.scale = fn(self.scale.view(_PLAIN[self.scale.dtype])).view(self.scale.dtype)
        return self


def check_quantized(values: Any, scale: Any) -> None:
    """The parts of a quantized table."""
    for name, x, shape in (("values", values, "[V, H]"), ("scale", scale, "[V]")):
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{name} is of type {type(x).__name__}; expected an array of shape {shape}: convert it first"
            )
    if values.dtype != torch.int8:
        raise TypeError(f"values has dtype {dtype_name(values)}; expected int8: quantize(weight) makes them")
    if scale.dtype not in _PLAIN:
        raise TypeError(
            f"scale has dtype {dtype_name(scale)}; expected float32, or int8, the exponents of powers of two"
        )
    if values.ndim != 2:
        raise ValueError(f"values has shape {tuple(values.shape)}; expected [V, H]: reshape it first")
    if scale.shape != values.shape[:1]:
        raise ValueError(f"scale has shape {tuple(scale.shape)}; expected {(len(values),)}, one a row of values")
    check_same_device(values.device, "values", scale=scale)


def quantize(weight: Tensor, scale: str = "power_of_two") -> QuantizedTable:
    """A table of int8 values for a weight, symmetric, one scale a row.

    Arguments:
        weight: [V, H] bfloat16, float16 or float32, finite. Magnitudes below 2^-126 count as 0.
        scale: "power_of_two": the least 2^k, k >= -128, with the row's largest magnitude within 127 * 2^k. "float32":
            the largest magnitude / 127, rounded to float32; where that lies below 2^-126, the row becomes zeros.

    Returns:
        `QuantizedTable`: each value is the exact quotient of element and scale, rounded to an integer, ties to even.
        It is a constant, which no gradient passes.

    Raises:
        TypeError: another dtype.
        ValueError: a weight that is not [V, H] or not finite, an unknown scale.

    Example:
        >>> quantize(torch.tensor([[1.0, -0.3]])).values
        tensor([[ 64, -19]], dtype=torch.int8)
    """
    check_floats("weight", weight, "[V, H]", 2)
    if scale not in ("power_of_two", "float32"):
        raise ValueError(f"scale is {scale!r}; expected 'power_of_two' or 'float32'")
    values = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    made = torch.empty(
        len(weight), dtype=torch.int8 if scale == "power_of_two" else torch.float32, device=weight.device
    )
    step = max(1, _BLOCK // max(1, weight.shape[1]))
    for start in range(0, len(weight), step):
        rows = slice(start, start + step)
        wide = weight.detach()[rows].float()
        size = magnitude(wide)
        if bool((size >= INFINITY).any()):
            row = start + int((size >= INFINITY).any(1).nonzero()[0])
            raise ValueError(f"weight is not finite in row {row}; expected finite numbers")
        # Float64 quotients of numbers of 24 bits lie on no tie that the exact ones do not lie on.
        exact = wide.masked_fill(size < SMALLEST_NORMAL, 0).double()
        largest = exact.abs().amax(1) if weight.shape[1] else exact.new_zeros(len(exact))
        made[rows], divisor = _scales(largest, scale)
        values[rows] = (exact / divisor[:, None]).round().to(torch.int8)
    return QuantizedTable(values, made)


def _scales(largest: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The scales of rows from their largest magnitudes, as they are kept and as divisors, float64."""
    if kind == "power_of_two":
        significand, exponent = torch.frexp(largest)
        exponent = (exponent - 7 + (significand > 127 / 128).int()).clamp(min=-128).masked_fill(largest == 0, 0)
        return exponent.to(torch.int8), power_of_two_float64(exponent)
    zero = largest / 127 < _TINY
    factor = (largest / 127).masked_fill(zero, 0).float()  # rounded twice, on no tie: 127 x has more bits than x
    return factor, factor.double().masked_fill(zero, torch.inf)


def factors(scale: Tensor) -> Tensor:
    """Scales as float32: a power of two from 2^-128 on is one."""
    if scale.dtype == torch.float32:
        return scale
    exponent = scale.int()
    bits = torch.where(exponent < -126, 1 << (149 + exponent).clamp(0, 30), (exponent + 127) << 23)
    return bits.to(torch.int32).view(torch.float32)


@torch.library.custom_op("rlk_torch::dequantize", mutates_args=())
def dequantize(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """int8 [N, H], scales [N] -> [N, H]."""
    out = torch.empty(values.shape, dtype=dtype, device=values.device)
    step = max(1, (_BLOCK if values.device.type == "cpu" else _BLOCK_GPU) // max(1, values.shape[1]))
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        out[rows] = _rounded(values[rows], factors(scale.detach()[rows])[:, None], dtype)
    return out


@dequantize.register_fake
def _(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return values.new_empty(values.shape, dtype=dtype)


dequantize.register_vmap(one_by_one(dequantize))
_dequantized = without_gradient(dequantize, NO_GRADIENT)


def _rounded(values: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """The one rounding of values * factor, float32 that broadcast against them.

    The integer product has at most 31 bits. For a 16-bit type 8 of them only set a sticky last bit, which lies under
    every tie of that type; the rest is exact.
    """
    size = magnitude(factor)
    subnormal = size < SMALLEST_NORMAL
    normal = torch.where(subnormal, size.float().view(torch.int32), size)
    significand = ((normal & 0x7FFFFF) | SMALLEST_NORMAL).masked_fill(size == 0, 0)
    significand = torch.where(factor.view(torch.int32) < 0, -significand, significand)
    exponent = (normal >> 23) - 150 - 149 * subnormal.int()
    word = values.int() * significand
    if dtype != torch.float32:
        word = (word >> 8) | ((word & 255) != 0).int()
        exponent = exponent + 8
    r = word.float()
    if dtype == torch.bfloat16:
        bits = r.view(torch.int32)
        r = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).view(torch.float32)
    exact = r.double() * power_of_two_float64(exponent)
    exact.masked_fill_(exact.abs() < _TINY, 0.0)
    out = narrowed(exact.float().masked_fill_(size >= INFINITY, float("nan")), dtype)
    return out.masked_fill_(out == 0, 0.0)
