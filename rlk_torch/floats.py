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


def product(a: Tensor, b: Tensor) -> Tensor:
    """Float32 a * b of finite numbers, rounded once as if the exponent had no lower limit; of others, the processor's.

    A magnitude below 2^-126 becomes +0, one of 2^128 and more an infinity. The processor's product is that wherever it
    lies above 2^-126, whatever is done with subnormals; the rest is made of integers.
    """
    out = a * b
    size = magnitude(out)
    small = size <= SMALLEST_NORMAL
    rest = small & (magnitude(a) > 0) & (magnitude(b) > 0)
    out.masked_fill_(small, 0.0)
    if bool(rest.any()):
        out[rest] = _product_in_range(a.expand_as(out)[rest], b.expand_as(out)[rest])
    return out


def _product_in_range(a: Tensor, b: Tensor) -> Tensor:
    """The same of numbers other than 0 whose products lie below 2^128: significands, from 1 to 2, by themselves."""
    (one, power), (other, more) = _parts_of(a), _parts_of(b)
    bits = (one * other).view(torch.int32)
    exponent = (bits >> 23) + power + more
    sign = (a.view(torch.int32) ^ b.view(torch.int32)) & -(2**31)
    return ((exponent << 23) | (bits & 0x7FFFFF) | sign).masked_fill(exponent < 1, 0).view(torch.float32)


def _parts_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """|x| = significand * 2^power, 1 <= significand < 2."""
    size = magnitude(x)
    subnormal = size < SMALLEST_NORMAL  # a multiple of 2^-149
    normal = torch.where(subnormal, size.float().view(torch.int32), size)
    significand = ((normal & 0x7FFFFF) | 0x3F800000).view(torch.float32)
    return significand, (normal >> 23) - 127 - 149 * subnormal.int()


def times(x: Tensor, factor: float) -> Tensor:
    """Float32 x * factor, a float32 number: `product`."""
    return product(x, x.new_full((), factor))


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
