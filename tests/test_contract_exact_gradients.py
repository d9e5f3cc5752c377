"""Guards the NumPy contract's gradients and aligned sums: every bit as the exact reference gives it."""

from fractions import Fraction

import exact_reference as exact
import numpy as np
import pytest
from exact_inputs import (
    FLOAT_NAMES,
    ID_TYPES,
    NUMPY_TYPES,
    SHAPES_OF_VALUES,
    assert_bits,
    dtypes,
    examples,
    generated,
    matrices,
    matrix_array,
    sign_bit,
    to_array,
)
from exact_reference import GRADIENT_DIGITS, Matrix
from hypothesis import example, given
from hypothesis import strategies as st

from crosscheck import contract

MANY, SOME, FEW = examples(300), examples(100), examples(20)


@st.composite
def lm_head_operands(draw):
    """grad_logits [N, V], hidden [N, K], weight [V, K], each of its own float type, and K."""
    count, vocab, width = draw(st.integers(0, 4)), draw(st.integers(0, 4)), draw(st.integers(0, 4))
    grad_logits = draw(matrices(draw(dtypes), count, vocab, GRADIENT_DIGITS))
    hidden = draw(matrices(draw(dtypes), count, width, GRADIENT_DIGITS))
    weight = draw(matrices(draw(dtypes), vocab, width, GRADIENT_DIGITS))
    return grad_logits, hidden, weight, width


def assert_grads(operands, bias_dtype):
    """All gradients of the LM head have the exact reference's bits."""
    __tracebackhide__ = True
    grad_logits, hidden, weight, width = operands
    count, vocab = len(hidden.rows), len(weight.rows)
    grad_hidden, grad_weight, grad_bias = contract.lm_head_grads(
        matrix_array(grad_logits, vocab),
        matrix_array(hidden, width),
        matrix_array(weight, width),
        NUMPY_TYPES.get(bias_dtype),
    )
    assert_bits(grad_hidden, hidden.dtype, (count, width), exact.grad_hidden(grad_logits, hidden, weight))
    assert_bits(grad_weight, weight.dtype, (vocab, width), exact.grad_weight(grad_logits, hidden, weight))
    if bias_dtype is None:
        assert grad_bias is None
    else:
        assert_bits(grad_bias, bias_dtype, (vocab,), exact.grad_bias(grad_logits, vocab, bias_dtype))


@MANY
@given(lm_head_operands(), st.sampled_from([None, *FLOAT_NAMES]))
def test_lm_head_gradients_are_exact_for_every_mix_of_dtypes(operands, bias_dtype):
    assert_grads(operands, bias_dtype)


@FEW
@given(dtypes, dtypes, st.integers(500, 6000), *[st.sampled_from(SHAPES_OF_VALUES)] * 2, st.integers(0, 2**32))
@example("float32", "float32", 9000, "same-sign", "same-sign", 0)
def test_gradients_over_many_tokens_are_exact(dtype, weight_dtype, count, grad_kind, hidden_kind, seed):
    grad_logits = generated(grad_kind, dtype, count, 1, seed)
    hidden = generated(hidden_kind, dtype, count, 1, seed + 1)
    assert_grads((grad_logits, hidden, generated("normal", weight_dtype, 1, 1, seed + 2), 1), "float32")


@FEW
@given(dtypes, dtypes, st.integers(500, 6000), *[st.sampled_from(SHAPES_OF_VALUES)] * 2, st.integers(0, 2**32))
def test_gradients_over_a_long_vocab_are_exact(dtype, weight_dtype, vocab, grad_kind, weight_kind, seed):
    grad_logits = generated(grad_kind, dtype, 1, vocab, seed)
    weight = generated(weight_kind, weight_dtype, vocab, 1, seed + 1)
    assert_grads((grad_logits, generated("normal", dtype, 1, 1, seed + 2), weight, 1), None)


def assert_embedding_grad(token_ids, grad_rows, vocab, width, weight_dtype):
    """The gradient of the table has the exact reference's bits."""
    __tracebackhide__ = True
    shape = (*token_ids.shape, width)
    actual = contract.embedding_grad(
        token_ids, matrix_array(grad_rows, width).reshape(shape), vocab, NUMPY_TYPES[weight_dtype]
    )
    expected = exact.embedding_grad(token_ids.reshape(-1).tolist(), grad_rows, vocab, width, weight_dtype)
    assert_bits(actual, weight_dtype, (vocab, width), expected)


