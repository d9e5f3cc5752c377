"""Arguments at the corners of Python, NumPy and the transformations get the bits or a sentence, never an accident."""

import copy
import pickle

import jax
import numpy as np
import pytest
import torch
from frameworks import FRAMEWORKS, JAX, TORCH, both

import rlk_jax
import rlk_torch
from crosscheck import contract
from crosscheck.bits import assert_bits_equal


def table(rows=8, width=65):
    return np.random.default_rng([rows, width]).standard_normal((rows, width)).astype(np.float32)


@both
@pytest.mark.parametrize(
    ("ids", "position", "value"),
    [
        ([2**64], 0, 2**64),
        ([-(2**63) - 1], 0, -(2**63) - 1),
        ([1, 2**63], 1, 2**63),
        ([np.uint64(1), np.int64(-1)], 1, -1),
    ],
    ids=["above-uint64", "below-int64", "mixed-with-2^63", "mixed-numpy"],
)
def test_integers_that_numpy_would_turn_into_floats_are_bad_ids(ids, position, value, framework):
    with pytest.raises(IndexError, match=rf"^token_ids\[{position}\] is {value}; expected 0 <= id < 8, the vocab"):
        framework.package.embedding(ids, framework.array(table()))


@both
def test_unchecked_integers_of_any_size_give_poison(framework):
    rows = framework.package.embedding([2**70, 1], framework.array(table()), check_ids=False)
    assert_bits_equal(rows, contract.embedding([-1, 1], table(), check_ids=False))


@both
def test_a_bool_among_integers_is_refused(framework):
    with pytest.raises(TypeError, match="token_ids has dtype bool"):
        framework.package.embedding([True, 1], framework.array(table()))


@both
def test_a_ragged_list_is_refused(framework):
    with pytest.raises(ValueError, match="ragged list; expected rows of one length: pad them first"):
        framework.package.embedding([[1], [2, 3]], framework.array(table()))


@pytest.mark.parametrize(
    "call", [lambda w: rlk_torch.lm_head(torch.ones(2, 65), w), lambda w: rlk_torch.embedding([1], w)]
)
def test_a_sparse_weight_is_refused(call):
    with pytest.raises(TypeError, match=r"has layout torch.sparse_coo; expected a dense array"):
        call(torch.from_numpy(table()).to_sparse())


def test_an_empty_batch_of_weights_gives_an_empty_result():
    weight, hidden = torch.from_numpy(table()), torch.from_numpy(table())[:4]
    none = weight[None][:0]
    shapes = [
        torch.func.vmap(lambda w: rlk_torch.lm_head(hidden, w))(none).shape,
        torch.func.vmap(lambda w: rlk_torch.embedding([1, 2], w))(none).shape,
    ]
    assert shapes == [(0, 4, 8), (0, 2, 65)]


@pytest.mark.parametrize(("rows", "vocab"), [(513, 1), (512, 513), (600, 1025)], ids=str)
def test_tiles_of_one_axis_alone_work_in_64_bit_mode(rows, vocab):
    hidden, weight = table(rows, 2), table(vocab, 2)
    with jax.enable_x64(True):
        assert_bits_equal(rlk_jax.lm_head(hidden, weight), contract.lm_head(hidden, weight))


def test_a_traced_digits_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"digits is traced; .* static_argnames of jax.jit"):
        jax.jit(lambda h, w, digits: rlk_jax.lm_head(h, w, digits=digits))(table(), table(), 3)


@both
def test_an_aligned_weight_prints_in_one_line(framework):
    shown = repr(framework.package.align(framework.array(table()), 3))
    assert shown.startswith("Aligned(shape=(8, 65), digits=3, device=cpu")


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_of_an_aligned_weight_gives_the_same_bits(copied, framework):
    hidden, weight = framework.array(table(3)), framework.package.align(framework.array(table()), 3)
    again = framework.package.lm_head(hidden, copied(weight), digits=3)
    assert_bits_equal(again, framework.package.lm_head(hidden, weight, digits=3))


def test_an_aligned_parameter_can_be_copied():
    aligned = rlk_torch.align(torch.nn.Parameter(torch.from_numpy(table())), 3)
    assert_bits_equal(copy.deepcopy(aligned).planes, aligned.planes)


def test_both_packages_refuse_with_the_same_words():
    said = []
    for framework in (TORCH, JAX):
        with pytest.raises(IndexError) as caught:
            framework.package.embedding([1, 2**63], framework.array(table()))
        said.append(str(caught.value))
    assert said[0] == said[1]
