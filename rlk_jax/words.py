"""Integers of 64 bits as two of 32, for JAX without its 64-bit mode: (high, low), both uint32."""

import jax.numpy as jnp
from jax import Array, lax

from rlk_jax.devices import repeated
from rlk_jax.floats import power_of_two_times

Words = tuple[Array, Array]


def product(a: Array, b: Array) -> Words:
    """The product of two uint32, by halves of 16 bits."""
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    lowest, first, second = a_low * b_low, a_high * b_low, a_low * b_high
    middle = (lowest >> 16) + (first & 0xFFFF) + (second & 0xFFFF)
    return a_high * b_high + (first >> 16) + (second >> 16) + (middle >> 16), (middle << 16) | (lowest & 0xFFFF)


def shifted_product(a: Array, b: Array, shift: int) -> Array:
    """(a b) >> shift of two uint32, for 0 < shift < 32 where the result has 32 bits."""
    high, low = product(a, b)
    return (high << (32 - shift)) | (low >> shift)


def difference(a: Words, b: Words) -> Words:
    """a - b, modulo 2^64."""
    return a[0] - b[0] - (a[1] < b[1]).astype(jnp.uint32), a[1] - b[1]


def shifted_up(a: Words, shift: Array) -> Words:
    """a << shift, for shifts from 0 to 63."""
    some, far = shift & 31, shift >= 32
    over = jnp.where(some == 0, jnp.uint32(0), a[1] >> ((32 - some) & 31))
    high, low = (a[0] << some) | over, a[1] << some
    return jnp.where(far, low, high), jnp.where(far, jnp.uint32(0), low)


def divided(a: Words, b: Array) -> tuple[Words, Array]:
    """The quotient of a number and a uint32 below 2^31, and whether something is left."""
    high = a[0] // b

    def digit(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        left, low = state
        left = (left << 1) | ((a[1] >> (31 - i).astype(jnp.uint32)) & 1)
        bit = (left >= b).astype(jnp.uint32)
        return left - b * bit, (low << 1) | bit

    left, low = repeated(32, digit, (a[0] - high * b, jnp.zeros_like(a[1])))
    return (high, low), left != 0


def length(words: Words) -> Array:
    """The bits of a number, int32; 0 for 0."""
    high, low = words
    return jnp.where(high > 0, 64 - lax.clz(high), 32 - lax.clz(low)).astype(jnp.int32)


def total(words: Words, axis: int) -> Words:
    """The sum along an axis, modulo 2^64, in one pass."""

    def add(a: Words, b: Words) -> Words:
        low = a[1] + b[1]
        return a[0] + b[0] + (low < a[1]).astype(jnp.uint32), low

    zero = jnp.uint32(0)
    high, low = lax.reduce(words, (zero, zero), add, [axis])
    return high, low


def leading(words: Words) -> tuple[Array, Array, Array]:
    """The leading 31 bits of a number below 2^63, how far they were shifted down, and whether a bit was lost."""
    high, low = words
    shift = jnp.maximum(length(words), 31).astype(jnp.uint32) - 31  # at most 32
    some = jnp.clip(shift, 1, 31)
    bits = jnp.where(shift == 32, high, (high << (32 - some)) | (low >> some))
    lost = jnp.where(shift == 32, low, low & ((jnp.uint32(1) << some) - 1))
    whole = shift == 0
    return jnp.where(whole, low, bits), shift.astype(jnp.int32), (lost != 0) & ~whole


def to_float32(words: Words, exponent: Array | int) -> Array:
    """RN_float32 of a number below 2^63, times 2^exponent, which must leave it a normal one."""
    bits, shift, lost = leading(words)
    # 31 bits with a sticky last one lie under every tie of 24 bits.
    rounded = (bits | lost.astype(jnp.uint32)).astype(jnp.int32).astype(jnp.float32)
    return power_of_two_times(rounded, shift + exponent)
