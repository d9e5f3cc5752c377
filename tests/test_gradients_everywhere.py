"""Strides, leading dimensions, vmap, shards and aligned weights change no gradient, and nothing more is computed."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from frameworks import BFLOAT16, JAX, TORCH, both
from gradients import assert_lm_head, gradients, normal, pull_back
from torch.utils._python_dispatch import TorchDispatchMode

import rlk_jax
import rlk_torch
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

HIDDEN, WEIGHT, BIAS, GRAD = normal(5, 6), normal(4, 6, seed=1), normal(4, seed=2), normal(5, 4, seed=3)
IDS, GRAD_ROWS = np.array([1, 3, 1, 0, 1, 3], np.int32), normal(6, 3, seed=4)
TABLE = normal(5, 3, seed=5)


# Layouts ------------------------------------------------------------------------------------------------------
def every_second(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, -1)[..., ::2]


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim > 1 else every_second(x),
    "every second": every_second,
    "one element further": lambda x: torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape),
    "negative bit": lambda x: torch._neg_view(-x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_torch_takes_operands_and_gradients_of_any_strides_and_leaves_them_alone(layout):
    originals = HIDDEN.astype(BFLOAT16), WEIGHT, BIAS, GRAD.astype(BFLOAT16)
    *operands, grad = placed = [LAYOUTS[layout](TORCH.array(x)) for x in originals]
    actual = gradients(TORCH, "lm_head", *operands, grad=grad)
    assert_lm_head(actual, originals[3], *originals[:2], BIAS.dtype)
    ids, rows = TORCH.array(np.repeat(IDS, 2))[::2], LAYOUTS[layout](TORCH.array(GRAD_ROWS))
    (of_table,) = gradients(TORCH, "embedding", ids, LAYOUTS[layout](TORCH.array(TABLE)), grad=rows)
    assert_bits_equal(of_table, contract.embedding_grad(IDS, GRAD_ROWS, 5, np.float32))
    for x, original in zip([*placed, rows], [*originals, GRAD_ROWS], strict=True):
        assert_bits_equal(x, original, context="an input")


@pytest.mark.parametrize("layout", ["transposed", "every second", "reversed"])
def test_jax_takes_operands_and_gradients_of_any_strides_and_leaves_them_alone(layout):
    change = {
        "transposed": lambda x: np.ascontiguousarray(x.T).T,
        "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        "reversed": lambda x: x[::-1].copy()[::-1],
    }[layout]
    originals = HIDDEN, WEIGHT, BIAS, GRAD
    placed = [change(x) for x in originals]
    actual = pull_back(JAX, rlk_jax.lm_head, placed[:3], (0, 1, 2), placed[3])
    assert_lm_head(actual, GRAD, HIDDEN, WEIGHT, BIAS.dtype)
    rows, ids = change(GRAD_ROWS), np.repeat(IDS, 2)[::2]
    (of_table,) = pull_back(JAX, rlk_jax.embedding, [ids, change(TABLE)], [1], rows)
    assert_bits_equal(of_table, contract.embedding_grad(IDS, GRAD_ROWS, 5, np.float32))
    for x, original in zip([*placed, rows], [*originals, GRAD_ROWS], strict=True):
        assert_bits_equal(x, original, context="an input")


@both
def test_an_expanded_upstream_gradient_counts_every_time(framework):
    """What a plain sum of the results sends back: one number in the place of all."""
    expand = {"torch": lambda x, shape: torch.tensor(x).expand(shape), "jax": jnp.broadcast_to}[framework.name]
    one = np.float32(0.1)
    actual = gradients(framework, "lm_head", HIDDEN, WEIGHT, BIAS, grad=expand(one, (5, 4)))
    assert_lm_head(actual, np.full((5, 4), one), HIDDEN, WEIGHT, BIAS.dtype)
    (of_table,) = gradients(framework, "embedding", IDS, TABLE, grad=expand(one, (6, 3)))
    assert_bits_equal(of_table, contract.embedding_grad(IDS, np.full((6, 3), one), 5, np.float32))


@both
def test_leading_dimensions_are_more_rows(framework):
    hidden, grad = HIDDEN.reshape(1, 5, 1, 6), GRAD.reshape(1, 5, 1, 4)
    of_hidden, of_weight = gradients(framework, "lm_head", hidden, WEIGHT, grad=grad)
    expected = contract.lm_head_grads(GRAD, HIDDEN, WEIGHT)
    assert_bits_equal(of_hidden, expected[0].reshape(hidden.shape))
    assert_bits_equal(of_weight, expected[1])
    ids, rows = IDS.reshape(2, 1, 3), GRAD_ROWS.reshape(2, 1, 3, 3)
    (of_table,) = gradients(framework, "embedding", ids, TABLE, grad=rows)
    assert_bits_equal(of_table, contract.embedding_grad(IDS, GRAD_ROWS, 5, np.float32))


# Transformations ------------------------------------------------------------------------------------------
def of_each(framework: Any, loss: Any, argnum: int, in_axes: Any) -> Any:
    grad = jax.grad(loss, argnum) if framework is JAX else torch.func.grad(loss, argnum)
    return framework.vmap(grad, in_axes)


@both
def test_the_gradients_of_each_example_are_those_of_the_example_alone(framework):
    """vmap of grad, where the gradients stay apart."""
    hidden, grads, ids = normal(3, 5, 6), normal(3, 5, 4, seed=1), np.array([[1, 0], [3, 3], [4, 1]], np.int32)
    package, weight = framework.package, framework.array(WEIGHT)

    def loss(weight: Any, hidden: Any, grad: Any) -> Any:
        return (package.lm_head(hidden, weight) * grad).sum()

    def loss_of_rows(table: Any, ids: Any, grad: Any) -> Any:
        return (package.embedding(ids, table) * grad).sum()

    examples = framework.array(hidden), framework.array(grads)
    of_weight = of_each(framework, loss, 0, (None, 0, 0))(weight, *examples)
    of_hidden = of_each(framework, loss, 1, (None, 0, 0))(weight, *examples)
    rows = normal(3, 2, 3, seed=2)
    of_table = of_each(framework, loss_of_rows, 0, (None, 0, 0))(*map(framework.array, (TABLE, ids, rows)))
    alone = [contract.lm_head_grads(g, h, WEIGHT) for g, h in zip(grads, hidden, strict=True)]
    assert_bits_equal(of_hidden, np.stack([one[0] for one in alone]))
    assert_bits_equal(of_weight, np.stack([one[1] for one in alone]))
    tables = [contract.embedding_grad(i, g, 5, np.float32) for i, g in zip(ids, rows, strict=True)]
    assert_bits_equal(of_table, np.stack(tables))


@both
def test_two_shards_of_the_vocab_give_the_gradient_of_the_whole_weight(framework):
    hidden, weight, grad = HIDDEN, normal(7, 6, seed=1), normal(5, 7, seed=2)
    parts = [
        gradients(framework, "lm_head", hidden, weight[part], grad=np.ascontiguousarray(grad[:, part]))[1]
        for part in (slice(4), slice(4, 7))
    ]
    assert_bits_equal(np.concatenate(parts), contract.lm_head_grads(grad, hidden, weight)[1])


# Aligned weights --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("digits", "compiled"), [(2, False), (3, True), (4, False)], ids=str)
@both
def test_hidden_gets_the_gradient_of_the_matrix_that_an_aligned_weight_stands_for(framework, compiled, digits):
    weight = WEIGHT.copy()
    weight[1] *= 1000
    aligned = contract.align(weight, digits)
    matrix = (aligned.q * aligned.scale()[:, None]).astype(np.float32)  # 24 bits and fewer: exact
    given_ = framework.package.align(framework.array(weight), digits)
    actual = gradients(framework, "lm_head", HIDDEN, given_, BIAS, grad=GRAD, compiled=compiled, digits=digits)
    of_hidden, _, of_bias = contract.lm_head_grads(GRAD, HIDDEN, matrix, BIAS.dtype)
    for one, expected in zip(actual, (of_hidden, of_bias), strict=True):
        assert_bits_equal(one, expected)


@both
def test_a_row_of_an_aligned_weight_that_is_not_finite_makes_hiddens_gradient_nan(framework):
    weight = WEIGHT.copy()
    weight[1, 2] = np.inf
    aligned = framework.package.align(framework.array(weight), 4)
    (actual,) = gradients(framework, "lm_head", HIDDEN, aligned, grad=GRAD)
    assert_bits_equal(actual, np.full_like(HIDDEN, np.nan))


# Only what is asked for -------------------------------------------------------------------------------------
class Operators(TorchDispatchMode):
    """The operators of this package that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "rlk_torch":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


