"""Exact dot products of aligned rows, and their one rounding.

Sections 2 and 3 of docs/contract.md: integer matrix products, so that no order of summation exists, and no
64-bit type anywhere. The twin is rlk_torch/products.py.
"""

import jax.numpy as jnp
from jax import Array, lax

from rlk_jax.alignment import Aligned
from rlk_jax.floats import power_of_two_times

_REDUCTION = 2**16  # reductions longer than this go in chunks: int32 groups hold while digits * L <= 2^18


def rounded_products(hidden: Aligned, weight: Aligned) -> Array:
    """r of section 3 for every pair of rows: float32 [Rw, Rh], the weight's rows first."""
    groups = int8_groups(hidden.planes, weight.planes)
    window = 7 * hidden.digits - 1
    exponent = weight.exponent[:, None] + hidden.exponent[None, :] - 2 * window
    r = _round_once(groups, exponent)
    return jnp.where(weight.nonfinite[:, None] | hidden.nonfinite[None, :], jnp.float32(jnp.nan), r)


def int8_groups(hidden: Array, weight: Array) -> list[Array]:
    """D = sum of groups[i] * 128^i, int32 [Rw, Rh] each, carried: all but the last in [0, 127].

    The hidden planes are stacked, so each weight plane is read once.
    """
    n, rows, width = hidden.shape
    total: list[Array] = []
    for start in range(0, width, _REDUCTION):
        stop = min(start + _REDUCTION, width)
        stacked = hidden[:, :, start:stop].reshape(n * rows, stop - start)
        sums: list[Array] = [jnp.int32(0)] * (2 * n - 1)
        for j in range(n):
            product = lax.dot_general(
                weight[j, :, start:stop], stacked, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32
            ).reshape(-1, n, rows)
            for i in range(n):
                sums[i + j] = sums[i + j] + product[:, i]
        if width > _REDUCTION:  # two more digits hold the sum of 2^14 chunks
            sums += [jnp.zeros_like(sums[0])] * 2
        sums = _carried(sums)
        total = _carried([a + b for a, b in zip(total, sums, strict=True)]) if total else sums
    return total


def _carried(groups: list[Array]) -> list[Array]:
    out, carry = [], jnp.int32(0)
    for group in groups[:-1]:
        group = group + carry
        out.append(group & 127)
        carry = group >> 7
    return [*out, groups[-1] + carry]


def _round_once(groups: list[Array], exponent: Array) -> Array:
    """RN_float32(D * 2^exponent), flushed to +0 below 2^-126, from carried groups.

    Digits are taken from the top until 25 bits and more are held; those left only set a sticky last bit.
    The word is doubled before that bit is set, where there is room, so that it lies under every tie of 24
    bits: its conversion to float32 is the one rounding. Negative numbers are two's complements throughout.
    """
    word, sticky, left = groups[-1], jnp.int32(0), jnp.int32(0)
    for digit in reversed(groups[:-1]):
        short = (word >= -(2**24)) & (word < 2**24)
        sticky = sticky | jnp.where(short, 0, (digit != 0).astype(jnp.int32))
        left = left + jnp.where(short, 0, 7)
        word = jnp.where(short, (word << 7) + digit, word)
    room = (word >= -(2**30)) & (word < 2**30)
    word = jnp.where(room, word << 1, word) | sticky
    return power_of_two_times(word.astype(jnp.float32), exponent + left - room.astype(jnp.int32))
