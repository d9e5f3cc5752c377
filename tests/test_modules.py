"""An LM head and its table as modules of torch and pytrees of JAX: tied or not, they stay what they are."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from frameworks import BFLOAT16, FLOATS, JAX, TORCH, both
from gradients import normal, value_and_gradients
from safetensors.numpy import load_file
from safetensors.torch import save_model

from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal


# The head ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("digits", [None, 2])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@both
def test_a_head_is_its_functions(framework, dtype, digits):
    hidden, weight, bias = (normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(((3, 6), (9, 6), (9,))))
    head = framework.package.LMHead(framework.array(weight), framework.array(bias), digits=digits)
    x = framework.array(hidden)
    assert_bits_equal(head(x), contract.lm_head(hidden, weight, bias, digits=digits))
    assert_bits_equal(head.fp32(x), contract.lm_head_fp32(hidden, weight, bias, digits=digits or 4))
    assert (head.shape, head.tied, head.digits) == ((9, 6), False, digits)


@pytest.mark.parametrize(("dtype", "digits"), [(BFLOAT16, 3), (np.dtype(np.float32), 4)], ids=str)
@both
def test_an_aligned_head_is_the_same_head(framework, dtype, digits):
    hidden, weight, bias = (normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(((3, 6), (9, 6), (9,))))
    head = framework.package.LMHead(framework.array(weight), framework.array(bias)).aligned()
    assert (head.digits, head.weight.digits, head.aligned(digits).weight.digits) == (digits, digits, digits)
    assert_bits_equal(head(framework.array(hidden)), contract.lm_head(hidden, weight, bias))
    with pytest.raises(ValueError, match=r"^weight is aligned with \d digits and the head uses 2; expected one number"):
        head.aligned(2)


@both
def test_a_tied_head_shares_the_weight_and_not_the_scale(framework):
    weight, hidden = normal(9, 6), normal(3, 6, seed=1)
    table = framework.package.EmbeddingTable(framework.array(weight), scale=64)
    head = framework.package.LMHead(table)
    assert head.tied and head.weight is table.weight
    assert_bits_equal(head(framework.array(hidden)), contract.lm_head(hidden, weight))


@both
def test_a_head_on_a_quantized_table(framework):
    weight, hidden = normal(9, 6), normal(3, 6, seed=1)
    table = framework.package.quantize(framework.array(weight))
    expected = contract.lm_head(hidden, as_numpy(table.dequantized()))
    for head in (framework.package.LMHead(table), framework.package.LMHead(framework.package.EmbeddingTable(table))):
        assert_bits_equal(head(framework.array(hidden)), expected)
    assert_bits_equal(head.aligned(4)(framework.array(hidden)), expected)


MISTAKES = {
    "a table in host memory": (
        lambda p, a: p.LMHead(p.EmbeddingTable(a(np.ones((2, 3), np.float32)), residency="host")), ValueError,
        "weight is a table in host memory; expected one on a device: an LM head reads all rows in each call",
    ),
    "a bias of another length": (
        lambda p, a: p.LMHead(a(np.ones((2, 3), np.float32)), a(np.ones(3, np.float32))), ValueError,
        "bias has shape (3,); expected (2,), one value a row of weight",
    ),
    "other digits than those of the weight": (
        lambda p, a: p.LMHead(p.align(a(np.ones((2, 3), np.float32)), 3), digits=4), ValueError,
        "weight is aligned with 3 digits and the head uses 4; expected one number: align(weight, 4), or digits=3",
    ),
    "five digits": (
        lambda p, a: p.LMHead(a(np.ones((2, 3), np.float32)), digits=5), ValueError,
        "digits is 5; expected 2 (coarse), 3 or 4 (ground truth)",
    ),
    "integers": (
        lambda p, a: p.LMHead(a(np.ones((2, 3), np.int8))), TypeError,
        "weight has dtype int8; expected bfloat16, float16 or float32: convert it first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
@both
def test_the_error_says_what_is_wrong(framework, name):
    call, error, text = MISTAKES[name]
    with pytest.raises(error) as raised:
        call(framework.package, framework.array)
    assert str(raised.value) == text


# Modules of torch --------------------------------------------------------------------------------------
class Model(torch.nn.Module):
    """A model of nothing else."""

    def __init__(self, tied: bool, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        one, other = (torch.randn(5, 4, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(2))
        self.embed_tokens = TORCH.package.EmbeddingTable(one)
        self.lm_head = TORCH.package.LMHead(self.embed_tokens if tied else other)

    def forward(self, token_ids: Any) -> torch.Tensor:
        return self.lm_head(self.embed_tokens(token_ids))


@pytest.mark.parametrize("tied", [False, True])
def test_the_state_of_a_model_comes_back(tied):
    model, other = Model(tied), Model(tied)
    with torch.no_grad():
        other.embed_tokens.weight.zero_()
    other.load_state_dict(model.state_dict())
    assert (other.lm_head.weight is other.embed_tokens.weight) == tied
    assert len(list(other.parameters())) == (1 if tied else 2)
    assert sorted(other.state_dict()) == ["embed_tokens.weight", "lm_head.weight"]
    assert_bits_equal(other([1, 4]), model([1, 4]))


def test_tying_by_torch_is_one_parameter_and_one_tensor_in_the_file(tmp_path):
    model = Model(False)
    model.lm_head.weight = model.embed_tokens.weight
    assert len(list(model.parameters())) == 1
    save_model(model, str(tmp_path / "all.safetensors"))
    TORCH.package.save_embedding_and_head(tmp_path / "ours.safetensors", model.embed_tokens, model.lm_head)
    assert [len(load_file(tmp_path / name)) for name in ("all.safetensors", "ours.safetensors")] == [1, 1]


def test_a_cast_or_copied_model_stays_tied():
    for model in (copy.deepcopy(Model(True)), Model(True).bfloat16(), Model(True).to("cpu", torch.float16)):
        assert model.lm_head.weight is model.embed_tokens.weight


def test_both_uses_of_a_tied_weight_have_gradients():
    model = Model(True)
    model([1, 1]).sum().backward()
    alone = Model(False)
    alone.lm_head.weight = torch.nn.Parameter(model.embed_tokens.weight.detach().clone())
    alone([1, 1]).sum().backward()
    assert_bits_equal(model.embed_tokens.weight.grad, alone.embed_tokens.weight.grad + alone.lm_head.weight.grad)


def test_an_aligned_head_moves_and_is_no_part_of_the_state():
    head = Model(False).lm_head.aligned(3)
    assert list(head.state_dict()) == []
    assert head.bfloat16().weight.planes.dtype == torch.int8
    assert head.to("meta").weight.device.type == "meta"


def test_an_aligned_head_refuses_the_gradient_of_its_weight():
    head = Model(False).lm_head.aligned(4)
    with pytest.raises(NotImplementedError, match="the gradient of an Aligned is not offered"):
        head(torch.ones(4)).sum().backward()


# Pytrees of JAX ----------------------------------------------------------------------------------------
def test_a_head_is_a_pytree_that_jit_takes():
    head = JAX.package.LMHead(normal(9, 6), normal(9), digits=3)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(head)]
    assert paths == [".weight", ".bias"]
    hidden = normal(2, 6, seed=1)
    expected = contract.lm_head(hidden, normal(9, 6), normal(9), digits=3)
    assert_bits_equal(jax.jit(lambda head, x: head(x))(head, hidden), expected)
    doubled = jax.tree.map(lambda x: x + x, head)
    assert (doubled.digits, type(doubled)) == (3, JAX.package.LMHead)


def test_gradients_of_a_head_are_a_head():
    hidden, weight, grad = normal(2, 6, seed=1), normal(9, 6), normal(2, 9, seed=2)
    _, pull = jax.vjp(lambda head: head(hidden), JAX.package.LMHead(weight))
    (found,) = pull(jnp.asarray(grad))
    assert_bits_equal(found.weight, contract.lm_head_grads(grad, hidden, weight)[1])


def test_a_head_that_is_tied_where_the_loss_is_computed_adds_both_gradients():
    weight, ids, grad = normal(9, 6), np.array([3, 3]), normal(2, 9, seed=2)
    table = JAX.package.EmbeddingTable(weight)

    def logits(table: Any) -> Any:
        return JAX.package.LMHead(table)(table(ids))

    found = value_and_gradients(JAX, lambda w: logits(JAX.package.EmbeddingTable(w)), [table.weight], [0], grad)[1][0]
    of_hidden, of_weight, _ = contract.lm_head_grads(grad, weight[ids], weight)
    of_table = contract.embedding_grad(ids, of_hidden, 9, np.float32)
    assert_bits_equal(found, of_weight + of_table)