WANTED = [("hidden",), ("weight",), ("bias",), ("hidden", "bias"), ("hidden", "weight", "bias")]
each_wanted = pytest.mark.parametrize("wanted", WANTED, ids="+".join)


@each_wanted
def test_torch_computes_only_the_gradients_that_are_asked_for(wanted):
    operands = {"hidden": torch.tensor(HIDDEN), "weight": torch.tensor(WEIGHT), "bias": torch.tensor(BIAS)}
    for name in wanted:
        operands[name].requires_grad_()
    with Operators() as ran:
        rlk_torch.lm_head(**operands).sum().backward()
    assert ran.names == ["lm_head", *(f"lm_head_grad_{name}" for name in wanted)]


def test_torch_keeps_nothing_for_gradients_that_nobody_asks_for():
    """hidden serves the gradient of weight alone, weight that of hidden alone."""
    for wanted, kept in (("hidden", WEIGHT), ("weight", HIDDEN)):
        operands = {"hidden": torch.tensor(HIDDEN), "weight": torch.tensor(WEIGHT)}
        operands[wanted].requires_grad_()
        saved: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, saved=saved: saved.append(x) or x, lambda x: x):
            rlk_torch.lm_head(**operands)
        assert [tuple(x.shape) for x in saved] == [kept.shape]


