"""Exact dot products of aligned rows, exact sums of integers, and their one rounding.

Sections 2 and 3 of docs/contract.md: integers, so that no order of summation exists, and no
64-bit type anywhere. The twin is rlk_torch/products.py.
"""

import jax.numpy as jnp
from jax import Array, lax

from rlk_jax.alignment import Aligned
from rlk_jax.floats import power_of_two_times

MANY_ROWS = 128  # rows from which fewer products pay for the sums of digits
_REDUCTION = 2**16  # reductions longer than this go in chunks: int32 groups hold while digits * L <= 2^18


def rounded_products(hidden: Aligned, weight: Aligned) -> Array:
    """r of section 3 for every pair of rows: float32 [Rw, Rh], the weight's rows first."""
    return rounded(groups_of(hidden.planes, weight.planes, hidden.planes.shape[2]), hidden, weight)


def rounded(groups: list[Array], hidden: Aligned, weight: Aligned) -> Array:
    """r from D in carried groups; exponents and flags are those of the whole rows."""
    window = 7 * hidden.digits - 1
    exponent = weight.exponent[:, None] + hidden.exponent[None, :] - 2 * window
    r = round_once(groups, exponent)
    return jnp.where(weight.nonfinite[:, None] | hidden.nonfinite[None, :], jnp.float32(jnp.nan), r)


def groups_of(hidden: Array, weight: Array, length: int) -> list[Array]:
    """D = sum of groups[i] * 128^i, int32 [Rw, Rh] each, carried: all but the last in [0, 127].

    The planes may be a part of rows of this length: the last group then has room for the sum over the parts.
    """
    total: list[Array] = []
    for start in range(0, hidden.shape[2], _REDUCTION):
        part = slice(start, min(start + _REDUCTION, hidden.shape[2]))
        sums = group_sums(hidden[:, :, part], weight[:, :, part])
        if length > _REDUCTION:  # two more digits hold the sum of 2^14 chunks
            sums += [jnp.zeros_like(sums[0])] * 2
        sums = carried(sums)
        total = carried([a + b for a, b in zip(total, sums, strict=True)]) if total else sums
    return total


def group_sums(hidden: Array, weight: Array, axis: int = 1) -> list[Array]:
    """Sums of the products of digits i and j with one i + j, by the way that suits the number of rows.

    Along the last axis of the hidden planes and an axis of each weight plane: 1 gives [Rw, Rh] as above, 0 (a
    weight whose columns are aligned) gives [Rh, columns].
    """
    return (digit_sums if hidden.shape[1] >= MANY_ROWS else stacked_digits)(hidden, weight, axis)


def stacked_digits(hidden: Array, weight: Array, axis: int) -> list[Array]:
    """Few rows: the hidden planes are stacked, so each weight plane is read once."""
    n, rows, width = hidden.shape
    # GPU libraries tune each shape and like multiples of 16: a few zero rows cost nothing.
    stacked = jnp.pad(hidden.reshape(n * rows, width), ((0, -n * rows % 16), (0, 0)))
    sums: list[Array] = [jnp.int32(0)] * (2 * n - 1)
    for j in range(n):
        product = _product(weight[j], stacked, axis)
        for i in range(n):
            sums[i + j] = sums[i + j] + lax.slice_in_dim(product, i * rows, (i + 1) * rows, axis=axis)
    return sums


def digit_sums(hidden: Array, weight: Array, axis: int) -> list[Array]:
    """Many rows: n (n + 1) / 2 products instead of n^2, by Karatsuba's trick; a sum of two digits fits int8.

    a_i b_j + a_j b_i = (a_i + a_j)(b_i + b_j) - a_i b_i - a_j b_j.
    """
    n = len(hidden)
    squares = [_product(weight[i], hidden[i], axis) for i in range(n)]
    sums: list[Array] = [jnp.int32(0)] * (2 * n - 1)
    for i in range(n):
        sums[2 * i] = sums[2 * i] + squares[i]
        for j in range(i):
            cross = _product(weight[i] + weight[j], hidden[i] + hidden[j], axis)
            sums[i + j] = sums[i + j] + (cross - squares[i] - squares[j])
    return sums


def _product(weight: Array, hidden: Array, axis: int) -> Array:
    a, b, first = (weight, hidden, axis) if axis else (hidden, weight, 1)
    return lax.dot_general(a, b, (((first,), (axis,)), ((), ())), preferred_element_type=jnp.int32)


def limb_bits(members: int) -> int:
    """Bits of a limb such that int32 sums of this many limbs, and carries on top, cannot overflow."""
    free = 30 - max(0, members - 1).bit_length()
    return 14 if free >= 14 else min(7, free)


def limbs(q: Array, bits: int) -> list[Array]:
    """q = limbs[0] + 2^bits limbs[1] + ... for the q of 4 digits; all but the last, what is left, in [0, 2^bits)."""
    count = -(-28 // bits)
    return [(q >> bits * i) & (2**bits - 1) for i in range(count - 1)] + [q >> bits * (count - 1)]


def rounded_sum(sums: list[Array], bits: int, exponent: Array) -> Array:
    """RN_float32(S * 2^exponent) as in section 3, from sums of limbs."""
    if bits == 14:  # two digits a limb
        zero = jnp.zeros_like(sums[0])
        sums, bits = [sums[0], zero, sums[1]], 7
    return round_once(carried(sums, bits), exponent, bits)


def carried(groups: list[Array], bits: int = 7) -> list[Array]:
    """The same number with every group but the last in [0, 2^bits)."""
    out, carry = [], jnp.int32(0)
    for group in groups[:-1]:
        group = group + carry
        out.append(group & (2**bits - 1))
        carry = group >> bits
    return [*out, groups[-1] + carry]


def round_once(groups: list[Array], exponent: Array, bits: int = 7) -> Array:
    """RN_float32(D * 2^exponent), flushed to +0 below 2^-126, from carried groups of up to 7 bits.

    Digits are taken from the top until 25 bits and more are held; those left only set a sticky last bit.
    The word is doubled before that bit is set, where there is room, so that it lies under every tie of 24
    bits: its conversion to float32 is the one rounding. Negative numbers are two's complements throughout.
    """
    word, sticky, left = groups[-1], jnp.int32(0), jnp.int32(0)
    for digit in reversed(groups[:-1]):
        short = (word >= -(2**24)) & (word < 2**24)
        sticky = sticky | jnp.where(short, 0, (digit != 0).astype(jnp.int32))
        left = left + jnp.where(short, 0, bits)
        word = jnp.where(short, (word << bits) + digit, word)
    room = (word >= -(2**30)) & (word < 2**30)
    word = jnp.where(room, word << 1, word) | sticky
    return power_of_two_times(word.astype(jnp.float32), exponent + left - room.astype(jnp.int32))
