"""rlk_jax's gradient functions give the contract's bits for any values and sizes, however they are cut in blocks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_inputs import NUMPY_TYPES, SHAPES_OF_VALUES, dtypes, examples, generated, matrices, matrix_array
from hypothesis import given
from hypothesis import strategies as st

import rlk_jax.embedding_grad
import rlk_jax.lm_head_grad
from crosscheck import contract
from crosscheck.bits import assert_bits_equal
from rlk_jax.embedding_grad import grad_table
from rlk_jax.lm_head_grad import grad_bias, grad_hidden, grad_weight
from rlk_jax.products import limb_bits, limbs, rounded_sum

DIGITS = 4
FEW_SIZES = [(2, 3, 2), (3, 70, 1), (1, 1, 1), (0, 2, 1), (2, 0, 1), (2, 1, 0)]


def assert_lm_head_grads(grad: Any, hidden: Any, weight: Any, bias_dtype: Any) -> None:
    __tracebackhide__ = True
    wanted = contract.lm_head_grads(grad, hidden, weight, bias_dtype)
    g, h, w = map(jnp.asarray, (grad, hidden, weight))
    assert_bits_equal(grad_hidden(g, w, jnp.dtype(hidden.dtype)), wanted[0], context="hidden")
    assert_bits_equal(grad_weight(g, h, jnp.dtype(weight.dtype)), wanted[1], context="weight")
    assert_bits_equal(grad_bias(g, jnp.dtype(bias_dtype)), wanted[2], context="bias")


@st.composite
def operands(draw: Any, names: Any, sizes: Any) -> tuple[Any, ...]:
    count, vocab, width = draw(st.sampled_from(sizes))
    shapes = ((count, vocab), (count, width), (vocab, width))
    arrays = [matrix_array(draw(matrices(draw(names), *shape, DIGITS)), shape[1]) for shape in shapes]
    return *arrays, NUMPY_TYPES[draw(names)]


@examples(15)
@given(operands(dtypes, FEW_SIZES))
def test_any_mix_of_dtypes(arrays):
    assert_lm_head_grads(*arrays)


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_any_values(dtype):
    @examples(60)
    @given(operands(st.just(dtype), [(3, 4, 2)]))
    def check(arrays: Any) -> None:
        assert_lm_head_grads(*arrays)

    check()


@pytest.mark.parametrize("sizes", [(130, 65, 3), (3, 129, 65), (5, 64, 130), (129, 1, 1)])
@pytest.mark.parametrize("blocks", [(1, 1, 1), (64, 1000, 700), (512, 2**21, 2**22)])
def test_blocks_of_any_size(sizes, blocks, monkeypatch):
    monkeypatch.setattr(rlk_jax.lm_head_grad, "_CPU_BLOCKS", blocks)
    jax.clear_caches()  # compiled for other blocks
    count, vocab, width = sizes
    arrays = [
        matrix_array(generated("wide", "bfloat16", *shape, seed), shape[1])
        for seed, shape in enumerate([(count, vocab), (count, width), (vocab, width)])
    ]
    assert_lm_head_grads(*arrays, np.float32)
    jax.clear_caches()


@pytest.mark.parametrize("sizes", [(130, 65, 3), (5, 200, 130)])
def test_the_order_of_axes_that_gpus_prefer(sizes, monkeypatch):
    monkeypatch.setattr(rlk_jax.lm_head_grad, "on_gpu", lambda: True)
    monkeypatch.setattr(rlk_jax.lm_head_grad, "_GPU_BLOCKS", (64, 1000, 5000))
    test_blocks_of_any_size(sizes, rlk_jax.lm_head_grad._CPU_BLOCKS, monkeypatch)


@pytest.mark.parametrize("kind", SHAPES_OF_VALUES)
def test_a_vocab_beyond_what_int32_groups_hold(kind):
    vocab = 2**17 + 77
    grad = matrix_array(generated(kind, "float32", 2, vocab, 0), vocab)
    weight = matrix_array(generated(kind, "float32", vocab, 3, 1), 3)
    wanted = contract.lm_head_grads(grad, np.ones((2, 3), np.float32), weight)[0]
    assert_bits_equal(grad_hidden(jnp.asarray(grad), jnp.asarray(weight), jnp.dtype("float32")), wanted)


@pytest.mark.parametrize("kind", ["same-sign", "wide"])
def test_more_rows_than_int32_groups_hold(kind):
    count = 2**17 + 77
    grad = matrix_array(generated(kind, "float32", count, 2, 0), 2)
    hidden = matrix_array(generated(kind, "float32", count, 3, 1), 3)
    assert_lm_head_grads(grad, hidden, np.ones((2, 3), np.float32), np.float32)


# Sums ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("members", [1, 2**16, 2**16 + 1, 2**23, 2**23 + 1, 2**26, 2**29])
def test_no_sum_of_limbs_overflows(members):
    bits = limb_bits(members)
    for q in (-(2**27), 2**27, 2**27 - 1, -1, 0):
        parts = [int(limb) for limb in limbs(jnp.int32(q), bits)]
        assert sum(part << bits * i for i, part in enumerate(parts)) == q
        assert max(map(abs, parts)) * members <= 2**30
        sums = [jnp.int32(part * members) for part in parts]
        assert_bits_equal(rounded_sum(sums, bits, jnp.int32(0)), np.float32(q * members))


@st.composite
def bags(draw: Any) -> tuple[Any, ...]:
    """ids and rows of a few fixed sizes, so that little is compiled."""
    count, vocab = draw(st.sampled_from([(6, 4), (6, 50)]))
    ids = np.array(draw(st.lists(st.integers(-1, min(vocab, 5) - 1), min_size=count, max_size=count)), np.int32)
    dtype, table = draw(dtypes), draw(dtypes)
    return ids, matrix_array(draw(matrices(dtype, count, 2, DIGITS)), 2), vocab, NUMPY_TYPES[table]


def assert_grad_table(ids: Any, rows: Any, vocab: int, dtype: Any) -> None:
    __tracebackhide__ = True
    actual = grad_table(jnp.asarray(ids), jnp.asarray(rows), vocab, jnp.dtype(dtype))
    assert_bits_equal(actual, contract.embedding_grad(ids, rows, vocab, dtype))


@examples(100)
@given(bags())
def test_tables(bag):
    assert_grad_table(*bag)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,), (3, 4)])
@pytest.mark.parametrize(("vocab", "width"), [(0, 2), (5, 0), (1, 1), (300, 3)])
def test_tables_of_any_size(shape, vocab, width):
    rng = np.random.default_rng(0)
    ids = rng.integers(-1, max(1, vocab), shape).astype(np.int32) if vocab else np.full(shape, -1, np.int32)
    assert_grad_table(ids, rng.standard_normal((*shape, width)).astype(np.float32), vocab, np.float16)


@pytest.mark.parametrize("vocab", [3, 100_000])
@pytest.mark.parametrize("kind", ["same-sign", "wide"])
def test_more_copies_than_wide_limbs_hold(kind, vocab):
    count = 2**16 + 5
    ids = np.random.default_rng(0).choice([2, 0, -1], count, p=[0.9, 0.05, 0.05]).astype(np.int32)
    assert_grad_table(ids, matrix_array(generated(kind, "float32", count, 1, 1), 1), vocab, np.float32)


def test_columns_in_blocks(monkeypatch):
    monkeypatch.setattr(rlk_jax.embedding_grad, "_CPU_BLOCK", 1)
    rows = matrix_array(generated("wide", "bfloat16", 9, 37, 0), 37)
    assert_grad_table(np.array([0, 1, 2, 1, 0, 1, 70, -1, 1], np.int32), rows, 71, np.float16)