@MANY
@given(st.data(), dtypes, dtypes, st.integers(1, 5), st.integers(0, 3), st.sampled_from(ID_TYPES))
def test_embedding_gradient_is_exact_for_every_id_type(data, dtype, weight_dtype, vocab, width, id_type):
    ids = np.array(data.draw(st.lists(st.integers(0, vocab - 1), max_size=12)), id_type)
    grad_rows = data.draw(matrices(dtype, len(ids), width, GRADIENT_DIGITS))
    assert_embedding_grad(ids, grad_rows, vocab, width, weight_dtype)


@SOME
@given(st.data(), dtypes, st.integers(0, 4))
def test_no_gradient_flows_from_bad_ids(data, dtype, vocab):
    candidates = st.one_of(st.integers(-vocab - 1, vocab + 1), st.sampled_from([2**31 - 1, 2**32, 2**32 + 1, -(2**63)]))
    ids = np.array(data.draw(st.lists(candidates, max_size=12)), np.int64)
    grad_rows = data.draw(matrices(dtype, len(ids), 2, GRADIENT_DIGITS))
    assert_embedding_grad(ids, grad_rows, vocab, 2, dtype)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 1, 3)])
def test_embedding_gradient_takes_ids_of_any_shape(shape):
    ids = np.ones(shape, np.int32)
    assert_embedding_grad(ids, generated("normal", "float32", ids.size, 3, 5), 3, 3, "bfloat16")


@examples(40)
@given(dtypes, dtypes, st.integers(100, 9000), st.sampled_from(SHAPES_OF_VALUES), st.integers(0, 2**32))
@example("float32", "float32", 9000, "same-sign", 0)
def test_aligned_sums_of_many_copies_are_exact(dtype, weight_dtype, copies, kind, seed):
    ids = np.random.default_rng(seed).choice([2, 0], copies, p=[0.9, 0.1])
    assert_embedding_grad(ids, generated(kind, dtype, copies, 1, seed + 1), 3, 1, weight_dtype)


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_a_thousand_gradients_of_one_sum_to_a_thousand(dtype):
    one = exact.encode(Fraction(1), dtype)
    actual = contract.embedding_grad(
        np.full(1000, 3), to_array(dtype, [one] * 1000, (1000, 1)), 4, NUMPY_TYPES["float32"]
    )
    assert_bits(actual, "float32", (4, 1), [[0], [0], [0], [0x447A0000]])


@st.composite
def sums_near_ties(draw):
    """An integer near a tie of 24 bits, and float32 integers of exponent 27, in any order, that sum to it."""
    below = draw(st.integers(1, 10))
    kept = draw(st.integers(2**23, 2**24 - 1))
    target = (kept << below) + (1 << below >> 1) + draw(st.sampled_from([-1, 0, 1]))
    cap = 2**27 - 8
    full, rest = divmod(target, cap)
    pairs = draw(st.integers(0, 3))
    members = [cap] * (full + pairs) + [-cap] * pairs + [rest >> 20 << 20, rest % 2**20, 2**26, -(2**26)]
    sign = draw(st.sampled_from([1, -1]))
    return sign * target, [sign * member for member in draw(st.permutations(members))]


@MANY
@given(sums_near_ties())
def test_aligned_sums_near_ties_are_rounded_once(problem):
    target, members = problem
    rows = np.array(members, np.float32)[:, None]
    actual = contract.embedding_grad(np.zeros(len(members), int), rows, 1, np.float32)
    assert_bits(actual, "float32", (1, 1), [[exact.encode(Fraction(target), "float32")]])


@SOME
@given(st.data(), dtypes, st.integers(1, 6))
def test_what_cancels_in_a_sum_leaves_the_exact_remainder(data, dtype, half):
    matrix = data.draw(matrices(dtype, half, 2, GRADIENT_DIGITS))
    mirrored = [[bits ^ sign_bit(dtype) for bits in row] for row in matrix.rows]
    mirrored[-1][0] ^= 1
    both = Matrix(dtype, [*matrix.rows, *mirrored])
    assert_embedding_grad(np.zeros(2 * half, int), both, 1, 2, "float32")