@each_wanted
def test_jax_traces_only_the_gradients_that_are_asked_for(wanted):
    positions = tuple(("hidden", "weight", "bias").index(name) for name in wanted)
    loss = jax.grad(lambda *operands: rlk_jax.lm_head(*operands).sum(), argnums=positions)
    traced = str(jax.make_jaxpr(loss)(HIDDEN, WEIGHT, BIAS))
    assert set(re.findall(r"name=grad_(\w+)", traced)) == set(wanted)


@both
def test_tokens_mapped_outside_of_weights_are_still_one_sum(framework):
    hidden, weights, upstream = normal(5, 4, 6), normal(3, 7, 6, seed=1), normal(5, 3, 4, 7, seed=2)
    head = framework.package.lm_head

    def outputs(w):
        inside = framework.vmap(head, (None, 0))
        return framework.vmap(lambda h: inside(h, w), 0)(framework.array(hidden))

    (actual,) = pull_back(framework, outputs, [framework.array(weights)], [0], framework.array(upstream))
    for b in range(3):
        expected = contract.lm_head_grads(upstream[:, b].reshape(20, 7), hidden.reshape(20, 6), weights[b])[1]
        assert_bits_equal(actual[b], expected, context=f"weight {b}")


def test_jax_without_jit_gives_the_same_gradients():
    hidden, weight = jnp.asarray(normal(700, 5)), jnp.asarray(normal(700, 5, seed=1))
    gradient = jax.grad(lambda h: JAX.package.lm_head(h, weight).sum())
    expected = gradient(hidden)
    with jax.disable_jit():
        assert_bits_equal(gradient(hidden), expected)
