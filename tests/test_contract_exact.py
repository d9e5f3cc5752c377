"""Guards the NumPy contract's alignment, LM head and embedding: every bit as the exact reference gives it."""

import exact_reference as exact
import numpy as np
import pytest
from exact_inputs import (
    FLOAT_NAMES,
    ID_TYPES,
    SHAPES_OF_VALUES,
    any_patterns,
    assert_bits,
    cancelling_pairs,
    digit_counts,
    dtypes,
    examples,
    generated,
    matrices,
    matrix_array,
    sign_bit,
    special_patterns,
    to_array,
    vector_array,
    vectors,
)
from exact_reference import Matrix, Vector
from hypothesis import assume, example, given
from hypothesis import strategies as st

from crosscheck import contract

MANY, SOME, FEW = examples(400), examples(100), examples(20)


@st.composite
def problems(draw, *, with_bias):
    """digits, hidden, weight and bias of three float types, with a length from 0 to 12, and the length."""
    digits, width = draw(digit_counts), draw(st.integers(0, 12))
    count, vocab = draw(st.integers(0, 3)), draw(st.integers(0, 4))
    hidden = draw(matrices(draw(dtypes), count, width, digits))
    weight = draw(matrices(draw(dtypes), vocab, width, digits))
    bias = draw(vectors(draw(dtypes), vocab)) if with_bias else None
    return digits, hidden, weight, bias, width


def assert_lm_head(digits, hidden, weight, bias, width):
    """The dtype path has the exact reference's bits."""
    __tracebackhide__ = True
    arrays = matrix_array(hidden, width), matrix_array(weight, width), vector_array(bias)
    actual = contract.lm_head(*arrays, digits=digits)
    expected = exact.lm_head(hidden, weight, bias, digits=digits)
    assert_bits(actual, hidden.dtype, (len(hidden.rows), len(weight.rows)), expected)


@MANY
@given(st.data(), dtypes, digit_counts, st.integers(0, 12), st.integers(0, 4))
def test_alignment_is_exact(data, dtype, digits, width, count):
    matrix = data.draw(matrices(dtype, count, width, digits))
    actual = contract.align(matrix_array(matrix, width), digits)
    expected = [exact.align(Vector(dtype, row), digits) for row in matrix.rows]
    assert (actual.digits, actual.q.shape) == (digits, (count, width))
    assert np.asarray(actual.nonfinite).tolist() == [row.nonfinite for row in expected]
    for r, row in enumerate(expected):
        if not row.nonfinite:
            assert (int(actual.exponent[r]), [int(q) for q in actual.q[r]]) == (row.exponent, row.q)


@MANY
@given(problems(with_bias=False))
def test_logits_are_exact_for_every_pair_of_dtypes(problem):
    assert_lm_head(*problem)


@MANY
@given(problems(with_bias=True))
def test_logits_with_bias_are_exact_for_every_dtype_of_bias(problem):
    assert_lm_head(*problem)


@SOME
@given(problems(with_bias=True))
def test_ground_truth_logits_are_float32(problem):
    digits, hidden, weight, bias, width = problem
    arrays = matrix_array(hidden, width), matrix_array(weight, width), vector_array(bias)
    actual = contract.lm_head_fp32(*arrays, digits=digits)
    expected = exact.lm_head_fp32(hidden, weight, bias, digits=digits)
    assert_bits(actual, "float32", (len(hidden.rows), len(weight.rows)), expected)


@SOME
@given(problems(with_bias=True))
def test_unnamed_digits_are_those_of_the_path(problem):
    _, hidden, weight, bias, width = problem
    arrays = matrix_array(hidden, width), matrix_array(weight, width), vector_array(bias)
    shape = len(hidden.rows), len(weight.rows)
    assert_bits(contract.lm_head(*arrays), hidden.dtype, shape, exact.lm_head(hidden, weight, bias))
    assert_bits(contract.lm_head_fp32(*arrays), "float32", shape, exact.lm_head_fp32(hidden, weight, bias))


@MANY
@given(st.data(), dtypes, dtypes, digit_counts, st.integers(1, 5))
def test_what_cancels_leaves_the_exact_remainder(data, hidden_dtype, weight_dtype, digits, half):
    hidden, weight = data.draw(cancelling_pairs(hidden_dtype, weight_dtype, half))
    assert_lm_head(digits, hidden, weight, None, 2 * half)


@SOME
@given(problems(with_bias=False), st.integers(-2, 2))
def test_bias_that_nearly_cancels_is_added_with_one_rounding(problem, offset):
    digits, hidden, weight, _, width = problem
    logits = exact.logits(hidden, weight, None, digits, "float32")
    first_row = logits[0] if logits else [0] * len(weight.rows)
    bias = Vector("float32", [max(bits ^ sign_bit("float32"), 2) + offset for bits in first_row])
    assert_lm_head(digits, hidden, weight, bias, width)


@SOME
@given(st.data(), dtypes, dtypes, st.lists(st.integers(0, 3), min_size=0, max_size=3), st.integers(0, 4))
def test_leading_axes_are_kept(data, hidden_dtype, weight_dtype, leading, width):
    hidden = data.draw(matrices(hidden_dtype, int(np.prod(leading, dtype=int)), width, 3))
    weight = data.draw(matrices(weight_dtype, 2, width, 3))
    actual = contract.lm_head(
        matrix_array(hidden, width).reshape(*leading, width), matrix_array(weight, width), digits=3
    )
    assert_bits(actual, hidden_dtype, (*leading, 2), exact.lm_head(hidden, weight, digits=3))


LENGTHS = st.one_of(st.sampled_from([511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, 9000]), st.integers(13, 600))


