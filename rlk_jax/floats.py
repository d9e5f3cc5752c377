"""Float types through their bits: no conversion here is left to a compiler's choice.

XLA may flush subnormals, fuse a multiply with an add, or cancel casts; integer operations on bits it keeps.
The twin is rlk_torch/floats.py.
"""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

SMALLEST_NORMAL = 0x00800000
INFINITY = 0x7F800000
MINUS_INFINITY = {"bfloat16": 0xFF80, "float16": 0xFC00, "float32": 0xFF800000}
QUIET_NAN = {"bfloat16": 0x7FC0, "float16": 0x7E00, "float32": 0x7FC00000}


def bits_of(x: Array) -> Array:
    """The unsigned-integer view of a float array."""
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))


def part(x: Array, starts: tuple[Array | int, ...], sizes: tuple[int, ...]) -> Array:
    """A block of a float array, cut from its bits.

    XLA on CPUs widens bfloat16 to cut it, and moves what it does to a whole array out of loops; the barrier keeps
    it from making either copy.
    """
    x, at = lax.optimization_barrier((x, [jnp.asarray(start, jnp.int32) for start in starts]))
    return lax.bitcast_convert_type(lax.dynamic_slice(bits_of(x), at, sizes), x.dtype)


def magnitude(x: Array) -> Array:
    """The bits of |x| for float32, int32: they order like the values; from INFINITY on not finite."""
    return lax.bitcast_convert_type(x, jnp.int32) & 0x7FFFFFFF


def widened(x: Array) -> Array:
    """Any float type to float32, exactly, subnormals too."""
    if x.dtype == jnp.float32:
        return x
    bits = bits_of(x).astype(jnp.uint32)
    if x.dtype == jnp.bfloat16:
        return lax.bitcast_convert_type(bits << 16, jnp.float32)
    exponent, fraction = (bits >> 10) & 31, bits & 1023
    normal = jnp.where(exponent == 31, jnp.uint32(INFINITY), (exponent + 112) << 23) | (fraction << 13)
    small = bits_of(fraction.astype(jnp.float32) * jnp.float32(2.0**-24))
    return lax.bitcast_convert_type(jnp.where(exponent == 0, small, normal) | ((bits >> 15) << 31), jnp.float32)


def flushed(x: Array) -> Array:
    """Float32 with magnitudes below 2^-126 replaced by +0."""
    return jnp.where(magnitude(x) < SMALLEST_NORMAL, jnp.float32(0), x)


def narrowed(x: Array, dtype: DTypeLike) -> Array:
    """Float32 rounded once to the output type, ties to even; every NaN the positive quiet one."""
    dtype = jnp.dtype(dtype)
    if dtype == jnp.float32:
        out = bits_of(x)
    elif dtype == jnp.bfloat16:
        bits = bits_of(x)
        out = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(jnp.uint16)
    else:
        out = _float16_bits(bits_of(x))
    nan = jnp.array(QUIET_NAN[dtype.name], out.dtype)
    return lax.bitcast_convert_type(jnp.where(magnitude(x) > INFINITY, nan, out), dtype)


def _float16_bits(bits: Array) -> Array:
    """Of a number from 2^-14 on, the significand is rounded where it stands; a lesser one at the last bit of 1/2."""
    size = bits & 0x7FFFFFFF
    normal = jnp.minimum((size - (112 << 23) + 0xFFF + ((size >> 13) & 1)) >> 13, jnp.uint32(0x7C00))
    half = jnp.float32(0.5)
    small = bits_of(lax.bitcast_convert_type(size, jnp.float32) + half) - bits_of(half)
    return (jnp.where(size < 113 << 23, small, normal) | ((bits >> 31) << 15)).astype(jnp.uint16)


def product(a: Array, b: Array) -> Array:
    """Float32 a * b, rounded once as if the exponent had no lower limit.

    A magnitude below 2^-126 becomes +0, one of 2^128 and more an infinity. Significands, from 1 to 2, are multiplied by
    themselves: XLA may flush what is subnormal.
    """
    (one, power), (other, more) = _parts_of(a), _parts_of(b)
    out = one * other
    return jnp.where(magnitude(out) >= INFINITY, out, power_of_two_times(out, power + more))


def _parts_of(x: Array) -> tuple[Array, Array]:
    """x = significand * 2^power, 1 <= |significand| < 2; 0, infinities and NaN are their own."""
    size = magnitude(x)
    subnormal = size < SMALLEST_NORMAL  # a multiple of 2^-149
    normal = jnp.where(subnormal, lax.bitcast_convert_type(size.astype(jnp.float32), jnp.int32), size)
    sign = lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-(2**31))
    significand = lax.bitcast_convert_type((normal & 0x7FFFFF) | 0x3F800000 | sign, jnp.float32)
    power = (normal >> 23) - 127 - 149 * subnormal.astype(jnp.int32)
    return jnp.where((size == 0) | (size >= INFINITY), x, significand), power


def times(x: Array, factor: float) -> Array:
    """Float32 x * factor, a float32 number: `product`."""
    return product(x, jnp.float32(factor))


def scaled(x: Array, factor: float, dtype: DTypeLike) -> Array:
    """x of any float type times a float32 number: `times`, then rounded to a type, every NaN the quiet one."""
    return narrowed(times(widened(x), factor), dtype)


def power_of_two_times(x: Array, exponent: Array) -> Array:
    """x * 2^exponent for float32 x from an integer: flushed to +0 below 2^-126, infinity from 2^128."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    biased = ((bits >> 23) & 0xFF) + exponent
    sign = bits & jnp.int32(-(2**31))
    out = jnp.where(biased > 254, sign | INFINITY, sign | (biased << 23) | (bits & 0x7FFFFF))
    out = jnp.where((x == 0) | (biased < 1), 0, out)
    return lax.bitcast_convert_type(out, jnp.float32)
