"""A gradient is one exact sum and one rounding: the same bits in every run, framework, batch and layout."""

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from exact_inputs import NUMPY_TYPES, dtypes, examples, matrices, matrix_array
from frameworks import BFLOAT16, FLOATS, INTEGERS, JAX, TORCH, both, eager_and_compiled
from gradients import assert_lm_head, gradients, normal, pull_back
from hypothesis import given
from hypothesis import strategies as st
from vector_cases import array, vector_cases

import rlk_jax
import rlk_torch
from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

WAYS = {"eager": {}, "compiled": {"compiled": True}, "rows under vmap": {"rows_under_vmap": True}}
in_every_way = pytest.mark.parametrize("way", WAYS)
every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)

HIDDEN, WEIGHT, BIAS, GRAD = normal(5, 6), normal(4, 6, seed=1), normal(4, seed=2), normal(5, 4, seed=3)
IDS, GRAD_ROWS = np.array([1, 3, 1, 0, 1, 3], np.int32), normal(6, 3, seed=4)
TABLE = normal(5, 3, seed=5)


# The contract --------------------------------------------------------------------------------------------
@in_every_way
@pytest.mark.parametrize("case", vector_cases("lm_head_grad"))
@both
def test_lm_head_gives_the_bits_of_the_vector(framework, case, way):
    hidden, weight, grad = (array(case[name]) for name in ("hidden", "weight", "grad_logits"))
    bias = np.zeros_like(array(case["expect_grad_bias"]))
    op = "lm_head" if grad.dtype == hidden.dtype else "lm_head_fp32"
    actual = gradients(framework, op, hidden, weight, bias, grad=grad, **WAYS[way])
    for name, of in zip(("hidden", "weight", "bias"), actual, strict=True):
        assert_bits_equal(of, array(case[f"expect_grad_{name}"]), context=f"the gradient of {name}")


@in_every_way
@pytest.mark.parametrize("case", vector_cases("embedding_grad"))
@both
def test_embedding_gives_the_bits_of_the_vector(framework, case, way):
    grad, expected = array(case["grad_rows"]), array(case["expect"])
    op = "embedding" if grad.dtype == expected.dtype else "embedding_fp32"
    ids, table = np.array(case["token_ids"], np.int32), np.zeros_like(expected)
    assert_bits_equal(gradients(framework, op, ids, table, grad=grad, **WAYS[way])[0], expected)


def draw_lm_head(data: Any, mix: tuple[str, str, str], sizes: tuple[int, int, int]) -> tuple[Any, ...]:
    """Upstream [N, V] of hidden's dtype, hidden, weight and bias with every kind of bit pattern."""
    (hidden, weight, bias), (count, vocab, width) = mix, sizes
    shapes = (hidden, count, vocab), (hidden, count, width), (weight, vocab, width)
    drawn = [matrix_array(data.draw(matrices(*shape, 4)), shape[2]) for shape in shapes]
    return *drawn, np.zeros(vocab, NUMPY_TYPES[bias])


@examples(60)
@given(st.data(), st.tuples(dtypes, dtypes, dtypes), st.tuples(*[st.integers(0, 5)] * 3))
def test_any_bit_patterns_and_sizes_in_torch(data, mix, sizes):
    grad, *operands = draw_lm_head(data, mix, sizes)
    assert_lm_head(gradients(TORCH, "lm_head", *operands, grad=grad), grad, *operands[:2], operands[2].dtype)


