"""A product of float32 numbers is rounded once, as if exponents had no lower limit, whatever the processor flushes."""

from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest
import torch
from exact_reference import INF, NAN, NEG_INF, decode, encode, round_float32
from frameworks import JAX, TORCH, both

import rlk_jax.floats
import rlk_torch.floats
from crosscheck.bits import as_numpy, assert_bits_equal

# Zeros, subnormals, the least normal numbers, ones, ties, the largest and what is not finite.
CORNERS = (
    0, 1, 3, 0x400000, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFF, 0x1000000, 0x1FC00000, 0x20000001, 0x3F7FFFFF,
    0x3F800000, 0x3F800001, 0x3FC00000, 0x5F7FFFFF, 0x5F800000, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000,
)  # fmt: skip


def pairs() -> Any:
    """Bits of all pairs of corners, of both signs, and of numbers whose products lie around 2^-126 and 2^128."""
    rng = np.random.default_rng(0)
    corners = np.array([*CORNERS, *(x | 2**31 for x in CORNERS)], np.uint32)
    a, b = (x.reshape(-1) for x in np.meshgrid(corners, corners))
    exponents = rng.integers(-148, 127, 3000)
    ones = rng.integers(0, 2**23, (2, 3000), np.uint32) | np.uint32(127 << 23)
    near = np.where(rng.integers(0, 2, 3000) == 1, -126, 127) + rng.integers(-2, 2, 3000) - exponents
    sizes = np.stack([exponents, np.clip(near, -148, 127)])
    more = np.ldexp(ones.view(np.float32), sizes).astype(np.float32).view(np.uint32)
    return np.concatenate([a, more[0]]), np.concatenate([b, more[1]])


def exact(a: int, b: int) -> int:
    """The bits of the product, by exact rational arithmetic; of 0 times infinity, which is not asked for, -1."""
    values = [decode(bits & 0x7FFFFFFF, "float32") for bits in (a, b)]
    if NAN in values:
        return encode(NAN, "float32")
    negative = bool((a ^ b) >> 31)
    if INF in values:
        return -1 if 0 in values else encode(NEG_INF if negative else INF, "float32")
    rounded = round_float32(Fraction(values[0]) * Fraction(values[1]) * (-1 if negative else 1))
    return encode(rounded, "float32")


@pytest.fixture(scope="module")
def problem() -> tuple[Any, Any, Any]:
    a, b = pairs()
    wanted = np.array([exact(int(x), int(y)) for x, y in zip(a, b, strict=True)])
    kept = wanted >= 0
    return a[kept].view(np.float32), b[kept].view(np.float32), wanted[kept].astype(np.uint32).view(np.float32)


def without_payloads(x: Any) -> Any:
    return np.where(np.isnan(x), np.float32(np.nan), x)


@both
def test_a_product_is_rounded_once(framework, problem):
    a, b, wanted = problem
    product = jax.jit(rlk_jax.floats.product) if framework is JAX else rlk_torch.floats.product
    found = as_numpy(product(framework.array(a), framework.array(b)))
    assert_bits_equal(without_payloads(found), without_payloads(wanted))


def test_a_processor_that_flushes_subnormals_changes_nothing_in_torch(problem):
    """Of finite numbers: the others are left to the processor, for which a subnormal times infinity is then NaN."""
    finite = np.isfinite(problem[0]) & np.isfinite(problem[1])
    a, b, wanted = (x[finite] for x in problem)
    arrays = TORCH.array(a), TORCH.array(b)
    assert torch.set_flush_denormal(True), "expected a processor that can flush subnormals"
    try:
        found = rlk_torch.floats.product(*arrays)
        taken_for_zero = bool((arrays[0][arrays[0] != 0].abs() < 2.0**-126).any())
    finally:
        torch.set_flush_denormal(False)
    assert not taken_for_zero  # the flag was on
    assert_bits_equal(found, wanted)


@both
def test_operands_are_broadcast(framework):
    a, b = np.float32([[3.0], [2.0**-100]]), np.float32([1.5, 2.0**-30, 0.0])
    product = rlk_jax.floats.product if framework is JAX else rlk_torch.floats.product
    shape = (2, 3)
    found = product(*(framework.array(np.ascontiguousarray(np.broadcast_to(x, shape))) for x in (a, b)))
    other = product(framework.array(a), framework.array(b[None]))
    assert_bits_equal(other, found)
