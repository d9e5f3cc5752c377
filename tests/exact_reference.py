"""Sections 1 to 6 of the contract in exact rational arithmetic: the referee of `crosscheck.contract`.

Nothing here is fast, and nothing here rounds except where the contract prescribes a rounding: values are
`fractions.Fraction`, sums are Python integers, inputs and results are integer bit patterns. Each function
follows the sentences of the section that it names, so that it can be checked by reading.

A value is a Fraction or one of the strings "nan", "inf", "-inf". Zero has no sign: by the contract every zero
that reaches an operation counts as +0, and a result of -0 arises only in `encode`.
"""

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

NAN, INF, NEG_INF = "nan", "inf", "-inf"
Value = Fraction | str

FORMATS = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}  # exponent bits, fraction bits
QUIET_NAN = {"float32": 0x7FC00000, "bfloat16": 0x7FC0, "float16": 0x7E00}
SMALLEST = Fraction(1, 2**126)  # what is smaller in magnitude counts as 0
OVERFLOW = Fraction(2**128)
GRADIENT_DIGITS = 4


class Matrix(NamedTuple):
    """Rows of bit patterns of one float type."""

    dtype: str
    rows: Sequence[Sequence[int]]


class Vector(NamedTuple):
    """Bit patterns of one float type."""

    dtype: str
    bits: Sequence[int]


class Aligned(NamedTuple):
    """Section 1: the integers q_k, the exponent e, and whether the vector is non-finite (then q is empty)."""

    q: list[int]
    exponent: int
    nonfinite: bool


@functools.cache
def power_of_two(exponent: int) -> Fraction:
    """2^exponent, exactly, for exponents of either sign."""
    return Fraction(2) ** exponent


def floor_log2(x: Fraction) -> int:
    """The integer b with 2^b <= x < 2^(b+1), for x > 0."""
    estimate = x.numerator.bit_length() - x.denominator.bit_length()
    return estimate if power_of_two(estimate) <= x else estimate - 1


def decode(bits: int, dtype: str) -> Value:
    """The exact value of a bit pattern."""
    exponent_bits, fraction_bits = FORMATS[dtype]
    bias = 2 ** (exponent_bits - 1) - 1
    sign = -1 if bits >> (exponent_bits + fraction_bits) else 1
    exponent = (bits >> fraction_bits) & (2**exponent_bits - 1)
    fraction = bits & (2**fraction_bits - 1)
    if exponent == 2**exponent_bits - 1:
        if fraction:
            return NAN
        return INF if sign > 0 else NEG_INF
    if exponent == 0:
        return sign * fraction * power_of_two(1 - bias - fraction_bits)
    return sign * (2**fraction_bits + fraction) * power_of_two(exponent - bias - fraction_bits)


def encode(value: Value, dtype: str) -> int:
    """The bit pattern of RN_dtype(value) by IEEE: subnormals kept, overflow to infinity, tiny values keep the sign."""
    exponent_bits, fraction_bits = FORMATS[dtype]
    bias = 2 ** (exponent_bits - 1) - 1
    sign_bit = 1 << (exponent_bits + fraction_bits)
    infinity = (2**exponent_bits - 1) << fraction_bits
    if isinstance(value, str):
        return {NAN: QUIET_NAN[dtype], INF: infinity, NEG_INF: sign_bit | infinity}[value]
    if value == 0:
        return 0
    exponent = max(floor_log2(abs(value)), 1 - bias)
    steps = round(abs(value) / power_of_two(exponent - fraction_bits))  # round() takes ties to even
    pattern = ((exponent + bias - 1) << fraction_bits) + steps  # steps carry the hidden bit into the exponent
    return min(pattern, infinity) | (sign_bit if value < 0 else 0)


def taken(bits: int, dtype: str) -> Value:
    """An element as the contract takes it: exactly, but |x| < 2^-126 counts as 0 (section 1, step 1)."""
    value = decode(bits, dtype)
    if isinstance(value, Fraction) and abs(value) < SMALLEST:
        return Fraction(0)
    return value


def align(x: Vector, digits: int) -> Aligned:
    """Section 1: x_k as integers q_k with q_k = RN(x_k * 2^(P-e))."""
    window = 7 * digits - 1
    values = [taken(bits, x.dtype) for bits in x.bits]
    finite = [value for value in values if isinstance(value, Fraction)]
    if len(finite) < len(values):
        return Aligned([], 0, nonfinite=True)
    largest = max((abs(value) for value in finite), default=Fraction(0))
    exponent = floor_log2(largest) + 1 if largest else 0
    scale = power_of_two(window - exponent)
    return Aligned([round(value * scale) for value in finite], exponent, nonfinite=False)


def round_float32(exact: Fraction) -> Value:
    """Section 3: to 24 significant bits as if the exponent had no limits, then the flush and the overflow."""
    if exact == 0:
        return Fraction(0)
    unit = power_of_two(floor_log2(abs(exact)) - 23)
    rounded = round(exact / unit) * unit
    if abs(rounded) < SMALLEST:
        return Fraction(0)
    if abs(rounded) >= OVERFLOW:
        return INF if rounded > 0 else NEG_INF
    return rounded


def dot(a: Aligned, b: Aligned, digits: int) -> Value:
    """Sections 2 and 3: the exact integer D, then its one rounding; NaN if either vector is non-finite."""
    if a.nonfinite or b.nonfinite:
        return NAN
    window = 7 * digits - 1
    exact = sum(qa * qb for qa, qb in zip(a.q, b.q, strict=True))
    return round_float32(exact * power_of_two(a.exponent + b.exponent - 2 * window))