@pytest.mark.parametrize("mix", [("float32", "float32", "float32"), ("bfloat16", "float16", "float32")], ids="-".join)
@examples(25)
@given(st.data())
def test_any_bit_patterns_in_jax(mix, data):
    grad, *operands = draw_lm_head(data, mix, (3, 5, 4))
    assert_lm_head(gradients(JAX, "lm_head", *operands, grad=grad), grad, *operands[:2], operands[2].dtype)


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
@both
@examples(20)
@given(st.data())
def test_any_bit_patterns_at_any_ids(framework, dtype, data):
    grad = matrix_array(data.draw(matrices(dtype, 8, 3, 4)), 3)
    tokens = st.one_of(st.integers(0, 4), st.integers(-(2**63), 2**63 - 1))
    ids = np.array(data.draw(st.lists(tokens, min_size=8, max_size=8)), np.int64)
    table = np.zeros((5, 3), NUMPY_TYPES[dtype])
    (actual,) = gradients(framework, "embedding", ids, table, grad=grad, check_ids=False)
    assert_bits_equal(actual, contract.embedding_grad(ids, grad, 5, table.dtype))


@pytest.mark.parametrize("digits", [2, 3, 4])
@both
def test_the_digits_of_the_forward_change_no_gradient(framework, digits):
    actual = gradients(framework, "lm_head", HIDDEN, WEIGHT, BIAS, grad=GRAD, digits=digits)
    assert_lm_head(actual, GRAD, HIDDEN, WEIGHT, BIAS.dtype)


@pytest.mark.parametrize("implementation", ["float64", "int8"])
def test_every_implementation_of_torch_gives_the_bits(implementation):
    op = rlk_torch.get_op("lm_head", implementation=implementation)
    hidden, weight, grad = normal(9, 130), normal(70, 130, seed=1), normal(9, 70, seed=2)
    assert_lm_head(gradients(TORCH, op, hidden, weight, grad=grad), grad, hidden, weight)


@pytest.mark.parametrize(("ids", "x64"), [(np.array([255, 7, 255], np.uint8), False), *[
    (np.array([7, 1, 7]).astype(integer), integer.itemsize == 8) for integer in INTEGERS
]], ids=lambda x: str(getattr(x, "dtype", x)))  # fmt: skip
@both
def test_ids_of_any_integer_dtype_name_the_row_that_gets_the_gradient(framework, ids, x64):
    grad = normal(3, 2)
    with jax.enable_x64(True) if x64 else nullcontext():
        (actual,) = gradients(framework, "embedding", ids, np.zeros((300, 2), np.float32), grad=grad)
    assert_bits_equal(actual, contract.embedding_grad(ids, grad, 300, np.float32))


