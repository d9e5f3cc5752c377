"""Every size has its right answer: empty, one, leading axes, and reductions longer than one int32 sum can hold."""

from math import prod

import numpy as np
import pytest
from frameworks import BFLOAT16, FLOATS, TORCH, both, eager_and_compiled

from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

aligned_or_not = pytest.mark.parametrize("aligned", [False, True], ids=["plain", "aligned"])


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def logits(framework, hidden, weight, bias=None, *, digits=4, aligned=False, compiled=False):
    weight = framework.package.align(framework.array(weight), digits) if aligned else weight
    return framework.run("lm_head", hidden, weight, bias, digits=digits, compiled=compiled)


# Nothing -----------------------------------------------------------------------------------------------
@eager_and_compiled
@aligned_or_not
@pytest.mark.parametrize(
    ("rows", "width", "vocab"), [((0,), 5, 4), ((2, 0), 5, 4), ((3,), 5, 0), ((0,), 0, 0), ((0,), 0, 4), ((2,), 0, 0)]
)
@both
def test_empty_logits(framework, rows, width, vocab, aligned, compiled):
    hidden, weight = normal(*rows, width, dtype=BFLOAT16), normal(vocab, width)
    actual = logits(framework, hidden, weight, aligned=aligned, compiled=compiled)
    assert_bits_equal(actual, np.zeros((*rows, vocab), BFLOAT16))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@aligned_or_not
@both
def test_a_hidden_size_of_0_gives_the_bias(framework, dtype, aligned):
    bias = np.array([1.5, -0.0, 1e-40, -np.inf, np.nan], np.float32)
    hidden, weight = np.zeros((2, 0), dtype), np.zeros((5, 0), np.float32)
    expected = np.array([1.5, 0, 0, -np.inf, np.nan], np.float32).astype(dtype)
    actual = logits(framework, hidden, weight, bias, aligned=aligned)
    assert_bits_equal(actual, np.broadcast_to(expected, (2, 5)))


@both
def test_a_hidden_size_of_0_without_a_bias_gives_zeros(framework):
    actual = logits(framework, np.zeros((2, 0), np.float32), np.zeros((5, 0), np.float32))
    assert_bits_equal(actual, np.zeros((2, 5), np.float32))


@eager_and_compiled
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)], ids=str)
@pytest.mark.parametrize("vocab", [0, 4])
@both
def test_no_ids_give_no_rows(framework, vocab, shape, compiled):
    ids = framework.array(np.zeros(shape, np.int32))
    actual = framework.run("embedding", ids, normal(vocab, 3, dtype=BFLOAT16), compiled=compiled)
    assert_bits_equal(actual, np.zeros((*shape, 3), BFLOAT16))


@pytest.mark.parametrize("ids", [[], [[], []], ()], ids=str)
@both
def test_empty_lists_are_ids(framework, ids):
    assert_bits_equal(framework.run("embedding", ids, normal(4, 3)), np.zeros((*np.shape(ids), 3), np.float32))


@both
def test_a_table_of_width_0(framework):
    assert_bits_equal(
        framework.run("embedding_fp32", [[1], [0]], np.zeros((2, 0), BFLOAT16)), np.zeros((2, 1, 0), np.float32)
    )


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0)], ids=str)
@both
def test_nothing_to_align(framework, shape):
    aligned = framework.package.align(framework.array(np.zeros(shape, np.float32)), 3)
    assert (aligned.shape, aligned.digits) == (shape, 3)


# One, and leading axes ---------------------------------------------------------------------------------
@eager_and_compiled
@both
def test_a_scalar_id_gives_one_row(framework, compiled):
    table = normal(4, 3)
    actual = framework.run("embedding", framework.array(np.array(2, np.int32)), table, compiled=compiled)
    assert_bits_equal(actual, table[2])


@eager_and_compiled
@pytest.mark.parametrize("rows", [(), (1,), (2, 3), (2, 1, 3)], ids=str)
@both
def test_leading_axes_are_rows(framework, rows, compiled):
    hidden, weight, bias = normal(*rows, 33), normal(5, 33, seed=1), normal(5, seed=2)
    flat = contract.lm_head(hidden.reshape(prod(rows), 33), weight, bias)
    actual = logits(framework, hidden, weight, bias, compiled=compiled)
    assert_bits_equal(actual, flat.reshape(*rows, 5))


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 3)], ids=str)
@both
def test_leading_axes_of_ids(framework, shape):
    table = normal(7, 3)
    ids = np.random.default_rng(0).integers(0, 7, shape)
    assert_bits_equal(framework.run("embedding", ids, table), table[ids])


# Long reductions ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [65536, 65537, 131100])
@pytest.mark.parametrize("digits", [2, 3, 4])
@aligned_or_not
@both
def test_sums_past_32_bits(framework, digits, width, aligned):
    """The first row has the largest digits there are, all of one sign: its sums are the largest of this length."""
    largest = np.full((1, width), np.nextafter(np.float32(2), np.float32(0)))
    hidden = np.concatenate([largest, -largest, normal(1, width)])
    weight = np.concatenate([largest, normal(1, width, seed=1)])
    actual = logits(framework, hidden, weight, digits=digits, aligned=aligned)
    assert_bits_equal(actual, contract.lm_head(hidden, weight, digits=digits))


@pytest.mark.parametrize("implementation", ["float64", "int8"])
@pytest.mark.parametrize("digits", [2, 3, 4])
def test_sums_past_32_bits_in_each_implementation_of_torch(implementation, digits):
    largest = np.full((2, 131100), np.nextafter(np.float32(2), np.float32(0)))
    op = TORCH.package.get_op("lm_head", implementation=implementation)
    actual = op(TORCH.array(largest), TORCH.array(largest), digits=digits)
    assert_bits_equal(actual, contract.lm_head(largest, largest, digits=digits))


@pytest.mark.parametrize("width", [1, 2, 3, 63, 64, 65, 127, 128, 129, 511, 512, 513, 4095, 4097])
@both
def test_widths_around_the_edges_of_tiles_and_words(framework, width):
    hidden, weight = normal(2, width), normal(3, width, seed=1)
    hidden[0], weight[0] = np.nextafter(np.float32(2), np.float32(0)), np.nextafter(np.float32(2), np.float32(0))
    assert_bits_equal(logits(framework, hidden, weight), contract.lm_head(hidden, weight))


# More than one block -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("rows", "width", "vocab"), [(600, 3, 2000), (1, 4, 300_000), (2, 4096, 1500), (1030, 2, 5)])
@aligned_or_not
@both
def test_several_blocks(framework, rows, width, vocab, aligned):
    hidden, weight, bias = normal(rows, width, dtype=BFLOAT16), normal(vocab, width, seed=1), normal(vocab, seed=2)
    actual = logits(framework, hidden, weight, bias, digits=3, aligned=aligned)
    assert_bits_equal(actual, contract.lm_head(hidden, weight, bias, digits=3))


@both
def test_an_alignment_in_several_blocks(framework):
    x = normal(4200, 1000)
    aligned, expected = framework.package.align(framework.array(x), 2), contract.align(x, 2)
    planes = as_numpy(aligned.planes).astype(np.int32)
    assert_bits_equal((planes[0] + 128 * planes[1])[:, :1000], expected.q)
    assert_bits_equal(aligned.exponent, expected.exponent)
