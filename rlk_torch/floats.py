"""Float types through their bits: exact widening, the output rounding, powers of two, the one NaN.

The twin is rlk_jax/floats.py.
"""

import torch
from torch import Tensor

SMALLEST_NORMAL = 0x00800000
INFINITY = 0x7F800000
QUIET_NAN = {torch.bfloat16: 0x7FC0, torch.float16: 0x7E00, torch.float32: 0x7FC00000}
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


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float32 from its bits, for -126 <= exponent <= 127."""
    return ((exponent + 127) << 23).view(torch.float32)


def power_of_two_float64(exponent: Tensor) -> Tensor:
    """2^exponent in float64 from its bits, for -1022 <= exponent <= 1023."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)
