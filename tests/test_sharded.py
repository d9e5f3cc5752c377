"""Parts of the hidden dimension in one process have the bits of the whole, in both packages; so do rows of a vocab."""

from itertools import pairwise

import jax
import numpy as np
import pytest
import torch
from frameworks import BFLOAT16, FLOATS, JAX, TORCH, both
from gradients import normal, value_and_gradients

import rlk_jax
import rlk_torch
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

CUTS = {"one part": (0, 13), "two": (0, 4, 13), "elements": tuple(range(14)), "empty ones": (0, 0, 7, 7, 13, 13)}


def cut(x, cuts):
    return [x[..., start:end] for start, end in pairwise(cuts)]


def of_parts(framework, hidden, weight, bias, grad, cuts, op="lm_head_of_parts", **options):
    """Logits and the gradients of all parts, joined."""
    hiddens, weights, count = cut(hidden, cuts), cut(weight, cuts), len(cuts) - 1
    operator = getattr(framework.package, op)

    def function(*operands):
        others = operands[2 * count :]
        return operator(operands[:count], operands[count : 2 * count], *others, **options)

    operands = [framework.array(x) for x in (*hiddens, *weights, bias) if x is not None]
    value, found = value_and_gradients(framework, function, operands, range(len(operands)), framework.array(grad))
    joined = np.concatenate(found[:count], -1), np.concatenate(found[count : 2 * count], -1)
    return value, (*joined, *found[2 * count :])


# JAX compiles each of these for seconds; tests/test_sharded_jax.py has more of it.
@pytest.mark.parametrize(
    ("framework", "cuts", "digits"),
    [pytest.param(TORCH, CUTS[cuts], digits, id=f"torch-{cuts}-{digits}") for cuts in CUTS for digits in (None, 2, 4)]
    + [pytest.param(JAX, CUTS["empty ones"], None, id="jax-empty ones-None")],
)
def test_parts_have_the_bits_of_the_whole(framework, cuts, digits):
    hidden, weight, bias = normal(6, 13, dtype=BFLOAT16), normal(7, 13, seed=1), normal(7, dtype=np.float16, seed=2)
    hidden[1, 5], weight[3, 11], weight[4, 12] = 1000, 2.0**30, np.nan
    grad = normal(6, 7, dtype=BFLOAT16, seed=3)
    value, found = of_parts(framework, hidden, weight, bias, grad, cuts, digits=digits)
    assert_bits_equal(value, contract.lm_head(hidden, weight, bias, digits=digits))
    for one, other in zip(found, contract.lm_head_grads(grad, hidden, weight, bias.dtype), strict=True):
        assert_bits_equal(one, other)


@pytest.mark.parametrize(
    ("framework", "dtype"),
    [pytest.param(TORCH, dtype, id=f"torch-{dtype}") for dtype in FLOATS] + [pytest.param(JAX, FLOATS[1], id="jax")],
)
def test_the_ground_truth_of_parts(framework, dtype):
    hidden, weight, grad = normal(5, 13, dtype=dtype), normal(600, 13, seed=1), normal(5, 600, seed=3)
    value, found = of_parts(framework, hidden, weight, None, grad, CUTS["two"], "lm_head_of_parts_fp32")
    assert_bits_equal(value, contract.lm_head_fp32(hidden, weight))
    for one, other in zip(found, contract.lm_head_grads(grad, hidden, weight), strict=False):
        assert_bits_equal(one, other)


@both
def test_parts_without_rows(framework):
    value, found = of_parts(framework, normal(0, 13), normal(3, 13), None, normal(0, 3), CUTS["two"])
    assert value.shape == (0, 3)
    assert_bits_equal(found[1], np.zeros((3, 13), np.float32))


@both
@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (([(2, 3)], []), "hidden_parts has 1 parts and weight_parts 0; expected the same number, at least 1"),
        (([], []), "hidden_parts has 0 parts and weight_parts 0; expected the same number, at least 1"),
        (
            ([(4, 3), (2, 3)], [(8, 3), (8, 3)]),
            "hidden_parts[1] is float32 (2, 3) and hidden_parts[0] float32 (4, 3); expected one leading shape and "
            "dtype",
        ),
        (
            ([(4, 3), (4, 3)], [(8, 3), (7, 3)]),
            "weight_parts[1] is float32 (7, 3) and weight_parts[0] float32 (8, 3); expected one vocab and dtype",
        ),
        (
            ([(4, 3)], [(8, 2)]),
            "hidden has shape (4, 3) and weight (8, 2); expected [..., K] and [V, K] with one K: transpose or slice "
            "one of them",
        ),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(framework, shapes, text):
    parts = [[framework.array(normal(*shape)) for shape in some] for some in shapes]
    with pytest.raises(ValueError) as caught:
        framework.package.lm_head_of_parts(*parts)
    assert str(caught.value) == text


@both
def test_an_aligned_part_is_refused(framework):
    hidden, weight = framework.array(normal(2, 3)), framework.array(normal(4, 3))
    with pytest.raises(TypeError) as caught:
        framework.package.lm_head_of_parts([hidden], [framework.package.align(weight, 4)])
    assert str(caught.value) == (
        "weight_parts[0] is an Aligned; expected an array [V, K_r]: rows are aligned over the whole hidden dimension, "
        "which no part has"
    )


@pytest.mark.parametrize("package", [rlk_torch, rlk_jax], ids=lambda package: package.__name__)
def test_the_rows_of_a_shard_are_those_of_torch_chunk(package):
    for vocab in (0, 1, 5, 12, 13):
        for shards in (1, 2, 3, 8, 20):
            chunks = [len(x) for x in torch.arange(vocab).chunk(shards)] if vocab else []
            ranges = [package.shard_range(vocab, shards, index) for index in range(shards)]
            assert [end - start for start, end in ranges] == chunks + [0] * (shards - len(chunks))
            assert all(end == start for (_, end), (start, _) in pairwise(ranges)) and ranges[-1][1] == vocab


@pytest.mark.parametrize("package", [rlk_torch, rlk_jax], ids=lambda package: package.__name__)
@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (("8", 2, 0), TypeError, "vocab is of type str; expected an integer, the rows of the whole weight"),
        ((8, True, 0), TypeError, "shards is of type bool; expected an integer"),
        ((8, 2, 0.0), TypeError, "index is of type float; expected an integer"),
        ((-1, 2, 0), ValueError, "vocab is -1; expected 0 or more"),
        ((8, 0, 0), ValueError, "shards is 0; expected 1 or more"),
        ((8, 2, 2), ValueError, "index is 2; expected 0 <= index < 2, the shards"),
        ((8, 2, -1), ValueError, "index is -1; expected 0 <= index < 2, the shards"),
    ],
)
def test_a_shard_that_is_none_is_refused(package, arguments, kind, text):
    with pytest.raises(kind) as caught:
        package.shard_range(*arguments)
    assert str(caught.value) == text


def test_both_packages_sum_parts_under_jit_and_in_torch_alike():
    hidden, weight = normal(3, 13), normal(5, 13, seed=1)
    parts = cut(hidden, CUTS["two"]), cut(weight, CUTS["two"])
    in_jax = jax.jit(rlk_jax.lm_head_of_parts)(*parts)
    in_torch = rlk_torch.lm_head_of_parts(*([torch.from_numpy(x.copy()) for x in some] for some in parts))
    assert_bits_equal(in_jax, in_torch)
