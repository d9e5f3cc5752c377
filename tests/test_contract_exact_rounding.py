"""Guards that a logit leaves the exact integer D in one rounding, wherever D's bits fall and whatever D's size.

Rows are built so that D is a chosen integer T and both exponents are P: then the logit is RN_float32(T) (times the
powers of two by which the rows are scaled), and T is put on, just above and just below ties of 24 bits.
"""

from fractions import Fraction

import exact_reference as exact
import numpy as np
import pytest
from exact_inputs import assert_bits, examples
from hypothesis import given
from hypothesis import strategies as st

from crosscheck import contract

DIGITS = {4: 45, 3: 28, 2: 14}  # digits -> the largest number of bits below the 24 that are kept


def dot_operands(targets, digits, cancelling=0):
    """Integer rows (hidden row, weight rows) with exponent P = 7 digits - 1 and D = each of the targets.

    A large target is mostly products cap * cap; what remains is below 2^(2P) and is split in three pieces. Pairs
    cap * cap, -cap * cap that cancel are put in front on request.
    """
    window = 7 * digits - 1
    cap = 2**window - 2 ** max(window - 24, 0)
    fillers = max(abs(target) // cap**2 for target in targets)
    hidden = [0, 1, 2 ** (window - 7)] + [2 ** (window - 1)] * 4 + [cap] * (2 * cancelling + fillers)
    weight = []
    for target in targets:
        sign = -1 if target < 0 else 1
        full, rest = divmod(abs(target), cap**2)
        low, middle = rest % 2 ** (window - 7), (rest >> (window - 7)) % 2 ** (window - 7)
        top = rest >> (2 * window - 14)
        pieces = [low, middle] + [((top + i) // 4) << (window - 13) for i in range(4)] + [0] * (2 * cancelling)
        row = [2 ** (window - 1)] + [sign * piece for piece in pieces]
        row += [sign * cap] * full + [0] * (fillers - full)
        row[7 : 7 + 2 * cancelling] = [cap] * cancelling + [-cap] * cancelling
        weight.append(row)
    return hidden, weight


def float32(integers, shift=0):
    """float32 array of integers * 2^shift; each is exact."""
    return np.ldexp(np.array(integers, np.float64), shift).astype(np.float32)


def near_ties(kept, below):
    """Integers around kept * 2^below + half a unit of the 24 kept bits, with remainders down to one bit."""
    half = (1 << below) >> 1
    remainders = {0, 1, -1} | {sign << j for sign in (1, -1) for j in (below // 2, below - 2) if 0 <= j < below - 1}
    return [sign * ((kept << below) + half + r) for r in sorted(remainders) for sign in (1, -1)]


def kept_bits(digits, below):
    """24-bit integers, even and odd, that stay small where D is near the largest a short row can have."""
    small = [2**23, 2**23 + 1]
    return small if below > DIGITS[digits] - 4 else [*small, 2**24 - 1, 0xA5A5A4, 0xA5A5A5]


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_the_construction_has_the_chosen_dot_product(digits):
    targets = near_ties(2**23 + 1, DIGITS[digits] - 8)
    hidden, weight = dot_operands(targets, digits, cancelling=2)
    window = 7 * digits - 1
    aligned = [
        exact.align(exact.Vector("float32", float32(row).view(np.uint32).tolist()), digits) for row in (hidden, *weight)
    ]
    assert {row.exponent for row in aligned} == {window}
    assert [sum(a * b for a, b in zip(aligned[0].q, row.q, strict=True)) for row in aligned[1:]] == targets


@pytest.mark.parametrize(("digits", "below"), [(digits, k) for digits, top in DIGITS.items() for k in range(top + 1)])
def test_ties_at_every_position_are_rounded_once(digits, below):
    for kept in kept_bits(digits, below):
        targets = near_ties(kept, below)
        hidden, weight = dot_operands(targets, digits)
        actual = contract.lm_head(float32([hidden]), float32(weight), digits=digits)
        assert_bits(actual, "float32", (1, len(targets)), [exact.encode(Fraction(t), "float32") for t in targets])


@pytest.mark.parametrize(("digits", "below"), [(digits, k) for digits, top in DIGITS.items() for k in range(top - 5)])
def test_ties_left_after_cancellation_are_rounded_once(digits, below):
    targets = near_ties(0xA5A5A5, below)
    hidden, weight = dot_operands(targets, digits, cancelling=700)
    actual = contract.lm_head(float32([hidden]), float32(weight), digits=digits)
    assert_bits(actual, "float32", (1, len(targets)), [exact.encode(Fraction(t), "float32") for t in targets])


@examples(300)
@given(st.sampled_from([2, 3, 4]), st.data())
def test_arbitrary_dot_products_are_rounded_once(digits, data):
    below = data.draw(st.integers(0, DIGITS[digits] - 6))
    targets = data.draw(st.lists(st.integers(-(2 ** (24 + below)), 2 ** (24 + below)), min_size=1, max_size=6))
    hidden, weight = dot_operands(targets, digits, cancelling=data.draw(st.integers(0, 3)))
    actual = contract.lm_head(float32([hidden]), float32(weight), digits=digits)
    assert_bits(actual, "float32", (1, len(targets)), [exact.encode(Fraction(t), "float32") for t in targets])


@pytest.mark.parametrize("below", [1, 7, 22])
@pytest.mark.parametrize("digits", [3, 4])
@pytest.mark.parametrize(
    ("edge", "tie_up", "short"),
    [(-126, 0x00800000, 0x00000000), (128, 0x7F800000, 0x7F7FFFFF)],
    ids=["flush", "overflow"],
)
def test_limits_are_judged_after_a_rounding_without_limits(digits, below, edge, tie_up, short):
    """2^24 - 1/2 rounds up to 2^24, the limit; one bit below, it rounds to 2^24 - 1."""
    tie = (2**24 << below) - (1 << below >> 1)
    hidden, weight = dot_operands([tie, -tie, tie - 1, tie - (1 << below >> 1)], digits)
    scale = edge - 24 - below
    hidden_scale = scale // 2
    actual = contract.lm_head(float32([hidden], hidden_scale), float32(weight, scale - hidden_scale), digits=digits)
    assert_bits(actual, "float32", (1, 4), [tie_up, 0x80000000 | tie_up, short, short])
