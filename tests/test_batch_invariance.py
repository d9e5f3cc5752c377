"""A logit depends on its hidden row and its weight row alone, whatever the batch, place, shard or vmap."""

from typing import Any

import numpy as np
import pytest
from frameworks import BFLOAT16, FLOATS, TORCH, both, eager_and_compiled
from numpy.typing import NDArray

from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

SIZES = (1, 2, 3, 17, 33, 128, 255, 256, 257, 1024)
WIDTH, VOCAB = 100, 37

Array = NDArray[Any]
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def model(dtype: Any) -> tuple[Array, Array]:
    return normal(VOCAB, WIDTH, dtype=dtype, seed=1), normal(VOCAB, dtype=dtype, seed=2)


# Batches -----------------------------------------------------------------------------------------------
@eager_and_compiled
@dtypes
@both
def test_a_row_among_others_has_the_bits_of_the_row_alone(framework, dtype, compiled):
    """The first, the middle and the last row of each batch are one and the same row."""
    weight, bias = model(dtype)
    row = normal(WIDTH, dtype=dtype, seed=3)
    expected = contract.lm_head(row, weight, bias)
    operator = framework.package.lm_head
    call = framework.compiled(lambda *args: operator(*args)) if compiled else operator
    parameters = framework.array(weight), framework.array(bias)
    for size in SIZES:
        hidden = normal(size, WIDTH, dtype=dtype, seed=size)
        places = sorted({0, size // 2, size - 1})
        hidden[places] = row
        logits = as_numpy(call(framework.array(hidden), *parameters))
        for place in places:
            assert_bits_equal(logits[place], expected, context=f"row {place} of {size}")


@both
def test_the_order_of_rows_is_the_order_of_logits(framework):
    hidden, (weight, bias) = normal(33, WIDTH), model(np.float32)
    order = np.random.default_rng(0).permutation(33)
    logits = framework.run("lm_head", hidden, weight, bias)
    assert_bits_equal(framework.run("lm_head", hidden[order], weight, bias), logits[order])


@both
def test_a_row_of_nan_stays_alone(framework):
    hidden, (weight, bias) = normal(5, WIDTH), model(np.float32)
    alone = framework.run("lm_head", hidden, weight, bias)
    hidden[2, 7] = np.nan
    logits = framework.run("lm_head", hidden, weight, bias)
    assert_bits_equal(logits[[0, 1, 3, 4]], alone[[0, 1, 3, 4]])


@both
def test_repeated_runs_agree(framework):
    hidden, (weight, bias) = normal(17, WIDTH), model(np.float32)
    first = framework.run("lm_head", hidden, weight, bias)
    for run in range(5):
        assert_bits_equal(framework.run("lm_head", hidden, weight, bias), first, context=f"run {run}")


def test_the_number_of_threads_changes_nothing():
    import torch

    hidden, (weight, bias) = normal(33, WIDTH), model(np.float32)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            results.append(TORCH.run("lm_head", hidden, weight, bias))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert_bits_equal(result, results[0])


# Shards of the vocab and of the rows -------------------------------------------------------------------
@dtypes
@both
def test_two_shards_of_the_vocab_equal_the_whole(framework, dtype):
    hidden, weight, bias = normal(3, WIDTH, dtype=dtype), normal(7, WIDTH, dtype=dtype, seed=1), normal(7, seed=2)
    shards = [framework.run("lm_head", hidden, weight[part], bias[part]) for part in (slice(4), slice(4, 7))]
    assert_bits_equal(np.concatenate(shards, axis=-1), framework.run("lm_head", hidden, weight, bias))


@both
def test_rows_of_an_aligned_weight_are_the_rows_aligned(framework):
    hidden, weight = framework.array(normal(3, WIDTH)), framework.array(normal(7, WIDTH, seed=1))
    part = framework.package.align(weight, 4).rows(2, 3)
    assert_bits_equal(framework.package.lm_head(hidden, part), framework.package.lm_head(hidden, weight[2:5]))


@both
def test_chunks_of_rows_equal_the_whole(framework):
    hidden, (weight, bias) = normal(10, WIDTH), model(np.float32)
    chunks = [framework.run("lm_head", hidden[part], weight, bias) for part in (slice(3), slice(3, 10))]
    assert_bits_equal(np.concatenate(chunks), framework.run("lm_head", hidden, weight, bias))


# vmap --------------------------------------------------------------------------------------------------
HIDDEN = normal(2, 3, WIDTH, dtype=BFLOAT16)
WEIGHT = normal(2, 5, WIDTH, seed=1)
BIAS = normal(2, 5, dtype=np.float16, seed=2)


def expected(hidden: Array, weight: Array, bias: Array | None = None) -> Array:
    return contract.lm_head(hidden, weight, bias, digits=3)


@pytest.mark.parametrize("axis", [0, 1])
@both
def test_vmap_over_hidden(framework, axis):
    weight, bias = framework.array(WEIGHT[0]), framework.array(BIAS[0])
    batched = framework.vmap(lambda hidden: framework.package.lm_head(hidden, weight, bias, digits=3), axis)
    moved = np.moveaxis(HIDDEN, axis, 0)
    assert_bits_equal(batched(framework.array(HIDDEN)), expected(moved, WEIGHT[0], BIAS[0]))


@pytest.mark.parametrize("axis", [0, 2])
@both
def test_vmap_over_weight(framework, axis):
    hidden = framework.array(HIDDEN[0])
    batched = framework.vmap(lambda weight: framework.package.lm_head(hidden, weight, digits=3), axis)
    stacked = np.stack([expected(HIDDEN[0], weight) for weight in WEIGHT])
    assert_bits_equal(batched(framework.array(np.moveaxis(WEIGHT, 0, axis))), stacked)


@both
def test_vmap_over_bias(framework):
    hidden, weight = framework.array(HIDDEN[0]), framework.array(WEIGHT[0])
    batched = framework.vmap(lambda bias: framework.package.lm_head(hidden, weight, bias, digits=3))
    assert_bits_equal(batched(framework.array(BIAS)), np.stack([expected(HIDDEN[0], WEIGHT[0], b) for b in BIAS]))


@both
def test_vmap_over_all(framework):
    batched = framework.vmap(lambda *args: framework.package.lm_head(*args, digits=3))
    stacked = np.stack([expected(*args) for args in zip(HIDDEN, WEIGHT, BIAS, strict=True)])
    assert_bits_equal(batched(*map(framework.array, (HIDDEN, WEIGHT, BIAS))), stacked)


@both
def test_vmap_over_hidden_with_an_aligned_weight(framework):
    aligned = framework.package.align(framework.array(WEIGHT[0]), 3)
    batched = framework.vmap(lambda hidden: framework.package.lm_head(hidden, aligned))
    assert_bits_equal(batched(framework.array(HIDDEN)), expected(HIDDEN, WEIGHT[0]))


@pytest.mark.parametrize("axis", [0, 1])
@both
def test_vmap_over_align(framework, axis):
    hidden = framework.array(HIDDEN[0])
    batched = framework.vmap(lambda w: framework.package.lm_head(hidden, framework.package.align(w, 3)), axis)
    stacked = np.stack([expected(HIDDEN[0], weight) for weight in WEIGHT])
    assert_bits_equal(batched(framework.array(np.moveaxis(WEIGHT, 0, axis))), stacked)


@eager_and_compiled
@both
def test_nested_vmap(framework, compiled):
    """Every weight with every row of hidden."""

    def every(hidden: Any, weights: Any) -> Any:
        def row_by_row(weight: Any) -> Any:
            return framework.vmap(lambda row: framework.package.lm_head(row, weight, digits=3))(hidden)

        return framework.vmap(row_by_row)(weights)

    call = framework.compiled(every) if compiled else every
    stacked = np.stack([expected(HIDDEN[0], weight) for weight in WEIGHT])
    assert_bits_equal(call(framework.array(HIDDEN[0]), framework.array(WEIGHT)), stacked)


@both
def test_vmap_over_an_empty_batch_of_rows(framework):
    weight = framework.array(WEIGHT[0])
    batched = framework.vmap(lambda hidden: framework.package.lm_head(hidden, weight))
    assert_bits_equal(batched(framework.array(HIDDEN[:0])), np.zeros((0, 3, 5), BFLOAT16))


# Embedding ---------------------------------------------------------------------------------------------
TABLES = normal(2, 9, 5, dtype=BFLOAT16)
IDS = np.array([[3, 1, 8], [0, 0, 7]], np.int32)


@eager_and_compiled
@both
def test_vmap_over_ids(framework, compiled):
    table = framework.array(TABLES[0])
    batched = framework.vmap(lambda ids: framework.package.embedding(ids, table))
    batched = framework.compiled(batched) if compiled else batched
    assert_bits_equal(batched(framework.array(IDS)), TABLES[0][IDS])


@both
def test_vmap_over_tables(framework):
    batched = framework.vmap(lambda table: framework.package.embedding_fp32([2, 0], table))
    assert_bits_equal(batched(framework.array(TABLES)), TABLES[:, [2, 0]].astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1])
@both
def test_vmap_over_ids_and_tables(framework, axis):
    batched = framework.vmap(framework.package.embedding, (axis, 0))
    ids = framework.array(np.moveaxis(IDS, 0, axis).copy())
    rows = np.stack([table[row] for table, row in zip(TABLES, IDS, strict=True)])
    assert_bits_equal(batched(ids, framework.array(TABLES)), rows)