def add_float32(a: Value, b: Value) -> Value:
    """One float32 addition; infinities and NaN follow IEEE, a sum below 2^-126 becomes +0 (section 4)."""
    if NAN in (a, b) or {a, b} == {INF, NEG_INF}:
        return NAN
    if isinstance(a, str) or isinstance(b, str):
        return a if isinstance(a, str) else b
    return round_float32(a + b)


def logits(hidden: Matrix, weight: Matrix, bias: Vector | None, digits: int, out_dtype: str) -> list[list[int]]:
    """Section 4: out(r ⊕ bias_v) for every hidden row and every weight row."""
    weight_rows = [align(Vector(weight.dtype, row), digits) for row in weight.rows]
    result = []
    for hidden_bits in hidden.rows:
        hidden_row = align(Vector(hidden.dtype, hidden_bits), digits)
        row = [dot(hidden_row, weight_row, digits) for weight_row in weight_rows]
        if bias is not None:
            row = [add_float32(r, taken(b, bias.dtype)) for r, b in zip(row, bias.bits, strict=True)]
        result.append([encode(value, out_dtype) for value in row])
    return result


def lm_head(
    hidden: Matrix, weight: Matrix, bias: Vector | None = None, *, digits: int | None = None
) -> list[list[int]]:
    """Section 4, dtype path: digits 3, or 4 when hidden is float32; the output has hidden's dtype."""
    if digits is None:
        digits = 4 if hidden.dtype == "float32" else 3
    return logits(hidden, weight, bias, digits, hidden.dtype)


def lm_head_fp32(hidden: Matrix, weight: Matrix, bias: Vector | None = None, *, digits: int = 4) -> list[list[int]]:
    """Section 4, ground truth: digits 4, the output is float32."""
    return logits(hidden, weight, bias, digits, "float32")


def embedding(token_ids: Sequence[int], weight: Matrix, width: int, *, check_ids: bool = True) -> list[list[int]]:
    """Section 5: the bits of the rows; a bad id raises, or gives a row of quiet NaN where ids are not checked."""
    result = []
    for token_id in token_ids:
        if 0 <= token_id < len(weight.rows):
            result.append(list(weight.rows[token_id]))
        elif check_ids:
            raise IndexError(token_id)
        else:
            result.append([QUIET_NAN[weight.dtype]] * width)
    return result


def embedding_fp32(token_ids: Sequence[int], weight: Matrix, width: int, *, check_ids: bool = True) -> list[list[int]]:
    """Section 5: the gathered rows in float32. A float32 table keeps its bits; from 16 bits a NaN becomes quiet."""
    rows = embedding(token_ids, weight, width, check_ids=check_ids)
    return [[widen(bits, weight.dtype) for bits in row] for row in rows]


def widen(bits: int, dtype: str) -> int:
    """The float32 pattern of a 16-bit pattern, exactly (-0 stays -0)."""
    exponent_bits, fraction_bits = FORMATS[dtype]
    if dtype == "float32":
        return bits
    if bits == 1 << (exponent_bits + fraction_bits):
        return 0x80000000
    return encode(decode(bits, dtype), "float32")


def aligned_sum(members: Vector) -> Value:
    """Section 6: r = S * 2^(e-P) with P = 27; NaN if a member is non-finite."""
    aligned = align(members, GRADIENT_DIGITS)
    if aligned.nonfinite:
        return NAN
    window = 7 * GRADIENT_DIGITS - 1
    return round_float32(sum(aligned.q) * power_of_two(aligned.exponent - window))


def column(matrix: Matrix, index: int) -> Vector:
    """One column of a matrix as a vector."""
    return Vector(matrix.dtype, [row[index] for row in matrix.rows])


def grad_hidden(grad_logits: Matrix, hidden: Matrix, weight: Matrix) -> list[list[int]]:
    """Section 6: [n, k] is the dot over v of dY[n, :] and weight[:, k], in hidden's dtype."""
    width = len(hidden.rows[0]) if hidden.rows else 0
    columns = [align(column(weight, k), GRADIENT_DIGITS) for k in range(width)]
    rows = [align(Vector(grad_logits.dtype, row), GRADIENT_DIGITS) for row in grad_logits.rows]
    return [[encode(dot(row, col, GRADIENT_DIGITS), hidden.dtype) for col in columns] for row in rows]


def grad_weight(grad_logits: Matrix, hidden: Matrix, weight: Matrix) -> list[list[int]]:
    """Section 6: [v, k] is the dot over n of dY[:, v] and hidden[:, k], in weight's dtype."""
    width = len(weight.rows[0]) if weight.rows else 0
    columns = [align(column(hidden, k), GRADIENT_DIGITS) for k in range(width)]
    rows = [align(column(grad_logits, v), GRADIENT_DIGITS) for v in range(len(weight.rows))]
    return [[encode(dot(row, col, GRADIENT_DIGITS), weight.dtype) for col in columns] for row in rows]


def grad_bias(grad_logits: Matrix, vocab: int, bias_dtype: str) -> list[int]:
    """Section 6: [v] is the aligned sum over n of dY[:, v], in the bias's dtype."""
    return [encode(aligned_sum(column(grad_logits, v)), bias_dtype) for v in range(vocab)]


def embedding_grad(
    token_ids: Sequence[int], grad_rows: Matrix, vocab: int, width: int, weight_dtype: str
) -> list[list[int]]:
    """Section 6: [v, c] is the aligned sum of g[i, c] over the positions i with id v; +0 for rows no id names."""
    result = []
    for v in range(vocab):
        members = [row for token_id, row in zip(token_ids, grad_rows.rows, strict=True) if token_id == v]
        sums = [aligned_sum(column(Matrix(grad_rows.dtype, members), c)) for c in range(width)]
        result.append([encode(value, weight_dtype) for value in sums])
    return result