# Runs ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("deterministic", [False, True])
def test_five_runs_of_torch_agree_with_and_without_deterministic_algorithms(deterministic):
    ids, grad = np.random.default_rng(0).integers(0, 3, 500), normal(500, 7)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        tables = [gradients(TORCH, "embedding", ids, np.zeros((4, 7), np.float32), grad=grad)[0] for _ in range(5)]
        heads = [gradients(TORCH, "lm_head", HIDDEN, WEIGHT, BIAS, grad=GRAD) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(before)
    for table, head in zip(tables, heads, strict=True):
        assert_bits_equal(table, contract.embedding_grad(ids, grad, 4, np.float32))
        assert_lm_head(head, GRAD, HIDDEN, WEIGHT, BIAS.dtype)


def test_five_runs_of_jax_agree():
    ids, grad = np.random.default_rng(0).integers(0, 3, 500, np.int32), normal(500, 7)
    for _ in range(5):
        (table,) = gradients(JAX, "embedding", ids, np.zeros((4, 7), np.float32), grad=grad)
        assert_bits_equal(table, contract.embedding_grad(ids, grad, 4, np.float32))
        assert_lm_head(gradients(JAX, "lm_head", HIDDEN, WEIGHT, BIAS, grad=GRAD), GRAD, HIDDEN, WEIGHT, BIAS.dtype)


@in_every_way
@both
def test_a_thousand_copies_of_an_id_with_a_gradient_of_one_sum_to_a_thousand(framework, way):
    ids, grad = np.full(1000, 2, np.int32), np.ones((1000, 1), BFLOAT16)
    (actual,) = gradients(framework, "embedding", ids, np.zeros((4, 1), BFLOAT16), grad=grad, **WAYS[way])
    assert_bits_equal(actual, np.array([[0], [0], [1000], [0]], BFLOAT16))


# Whose gradient, and of which dtype ----------------------------------------------------------------------
@pytest.mark.parametrize("op", ["lm_head", "lm_head_fp32"])
@both
def test_each_operand_gets_its_gradient_in_its_own_dtype(framework, op):
    hidden, weight, bias = HIDDEN.astype(BFLOAT16), WEIGHT, BIAS.astype(np.float16)
    grad = GRAD.astype(BFLOAT16 if op == "lm_head" else np.float32)
    actual = gradients(framework, op, hidden, weight, bias, grad=grad, compiled=framework is JAX)
    assert [x.dtype for x in actual] == [BFLOAT16, np.float32, np.float16]
    assert_lm_head(actual, grad, hidden, weight, np.float16)


@every_dtype
@both
def test_a_table_gets_its_gradient_in_its_own_dtype_from_widened_rows(framework, dtype):
    (actual,) = gradients(framework, "embedding_fp32", IDS, TABLE.astype(dtype), grad=GRAD_ROWS)
    assert_bits_equal(actual, contract.embedding_grad(IDS, GRAD_ROWS, 5, dtype))


def test_ids_get_no_gradient():
    ids, table = torch.tensor(IDS), torch.tensor(TABLE, requires_grad=True)
    rlk_torch.embedding(ids, table).sum().backward()
    assert ids.grad is None
    loss = jax.grad(lambda ids, table: rlk_jax.embedding(ids, table).sum(), argnums=(0, 1), allow_int=True)
    of_ids, of_table = loss(jnp.asarray(IDS), jnp.asarray(TABLE))
    assert of_ids.dtype == jax.dtypes.float0
    assert_bits_equal(of_table, table.grad)


@pytest.mark.parametrize(("dtype", "compiled"), [(FLOATS[2], False), (FLOATS[1], False), (BFLOAT16, True)], ids=str)
@both
def test_a_tied_weight_gets_the_frameworks_sum_of_both_gradients(framework, compiled, dtype):
    table, hidden, ids = TABLE.astype(dtype), normal(6, 3, dtype=dtype, seed=6), np.array([1, 3, 1, 0, 1, 3], np.int32)
    of_rows, of_logits = normal(6, 3, dtype=dtype, seed=7), normal(6, 5, dtype=dtype, seed=8)
    package = framework.package

    def tied(table: Any, ids: Any, hidden: Any, of_rows: Any, of_logits: Any) -> Any:
        """A sum whose gradient reaches the table through rows and through logits."""
        return (package.embedding(ids, table) * of_rows).sum() + (package.lm_head(hidden, table) * of_logits).sum()

    arguments = [framework.array(x) for x in (table, ids, hidden, of_rows, of_logits)]
    (actual,) = pull_back(framework, tied, arguments, [0], framework.array(np.ones((), dtype)), compiled)
    one = contract.embedding_grad(ids, of_rows, 5, dtype)
    other = contract.lm_head_grads(of_logits, hidden, table)[1]
    assert_bits_equal(actual, as_numpy(framework.array(one) + framework.array(other)))


# Nothing to sum -----------------------------------------------------------------------------------------
@eager_and_compiled
@both
def test_no_rows_give_zero_gradients(framework, compiled):
    for shape in ((0,), (2, 0)):
        hidden, grad = np.zeros((*shape, 6), np.float32), np.zeros((*shape, 4), np.float32)
        actual = gradients(framework, "lm_head", hidden, WEIGHT, BIAS, grad=grad, compiled=compiled)
        for one, operand in zip(actual, (hidden, WEIGHT, BIAS), strict=True):
            assert_bits_equal(one, np.zeros_like(operand))


@pytest.mark.parametrize("shape", [(0,), (2, 0)], ids=str)
@both
def test_no_ids_give_a_zero_gradient(framework, shape):
    ids, grad = np.zeros(shape, np.int32), np.zeros((*shape, 3), np.float32)
    assert_bits_equal(gradients(framework, "embedding", ids, TABLE, grad=grad)[0], np.zeros_like(TABLE))


@both
def test_no_vocab_and_no_width_give_zero_gradients(framework):
    for vocab, width in ((0, 6), (4, 0)):
        hidden, weight, bias = (np.zeros(s, np.float32) for s in ((5, width), (vocab, width), (vocab,)))
        grad = normal(5, vocab)
        assert_lm_head(
            gradients(framework, "lm_head", hidden, weight, bias, grad=grad), grad, hidden, weight, np.float32
        )


# Rows without a gradient ----------------------------------------------------------------------------------
@in_every_way
@both
def test_the_padding_row_gets_plus_zero_and_no_other_row_changes(framework, way):
    expected = contract.embedding_grad(IDS, GRAD_ROWS, 5, np.float32)
    expected[1] = 0
    for op in ("embedding", "embedding_fp32"):
        (actual,) = gradients(framework, op, IDS, TABLE, grad=GRAD_ROWS, padding_idx=1, **WAYS[way])
        assert_bits_equal(actual, expected, context=op)


@both
def test_the_padding_row_is_read_as_any_other(framework):
    for ids in (IDS, np.array([1, 1], np.int32)):
        assert_bits_equal(framework.run("embedding", ids, TABLE, padding_idx=1), TABLE[ids])


NOT_A_ROW = [(-1, "-1"), (5, "5"), (np.int64(300), "300")]
NOT_AN_INTEGER = [("1", "str"), (True, "bool"), (1.0, "float"), (torch.tensor(1), "Tensor"), ([1], "list")]


@pytest.mark.parametrize("op", ["embedding", "embedding_fp32"])
@both
def test_a_padding_idx_that_is_no_row_is_refused(framework, op):
    for given_, shown in NOT_A_ROW:
        with pytest.raises(ValueError) as raised:
            framework.run(op, IDS, TABLE, padding_idx=given_)
        assert str(raised.value) == (
            f"padding_idx is {shown}; expected 0 <= padding_idx < 5, the vocab: "
            "name the row that padding ids read, or use None"
        )
    for given_, shown in NOT_AN_INTEGER:
        with pytest.raises(TypeError) as raised:
            framework.run(op, IDS, TABLE, padding_idx=given_)
        assert str(raised.value) == f"padding_idx is of type {shown}; expected an integer or None"


@in_every_way
@both
def test_bad_ids_add_nothing(framework, way):
    ids = np.array([1, -1, 5, 0, -100, 1, 2**31 - 1, 4], np.int32)
    grad = normal(8, 3)
    (actual,) = gradients(framework, "embedding", ids, TABLE, grad=grad, check_ids=False, **WAYS[way])
    assert_bits_equal(actual, contract.embedding_grad(ids, grad, 5, np.float32))
    good = (ids >= 0) & (ids < 5)
    assert_bits_equal(actual, contract.embedding_grad(ids[good], grad[good], 5, np.float32))


# Upstream gradients that are not finite ---------------------------------------------------------------------
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@both
def test_an_upstream_gradient_that_is_not_finite_touches_its_own_sums_alone(framework, value):
    grad = GRAD.copy()
    grad[2, 1] = value
    clean = gradients(framework, "lm_head", HIDDEN, WEIGHT, BIAS, grad=GRAD)
    actual = gradients(framework, "lm_head", HIDDEN, WEIGHT, BIAS, grad=grad)
    for one, expected, index in zip(actual, clean, (2, 1, 1), strict=True):
        expected = expected.copy()
        expected[index] = np.nan
        assert_bits_equal(one, expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@both
def test_a_gradient_row_that_is_not_finite_touches_its_own_element_alone(framework, value):
    grad = GRAD_ROWS.copy()
    grad[2, 1] = value
    (expected,) = gradients(framework, "embedding", IDS, TABLE, grad=GRAD_ROWS)
    expected = expected.copy()
    expected[IDS[2], 1] = np.nan
    assert_bits_equal(gradients(framework, "embedding", IDS, TABLE, grad=grad)[0], expected)
