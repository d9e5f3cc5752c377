"""Guards the referee: the exact reference gives every bit of the contract's vectors, and its codec is IEEE's."""

import functools
import json
import math
from fractions import Fraction
from pathlib import Path

import exact_logprob
import exact_reference as exact
import numpy as np
import pytest
from exact_inputs import NUMPY_TYPES, UNSIGNED
from exact_reference import Matrix, Vector

VECTORS = Path(__file__).parent / "vectors" / "contract.json"


@functools.cache
def cases_of(*ops):
    """The vectors of the named operators."""
    cases = [case for case in json.loads(VECTORS.read_text())["cases"] if case["op"] in ops]
    return [pytest.param(case, id=case["id"]) for case in cases]


def matrix(entry):
    """An entry {dtype, shape [rows, width], bits} as a Matrix."""
    count, width = entry["shape"]
    return Matrix(entry["dtype"], [entry["bits"][i * width : (i + 1) * width] for i in range(count)])


def vector(entry):
    """An entry {dtype, shape [length], bits} as a Vector."""
    return Vector(entry["dtype"], entry["bits"])


def assert_entry(actual_dtype, actual, entry):
    """The rows (or the vector) have the dtype, the shape and the bits of the entry."""
    nested = len(entry["shape"]) == 2
    shape = [len(actual), len(actual[0])] if nested else [len(actual)]
    bits = [b for row in actual for b in row] if nested else actual
    assert (actual_dtype, shape) == (entry["dtype"], entry["shape"])
    wrong = [(i, hex(a), hex(b)) for i, (a, b) in enumerate(zip(bits, entry["bits"], strict=True)) if a != b]
    assert not wrong, f"(index, actual, expected): {wrong[:5]}"


def test_every_vector_is_judged():
    ops = ("lm_head", "embedding", "embedding_fp32", "lm_head_grad", "embedding_grad", "selected_logprob")
    assert len(cases_of(*ops)) == 124


@pytest.mark.parametrize("case", cases_of("lm_head"))
def test_lm_head_gives_the_bits_of_the_vectors(case):
    bias = vector(case["bias"]) if "bias" in case else None
    actual = exact.logits(matrix(case["hidden"]), matrix(case["weight"]), bias, case["digits"], case["out_dtype"])
    assert_entry(case["out_dtype"], actual, case["expect"])


@pytest.mark.parametrize("case", cases_of("embedding", "embedding_fp32"))
def test_embedding_gives_the_bits_of_the_vectors(case):
    weight, width = matrix(case["weight"]), case["weight"]["shape"][1]
    if case["op"] == "embedding":
        actual, dtype = exact.embedding(case["token_ids"], weight, width, check_ids=False), weight.dtype
    else:
        actual, dtype = exact.embedding_fp32(case["token_ids"], weight, width, check_ids=False), "float32"
    assert_entry(dtype, actual, case["expect"])


@pytest.mark.parametrize("case", cases_of("lm_head_grad"))
def test_lm_head_gradients_give_the_bits_of_the_vectors(case):
    operands = [matrix(case[name]) for name in ("grad_logits", "hidden", "weight")]
    assert_entry(case["hidden"]["dtype"], exact.grad_hidden(*operands), case["expect_grad_hidden"])
    assert_entry(case["weight"]["dtype"], exact.grad_weight(*operands), case["expect_grad_weight"])
    bias_dtype = case.get("bias_dtype", case["weight"]["dtype"])
    vocab = case["weight"]["shape"][0]
    assert_entry(bias_dtype, exact.grad_bias(operands[0], vocab, bias_dtype), case["expect_grad_bias"])


@pytest.mark.parametrize("case", cases_of("embedding_grad"))
def test_embedding_gradient_gives_the_bits_of_the_vectors(case):
    grad_rows, width = matrix(case["grad_rows"]), case["grad_rows"]["shape"][1]
    actual = exact.embedding_grad(case["token_ids"], grad_rows, case["vocab"], width, case["weight_dtype"])
    assert_entry(case["weight_dtype"], actual, case["expect"])