@examples(40)
@given(dtypes, dtypes, digit_counts, LENGTHS, *[st.sampled_from(SHAPES_OF_VALUES)] * 2, st.integers(0, 2**32))
@example("float32", "float32", 4, 9000, "same-sign", "same-sign", 0)
@example("bfloat16", "float32", 3, 9000, "same-sign", "same-sign", 0)
def test_logits_of_long_rows_are_exact(hidden_dtype, weight_dtype, digits, width, hidden_kind, weight_kind, seed):
    hidden = generated(hidden_kind, hidden_dtype, 1, width, seed)
    weight = generated(weight_kind, weight_dtype, 2, width, seed + 1)
    assert_lm_head(digits, hidden, weight, None, width)


@FEW
@given(dtypes, digit_counts, st.integers(200, 1100), st.booleans(), st.integers(0, 2**32))
def test_logits_of_many_rows_are_exact(dtype, digits, count, tall, seed):
    hidden = generated("finite", dtype, count if tall else 2, 3, seed)
    weight = generated("finite", dtype, 2 if tall else count, 3, seed + 1)
    assert_lm_head(digits, hidden, weight, None, 3)


@pytest.mark.parametrize(
    ("count", "vocab", "width"), [(300, 2001, 5), (2001, 300, 5), (4, 97, 4500), (97, 4, 4500), (1, 70001, 2)]
)
@pytest.mark.parametrize("digits", [3, 4])
def test_a_logit_depends_on_its_two_rows_alone(digits, count, vocab, width):
    """Sizes that no implementation handles in one block; the rows come from few, so that the reference can follow."""
    hidden = generated("wide", "float32", 3, width, 1)
    weight = generated("outliers", "bfloat16", 5, width, 2)
    generator = np.random.default_rng(3)
    rows, columns = generator.integers(0, 3, count), generator.integers(0, 5, vocab)
    arrays = matrix_array(hidden, width)[rows], matrix_array(weight, width)[columns]
    expected = np.array(exact.lm_head(hidden, weight, digits=digits))[np.ix_(rows, columns)]
    assert_bits(contract.lm_head(*arrays, digits=digits), "float32", (count, vocab), expected)


@st.composite
def gathers(draw, *, valid):
    """token_ids of any integer type, all valid or with at least one that is not, a table and its width."""
    limits = np.iinfo(draw(st.sampled_from(ID_TYPES)))
    vocab, width = draw(st.integers(1 if valid else 0, 300)), draw(st.integers(0, 3))
    last = min(vocab - 1, limits.max)
    outside = [i for i in (limits.min, -1, -vocab, vocab, 2**31 - 1, 2**32 + 1, limits.max) if not 0 <= i < vocab]
    bad = [i for i in outside if limits.min <= i <= limits.max]
    ids = draw(st.lists(st.integers(0, last), max_size=6)) if vocab else []
    if not valid:
        assume(bad)
        ids.insert(draw(st.integers(0, len(ids))), draw(st.sampled_from(bad)))
    dtype = draw(dtypes)
    pool = draw(st.lists(st.one_of(any_patterns(dtype), st.sampled_from(special_patterns(dtype))), min_size=7))
    table = Matrix(dtype, [[pool[(v * 3 + c) % len(pool)] for c in range(width)] for v in range(vocab)])
    return np.array(ids, limits.dtype), table, width


def assert_gather(name, token_ids, table, width, *, check_ids):
    """The named embedding has the exact reference's bits."""
    __tracebackhide__ = True
    actual = getattr(contract, name)(token_ids, matrix_array(table, width), check_ids=check_ids)
    ids = token_ids.reshape(-1).tolist()
    expected = getattr(exact, name)(ids, table, width, check_ids=check_ids)
    dtype = "float32" if name == "embedding_fp32" else table.dtype
    assert_bits(actual, dtype, (*token_ids.shape, width), expected)


EMBEDDINGS = pytest.mark.parametrize("name", ["embedding", "embedding_fp32"])


@EMBEDDINGS
@SOME
@given(gathers(valid=True), st.booleans())
def test_embedding_copies_rows_for_every_integer_type(name, gather, check_ids):
    assert_gather(name, *gather, check_ids=check_ids)


@EMBEDDINGS
@SOME
@given(gathers(valid=False))
def test_unchecked_bad_ids_give_quiet_nan_rows(name, gather):
    assert_gather(name, *gather, check_ids=False)


@EMBEDDINGS
@SOME
@given(gathers(valid=False))
def test_bad_ids_raise(name, gather):
    token_ids, table, width = gather
    with pytest.raises(IndexError):
        getattr(contract, name)(token_ids, matrix_array(table, width))


@EMBEDDINGS
def test_the_error_names_the_id_its_position_and_the_vocab(name):
    token_ids = np.zeros(20, np.int64)
    token_ids[17] = 2**32 + 1
    with pytest.raises(IndexError, match=r"4294967297") as caught:
        getattr(contract, name)(token_ids, np.zeros((123, 1), np.float32))
    assert "17" in str(caught.value)
    assert "123" in str(caught.value)


@EMBEDDINGS
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 1, 3)])
@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_embedding_keeps_the_shape_of_the_ids(name, shape, dtype):
    table = Matrix(dtype, [special_patterns(dtype)[:5], special_patterns(dtype)[-5:]])
    assert_gather(name, np.ones(shape, np.int32), table, 5, check_ids=True)


@EMBEDDINGS
@pytest.mark.parametrize("id_type", [np.bool_, np.float32])
def test_ids_that_are_not_integers_are_refused(name, id_type):
    with pytest.raises(TypeError):
        getattr(contract, name)(np.ones(1, id_type), to_array("float32", [0, 0], (2, 1)))
