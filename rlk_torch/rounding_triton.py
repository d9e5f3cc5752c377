"""Sections 3 and 4 of the contract inside Triton kernels: the one rounding, the bias, the output rounding.

Floats are handled as their bits (int32), so that no compiler flag changes them.
"""

import triton
import triton.language as tl


@triton.jit
def words_to_float32(low, high, TWO_WORDS: tl.constexpr):
    """RN to 24 bits of high * 2^21 + low (int64): float32 bits and the power of two still to apply.

    int64 -> float32 is one correct rounding. A longer number is taken as 2 * high with a sticky last bit,
    which lies under every tie of 24 bits.
    """
    if TWO_WORDS:
        high += low >> 21
        low = low & 0x1FFFFF
        short = (high < (1 << 38)) & (high > -(1 << 38))
        low = tl.where(short, (high << 21) | low, (high << 1) | (low != 0).to(tl.int64))
        return low.to(tl.float32).to(tl.int32, bitcast=True), tl.where(short, 0, 20)
    else:
        low += high << 21
        return low.to(tl.float32).to(tl.int32, bitcast=True), tl.zeros(low.shape, tl.int32)


@triton.jit
def scaled(bits, exponent):
    """Float32 bits times 2^exponent: flushed to +0 below 2^-126, infinity from 2^128."""
    biased = ((bits >> 23) & 0xFF) + exponent
    sign = bits & -2147483648
    out = tl.where(biased > 254, sign | 0x7F800000, sign | (biased << 23) | (bits & 0x7FFFFF))
    return tl.where(((bits & 0x7FFFFFFF) == 0) | (biased < 1), 0, out)


@triton.jit
def times(bits, significand, power):
    """Float32 bits times significand * 2^power, 1 <= |significand| < 2: `times` in floats.py."""
    size = bits & 0x7FFFFFFF
    subnormal = size < 0x800000
    normal = tl.where(subnormal, size.to(tl.float32).to(tl.int32, bitcast=True), size)
    product = ((normal & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True) * significand
    product = product.to(tl.int32, bitcast=True) ^ (bits & -2147483648)
    out = scaled(product, (normal >> 23) - tl.where(subnormal, 149, 0) - 127 + power)
    nonfinite = (bits.to(tl.float32, bitcast=True) * significand).to(tl.int32, bitcast=True)
    return tl.where(size >= 0x7F800000, nonfinite, tl.where(size == 0, 0, out))


@triton.jit
def flushed(bits):
    return tl.where((bits & 0x7FFFFFFF) < 0x800000, 0, bits)


@triton.jit
def output_bits(bits, DTYPE: tl.constexpr):
    """Float32 bits rounded once to the output type, every NaN the quiet one."""
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if DTYPE == "bfloat16":
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(nan, 0x7FC0, rounded).to(tl.int16)
    elif DTYPE == "float16":
        rounded = bits.to(tl.float32, bitcast=True).to(tl.float16).to(tl.int16, bitcast=True)
        return tl.where(nan, 0x7E00, rounded.to(tl.int32)).to(tl.int16)
    else:
        return tl.where(nan, 0x7FC00000, bits)


@triton.jit
def finish(
    bits, exponent, hidden_exponent, hidden_flag, weight_exponent, weight_flag, bias,
    DIGITS: tl.constexpr, HAS_BIAS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Output bits of a tile from the rounded D (bits, exponent); vectors come shaped to broadcast over it."""
    r = scaled(bits, exponent + hidden_exponent + weight_exponent - 2 * (7 * DIGITS - 1))
    if HAS_BIAS:
        total = r.to(tl.float32, bitcast=True) + flushed(bias).to(tl.float32, bitcast=True)
        r = flushed(total.to(tl.int32, bitcast=True))
    return output_bits(tl.where((hidden_flag != 0) | (weight_flag != 0), 0x7FC00000, r), DTYPE)