@pytest.mark.parametrize("case", cases_of("selected_logprob"))
def test_logprob_gives_the_bits_of_the_vectors(case):
    rows = matrix(case["logits"]).rows
    dtype = case["logits"]["dtype"]
    actual = [
        exact_logprob.selected_logprob(Vector(dtype, row), target)
        for row, target in zip(rows, case["target_ids"], strict=True)
    ]
    assert_entry("float32", actual, case["expect"])


@pytest.mark.parametrize("case", [p for p in cases_of("selected_logprob") if "grad_logprob" in p.values[0]])
def test_logprob_gradient_gives_the_bits_of_the_vectors(case):
    rows = matrix(case["logits"]).rows
    dtype = case["logits"]["dtype"]
    actual = [
        exact_logprob.selected_logprob_grad(Vector(dtype, row), target, g)
        for row, target, g in zip(rows, case["target_ids"], case["grad_logprob"]["bits"], strict=True)
    ]
    assert_entry(dtype, actual, case["expect_grad_logits"])


def patterns_of(dtype):
    """Every 16-bit pattern, or float32 patterns at the edges of every exponent and at random."""
    if dtype != "float32":
        return range(2**16)
    edges = [(exponent << 23) + offset for exponent in range(256) for offset in (0, 1, 2**22, 2**23 - 1)]
    return edges + np.random.default_rng(7).integers(0, 2**32, 5000).tolist()


@pytest.mark.parametrize("dtype", list(exact.FORMATS))
def test_decode_gives_the_value_that_numpy_reads(dtype):
    patterns = list(patterns_of(dtype))
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        floats = np.array(patterns, UNSIGNED[dtype]).view(NUMPY_TYPES[dtype]).astype(np.float64)
    for bits, number in zip(patterns, floats.tolist(), strict=True):
        value = exact.decode(bits, dtype)
        expected = Fraction(number) if math.isfinite(number) else str(number)
        assert value == expected, hex(bits)


@pytest.mark.parametrize("dtype", list(exact.FORMATS))
def test_encode_inverts_decode(dtype):
    negative_zero = 1 << sum(exact.FORMATS[dtype])
    for bits in patterns_of(dtype):
        value = exact.decode(bits, dtype)
        if value != exact.NAN and bits != negative_zero:
            assert exact.encode(value, dtype) == bits


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_encode_narrows_as_numpy_does(dtype):
    patterns = [bits for bits in patterns_of("float32") if bits & 0x7FFFFFFF <= 0x7F800000 and bits != 0x80000000]
    ties = [(bits & 0xFFFF0000) | low for bits in patterns for low in (0x1000, 0x7FFF, 0x8000, 0x8001)]
    finite = [bits for bits in patterns + ties if bits & 0x7F800000 != 0x7F800000 and bits != 0x80000000]
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.array(finite, np.uint32).view(np.float32).astype(NUMPY_TYPES[dtype])
    expected = narrow.view(np.uint16).tolist()
    assert [exact.encode(exact.decode(bits, "float32"), dtype) for bits in finite] == expected


def test_rounding_has_no_exponent_limits_before_the_flush():
    tie_up = exact.SMALLEST * (1 - Fraction(1, 2**25))
    short = exact.SMALLEST * (1 - Fraction(1, 2**24))
    assert exact.round_float32(tie_up) == exact.SMALLEST
    assert exact.round_float32(short) == 0
    assert exact.round_float32(exact.OVERFLOW * (1 - Fraction(1, 2**25))) == exact.INF
    assert exact.round_float32(exact.OVERFLOW * (1 - Fraction(1, 2**24))) == 2**128 - 2**104


def test_the_largest_logit_has_the_exponential_two_to_the_44():
    assert exact_logprob.exponential(Fraction(0)) == 2**44
