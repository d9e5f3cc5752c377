"""Float types through their bits: exact widening, the output rounding, powers of two, the one NaN.

The twin is rlk_jax/floats.py.
"""

import math

import torch
from torch import Tensor

SMALLEST_NORMAL = 0x00800000
INFINITY = 0x7F800000
QUIET_NAN = {torch.bfloat16: 0x7FC0, torch.float16: 0x7E00, torch.float32: 0x7FC00000}
_BLOCK = 2**18  # elements scaled at a time, so that temporaries stay in the cache
_BLOCK_GPU = 2**25
_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def bits_of(x: Tensor) -> Tensor:
    """The integer view of a float tensor of any strides."""
    return x.view(_BITS[x.dtype])


def magnitude(x: Tensor) -> Tensor:
    """The bits of |x| for float32, int32: they order like the values; from INFINITY on not finite."""
    return x.view(torch.int32) & 0x7FFFFFFF


def flushed(x: Tensor) -> Tensor:
    """Float32 with magnitudes below 2^-126 replaced by +0."""
    return x.masked_fill(magnitude(x) < SMALLEST_NORMAL, 0.0)


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 rounded once to the output type, ties to even; every NaN the positive quiet one."""
    out = x.clone() if dtype == x.dtype else x.to(dtype)
    bits_of(out).masked_fill_(x.isnan(), QUIET_NAN[dtype])
    return out


def times(x: Tensor, factor: float) -> Tensor:
    """Float32 x * factor, a float32 number: rounded once as if the exponent had no lower limit, +0 below 2^-126.

    The processor's product is that wherever it lies above 2^-126, whatever is done with subnormals; the rest is made
    of integers.
    """
    out = x * factor
    rest = magnitude(out) <= SMALLEST_NORMAL
    if bool(rest.any()):
        out[rest] = _times_in_range(x[rest], factor)
    return out


def _times_in_range(x: Tensor, factor: float) -> Tensor:
    """The same of finite x whose products lie below 2^128: significands, from 1 to 2, by themselves."""
    size = magnitude(x)
    subnormal = size < SMALLEST_NORMAL
    normal = torch.where(subnormal, size.float().view(torch.int32), size)
    significand, power = significand_and_power(factor)
    product = ((normal & 0x7FFFFF) | 0x3F800000).view(torch.float32) * abs(significand)
    exponent = (normal >> 23) - 149 * subnormal.int() + power
    bits = product.view(torch.int32) + ((exponent - 127) << 23)
    sign = (x.view(torch.int32) ^ (-1 if factor < 0 else 0)) & -(2**31)
    zero = (size == 0) | ((product.view(torch.int32) >> 23) + exponent - 127 < 1)
    return (bits | sign).masked_fill(zero, 0).view(torch.float32)


def significand_and_power(factor: float) -> tuple[float, int]:
    """factor = significand * 2^power, 1 <= |significand| < 2."""
    significand, power = math.frexp(factor)
    return 2 * significand, power - 1


def scaled(x: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """x of any float type times a float32 number: `times`, then rounded to a type, every NaN the quiet one."""
    out = x.new_empty(x.shape, dtype=dtype)
    source, target = x.reshape(-1), out.view(-1)
    step = _BLOCK if x.device.type == "cpu" else _BLOCK_GPU
    for start in range(0, len(source), step):
        part = slice(start, start + step)
        target[part] = narrowed(times(source[part].float(), factor), dtype)
    return out


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float32 from its bits, for -126 <= exponent <= 127."""
    return ((exponent + 127) << 23).view(torch.float32)


def power_of_two_float64(exponent: Tensor) -> Tensor:
    """2^exponent in float64 from its bits, for -1022 <= exponent <= 1023."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)
