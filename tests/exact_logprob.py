"""Section 7 of the contract in exact arithmetic, one row of logits at a time; see `exact_reference`."""

from fractions import Fraction
from typing import NamedTuple

from exact_reference import INF, NAN, NEG_INF, Value, Vector, decode, encode, power_of_two, round_float32, taken

LOG2_E = 1549082005
LN_2 = 1488522236
COEFFICIENTS = (536870912, 372130563, 128970545, 29799171, 5161244, 720984, 76786, 11619)
LARGEST_VOCAB = 2**18


class Exponentials(NamedTuple):
    """Steps 1 to 3: the differences d_v, the integers E_v and their sum S."""

    differences: list[Value]
    terms: list[int]
    total: int


def difference(largest: Fraction, x: Value) -> Value:
    """Step 1: d_v = RN_float32(M - x_v), below 2^-126 it is 0."""
    return INF if isinstance(x, str) else round_float32(largest - x)


def exponential(d: Value) -> int:
    """Step 2: E_v from d_v, in integers."""
    if isinstance(d, str) or d >= 32:
        return 0
    scaled = round(d * 2**24)  # D_v; round() takes ties to even
    y = (scaled * LOG2_E) >> 30
    s = y >> 24
    z = 2**24 - y % 2**24
    p = COEFFICIENTS[7]
    for i in (6, 5, 4, 3, 2, 1, 0):
        p = COEFFICIENTS[i] + ((p * z) >> 24)
    return (p << 14) >> s


def exponentials(row: Vector) -> Exponentials | None:
    """Steps 1 to 3 for one row; None where the log-probability is NaN: any NaN or +inf, or only -inf."""
    if not 1 <= len(row.bits) <= LARGEST_VOCAB:
        raise ValueError(len(row.bits))
    values = [taken(bits, row.dtype) for bits in row.bits]
    finite = [value for value in values if isinstance(value, Fraction)]
    if NAN in values or INF in values or not finite:
        return None
    largest = max(finite)
    differences = [difference(largest, value) for value in values]
    terms = [exponential(d) for d in differences]
    return Exponentials(differences, terms, sum(terms))


def log_of_sum(total: int) -> int:
    """Step 4: l, which is ln(S / 2^44) in 26 bits."""
    b = total.bit_length() - 1
    m = total >> (b - 30)
    f = 0
    for _ in range(26):
        m = (m * m) >> 30
        f <<= 1
        if m >= 2**31:
            m >>= 1
            f |= 1
    return ((((b - 44) << 26) | f) * LN_2) >> 31


def logprob_from_sum(d: Value, total: int) -> Value:
    """Step 5: 0 - RN_float32(d_t + RN_float32(l) * 2^-26)."""
    if isinstance(d, str):
        return NEG_INF
    log = round_float32(Fraction(log_of_sum(total)))
    assert isinstance(log, Fraction)
    return negated(round_float32(d + log * power_of_two(-26)))


def negated(value: Value) -> Value:
    """0 - value; zero stays +0."""
    if isinstance(value, str):
        return {INF: NEG_INF, NEG_INF: INF}[value]
    return -value


def selected_logprob(row: Vector, target: int) -> int:
    """The float32 pattern of the log-probability of one target."""
    if not 0 <= target < len(row.bits):
        raise IndexError(target)
    found = exponentials(row)
    if found is None:
        return encode(NAN, "float32")
    return encode(logprob_from_sum(found.differences[target], found.total), "float32")


def selected_logprob_grad(row: Vector, target: int, grad_bits: int) -> list[int]:
    """The patterns, in the dtype of the logits, of one row of their gradient for the upstream float32 g."""
    if not 0 <= target < len(row.bits):
        raise IndexError(target)
    found = exponentials(row)
    g = decode(grad_bits, "float32")
    if found is None or isinstance(g, str):
        return [encode(NAN, row.dtype)] * len(row.bits)
    b = found.total.bit_length() - 1
    reciprocal = 2**61 // (found.total >> (b - 30))  # R
    r = finite_float32(Fraction(reciprocal)) * power_of_two(-(b - 44) - 31)
    result = []
    for v, term in enumerate(found.terms):
        part = found.total - term if v == target else term
        probability = finite_float32(finite_float32(Fraction(part)) * power_of_two(-44) * r)
        product = round_float32(g * probability)
        result.append(encode(product if v == target else negated(product), row.dtype))
    return result


def finite_float32(exact: Fraction) -> Fraction:
    """RN_float32 of a value that cannot overflow."""
    rounded = round_float32(exact)
    assert isinstance(rounded, Fraction)
    return rounded
