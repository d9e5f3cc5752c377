"""Second derivatives, forward mode and gradients of an `Aligned` are refused in a sentence, in both packages."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from frameworks import eager_and_compiled
from gradients import normal

import rlk_jax
import rlk_torch

HIDDEN, WEIGHT = normal(5, 6), normal(4, 6, seed=1)


ONE = normal(4, 3)
TORCH_OPS = {
    "lm_head": lambda x: rlk_torch.lm_head(x, torch.tensor(ONE)),
    "lm_head of weight": lambda x: rlk_torch.lm_head_fp32(torch.tensor(ONE), x),
    "lm_head of bias": lambda x: rlk_torch.lm_head(torch.tensor(ONE), torch.tensor(ONE), x[:, 0]),
    "embedding": lambda x: rlk_torch.embedding([1, 1, 3], x),
    "embedding widened": lambda x: rlk_torch.embedding_fp32([1, 1, 3], x.bfloat16()),
}
JAX_OPS = {
    "lm_head": lambda x: rlk_jax.lm_head(x, jnp.asarray(ONE)),
    "lm_head of weight": lambda x: rlk_jax.lm_head_fp32(jnp.asarray(ONE), x),
    "lm_head of bias": lambda x: rlk_jax.lm_head(jnp.asarray(ONE), jnp.asarray(ONE), x[:, 0]),
    "embedding": lambda x: rlk_jax.embedding([1, 1, 3], x),
    "embedding widened": lambda x: rlk_jax.embedding_fp32([1, 1, 3], x.astype(jnp.bfloat16)),
}
each_op = pytest.mark.parametrize("op", TORCH_OPS)


def assert_refused(sentence: str, call: Any, *args: Any) -> None:
    __tracebackhide__ = True
    with pytest.raises(NotImplementedError) as raised:
        call(*args)
    assert str(raised.value) == sentence


@each_op
def test_second_derivatives_are_refused_in_torch(op):
    function, name = TORCH_OPS[op], op.split()[0]
    sentence = f"second derivatives of {name} are not offered: detach its gradient, or do without create_graph=True"

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (function(x) ** 2).sum()

    def twice(x: torch.Tensor) -> Any:
        (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)

    assert_refused(sentence, twice, torch.tensor(ONE, requires_grad=True))
    assert_refused(sentence, torch.func.grad(lambda x: torch.func.grad(loss)(x).sum()), torch.tensor(ONE))


@each_op
def test_second_derivatives_are_refused_in_jax(op):
    function, name = JAX_OPS[op], op.split()[0]
    twice = jax.grad(lambda x: jax.grad(lambda x: (function(x) ** 2).sum())(x).sum())
    sentence = f"second derivatives of {name} are not offered: use jax.lax.stop_gradient on its gradient"
    assert_refused(sentence, jax.jit(twice), jnp.asarray(ONE))
    if op == "lm_head":
        assert_refused(sentence, twice, jnp.asarray(ONE))


# torch.func.jvp itself still uses torch.jit.script (torch 2.13).
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@each_op
def test_forward_mode_is_refused_in_torch(op):
    function, x = TORCH_OPS[op], torch.tensor(ONE)
    sentence = (
        f"forward mode (torch.func.jvp, torch.autograd.forward_ad) of {op.split()[0]} is not offered: "
        "use torch.func.grad, torch.func.vjp or backward()"
    )
    assert_refused(sentence, torch.func.jvp, function, (x,), (x,))
    assert_refused(sentence, torch.func.jacfwd(function), x)
    with torch.autograd.forward_ad.dual_level():
        assert_refused(sentence, function, torch.autograd.forward_ad.make_dual(x, x))


@each_op
def test_forward_mode_is_refused_in_jax(op):
    function, x = JAX_OPS[op], jnp.asarray(ONE)
    sentence = f"forward mode (jax.jvp, jax.linearize) of {op.split()[0]} is not offered: use jax.grad or jax.vjp"
    assert_refused(sentence, jax.jvp, function, (x,), (x,))
    assert_refused(sentence, jax.jit(lambda x: jax.jvp(function, (x,), (x,))), x)
    assert_refused(sentence, lambda x: jax.linearize(function, x)[1](x), x)


@eager_and_compiled
def test_the_gradient_of_an_aligned_weight_is_refused(compiled):
    start = "the gradient of an Aligned is not offered, it is a constant: pass the weight itself, or "

    def in_torch(weight: torch.Tensor) -> torch.Tensor:
        return rlk_torch.lm_head(torch.tensor(HIDDEN), rlk_torch.align(weight, 4)).sum()

    def in_jax(weight: jax.Array) -> jax.Array:
        return rlk_jax.lm_head(HIDDEN, rlk_jax.align(weight, 4)).sum()

    if not compiled:  # torch's compiler wraps what is raised
        end = "align(x.detach(), digits)"
        assert_refused(start + end, lambda w: in_torch(w).backward(), torch.tensor(WEIGHT, requires_grad=True))
        assert_refused(start + end, torch.func.grad(in_torch), torch.tensor(WEIGHT))
    grad = jax.jit(jax.grad(in_jax)) if compiled else jax.grad(in_jax)
    assert_refused(start + "align(jax.lax.stop_gradient(x), digits)", grad, jnp.asarray(WEIGHT))
