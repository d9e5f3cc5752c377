"""A gradient that is not offered is refused in a sentence, in every way of asking; none is ever silently zero."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.autograd import forward_ad

import rlk_jax
import rlk_torch

# torch.func.jvp itself still uses torch.jit.script (torch 2.13).
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

LM_HEAD = "the gradient of lm_head is not offered yet: "
EMBEDDING = "the gradient of embedding is not offered yet: "
ALIGNED = "the gradient of an Aligned is not offered, it is a constant: pass the weight itself, or "
IN_TORCH = {
    LM_HEAD: "detach the arguments, or call it under torch.no_grad()",
    EMBEDDING: "detach weight, or call it under torch.no_grad()",
    ALIGNED: "align(x.detach(), digits)",
}
IN_JAX = {
    LM_HEAD: "use jax.lax.stop_gradient on the arguments",
    EMBEDDING: "use jax.lax.stop_gradient on weight",
    ALIGNED: "align(jax.lax.stop_gradient(x), digits)",
}


def functions(package: Any, ones: Any) -> dict[str, Any]:
    """Functions of one [4, 4] argument, by the operator whose gradient they would need."""
    return {
        "hidden": (lambda x: package.lm_head(x, ones), LM_HEAD),
        "weight": (lambda x: package.lm_head_fp32(ones, x), LM_HEAD),
        "bias": (lambda x: package.lm_head(ones, ones, x[0]), LM_HEAD),
        "hidden of an aligned weight": (lambda x: package.lm_head(x, package.align(ones, 4)), LM_HEAD),
        "table": (lambda x: package.embedding([1, 2], x), EMBEDDING),
        "table, widened": (lambda x: package.embedding_fp32([1, 2], x), EMBEDDING),
        "aligned weight": (lambda x: package.lm_head(ones, package.align(x, 4)), ALIGNED),
        "weight through get_op": (lambda x: package.get_op("lm_head")(ones, x), LM_HEAD),
    }


ONES = torch.ones(4, 4)
TORCH = functions(rlk_torch, ONES)
JAX = functions(rlk_jax, jnp.ones((4, 4)))
names = pytest.mark.parametrize("name", TORCH)


def backward(f: Any) -> None:
    f(ONES.clone().requires_grad_()).sum().backward()


def forward_mode(f: Any) -> None:
    with forward_ad.dual_level():
        f(forward_ad.make_dual(ONES, ONES))


def under_vmap(f: Any) -> None:
    torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(torch.ones(2, 4, 4))


WAYS_IN_TORCH = {
    "backward": backward,
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(ONES),
    "grad under vmap": under_vmap,
    "jacrev": lambda f: torch.func.jacrev(f)(ONES),
    "jvp": lambda f: torch.func.jvp(f, (ONES,), (ONES,)),
    "forward mode": forward_mode,
}


@names
@pytest.mark.parametrize("way", WAYS_IN_TORCH)
def test_torch_refuses(way, name):
    function, start = TORCH[name]
    with pytest.raises(NotImplementedError) as raised:
        WAYS_IN_TORCH[way](function)
    # In reverse mode the LM head is asked first, and it refuses before the Aligned can.
    assert str(raised.value) in {start + IN_TORCH[start], LM_HEAD + IN_TORCH[LM_HEAD]}


WAYS_IN_JAX = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(jnp.ones((4, 4))),
    "grad under jit": lambda f: jax.jit(jax.grad(lambda x: f(x).sum()))(jnp.ones((4, 4))),
    "grad of jit": lambda f: jax.grad(lambda x: jax.jit(f)(x).sum())(jnp.ones((4, 4))),
    "grad under vmap": lambda f: jax.vmap(jax.grad(lambda x: f(x).sum()))(jnp.ones((2, 4, 4))),
    "vjp": lambda f: jax.vjp(f, jnp.ones((4, 4))),
    "jvp": lambda f: jax.jvp(f, (jnp.ones((4, 4)),), (jnp.ones((4, 4)),)),
    "linearize": lambda f: jax.linearize(f, jnp.ones((4, 4))),
}


@names
@pytest.mark.parametrize("way", WAYS_IN_JAX)
def test_jax_refuses(way, name):
    function, start = JAX[name]
    with pytest.raises(NotImplementedError) as raised:
        WAYS_IN_JAX[way](function)
    assert str(raised.value) == start + IN_JAX[start]


@names
def test_torch_without_grad_mode_gives_the_result(name):
    function, _ = TORCH[name]
    with torch.no_grad():
        assert not function(ONES.clone().requires_grad_()).requires_grad


@names
def test_the_remedy_of_torch(name):
    function, _ = TORCH[name]
    x = ONES.clone().requires_grad_()
    (function(x.detach()).sum() * x.sum()).backward()
    assert x.grad is not None


@names
def test_the_remedy_of_jax(name):
    function, _ = JAX[name]
    grad = jax.grad(lambda x: function(jax.lax.stop_gradient(x)).sum() * x.sum())(jnp.ones((4, 4)))
    assert grad.shape == (4, 4)


def test_torch_refuses_when_it_compiles_for_a_gradient():
    compiled = torch.compile(lambda x: rlk_torch.lm_head(x, ONES))
    with pytest.raises(Exception, match=LM_HEAD), pytest.warns(UserWarning, match="Error detected in"):
        compiled(ONES.clone().requires_grad_())
