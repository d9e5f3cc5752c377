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

ALIGNED = "the gradient of an Aligned is not offered, it is a constant: pass the weight itself, or "
IN_TORCH, IN_JAX = ALIGNED + "align(x.detach(), digits)", ALIGNED + "align(jax.lax.stop_gradient(x), digits)"


def functions(package: Any, ones: Any, to_bfloat16: Any) -> dict[str, Any]:
    """Functions of one [4, 4] argument, by the argument whose gradient they would need."""
    return {
        "hidden": lambda x: package.lm_head(x, ones),
        "weight": lambda x: package.lm_head_fp32(ones, x),
        "bias": lambda x: package.lm_head(ones, ones, x[0]),
        "hidden of an aligned weight": lambda x: package.lm_head(x, package.align(ones, 4)),
        "table": lambda x: package.embedding([1, 2], x),
        "table, widened": lambda x: package.embedding_fp32([1, 2], x),
        "table of bfloat16, widened": lambda x: package.embedding_fp32([1, 1, 3], to_bfloat16(x)),
        "weight through get_op": lambda x: package.get_op("lm_head")(ones, x),
        "aligned weight": lambda x: package.lm_head(ones, package.align(x, 4)),
    }


ONES = torch.ones(4, 4)
TORCH = functions(rlk_torch, ONES, lambda x: x.bfloat16())
JAX = functions(rlk_jax, jnp.ones((4, 4)), lambda x: x.astype(jnp.bfloat16))
names = pytest.mark.parametrize("name", TORCH)
offered = pytest.mark.parametrize("name", [name for name in TORCH if name != "aligned weight"])


def operator(name: str) -> str:
    return "embedding" if "table" in name else "lm_head"


# torch: reverse mode is offered, but for an Aligned ---------------------------------------------------------
def backward(f: Any) -> None:
    f(ONES.clone().requires_grad_()).sum().backward()


def forward_mode(f: Any) -> None:
    with forward_ad.dual_level():
        f(forward_ad.make_dual(ONES, ONES))


def under_vmap(f: Any) -> None:
    torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(torch.ones(2, 4, 4))


def twice(f: Any) -> None:
    x = ONES.clone().requires_grad_()
    (first,) = torch.autograd.grad((f(x) ** 2).sum(), x, create_graph=True)
    first.sum().backward()


REVERSE_IN_TORCH = {
    "backward": backward,
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(ONES),
    "grad under vmap": under_vmap,
    "jacrev": lambda f: torch.func.jacrev(f)(ONES),
}
FORWARD_IN_TORCH = {
    "jvp": lambda f: torch.func.jvp(f, (ONES,), (ONES,)),
    "forward mode": forward_mode,
    "jacfwd": lambda f: torch.func.jacfwd(f)(ONES),
}
SECOND_IN_TORCH = {
    "create_graph": twice,
    "grad of grad": lambda f: torch.func.grad(lambda x: torch.func.grad(lambda x: (f(x) ** 2).sum())(x).sum())(ONES),
}


@pytest.mark.parametrize("way", {**REVERSE_IN_TORCH, **FORWARD_IN_TORCH})
def test_torch_refuses_the_gradient_of_an_aligned(way):
    with pytest.raises(NotImplementedError) as raised:
        {**REVERSE_IN_TORCH, **FORWARD_IN_TORCH}[way](TORCH["aligned weight"])
    assert str(raised.value) == IN_TORCH


@offered
@pytest.mark.parametrize("way", FORWARD_IN_TORCH)
def test_torch_refuses_forward_mode(way, name):
    with pytest.raises(NotImplementedError) as raised:
        FORWARD_IN_TORCH[way](TORCH[name])
    assert str(raised.value) == (
        f"forward mode (torch.func.jvp, torch.autograd.forward_ad) of {operator(name)} is not offered: "
        "use torch.func.grad, torch.func.vjp or backward()"
    )


@pytest.mark.parametrize("name", ["hidden", "table"])
def test_torch_refuses_forward_mode_in_compiled_code(name):
    with pytest.raises(NotImplementedError, match=r"^forward mode .* is not offered"):
        torch.compile(lambda x: torch.func.jvp(TORCH[name], (x,), (x,)))(ONES)


@offered
@pytest.mark.parametrize("way", SECOND_IN_TORCH)
def test_torch_refuses_second_derivatives(way, name):
    with pytest.raises(NotImplementedError) as raised:
        SECOND_IN_TORCH[way](TORCH[name])
    assert str(raised.value) == (
        f"second derivatives of {operator(name)} are not offered: detach its gradient, or do without create_graph=True"
    )


# JAX: reverse mode is offered, but for an Aligned -----------------------------------------------------------
X = jnp.ones((4, 4))
REVERSE_IN_JAX = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(X),
    "grad under jit": lambda f: jax.jit(jax.grad(lambda x: f(x).sum()))(X),
    "grad of jit": lambda f: jax.grad(lambda x: jax.jit(f)(x).sum())(X),
    "grad under vmap": lambda f: jax.vmap(jax.grad(lambda x: f(x).sum()))(jnp.ones((2, 4, 4))),
    "vjp": lambda f: jax.vjp(f, X),
}
FORWARD_IN_JAX = {
    "jvp": lambda f: jax.jvp(f, (X,), (X,)),
    "jvp under jit": lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(X),
    "jvp under vmap": lambda f: jax.vmap(lambda x: jax.jvp(f, (x,), (x,)))(jnp.ones((2, 4, 4))),
    "jvp of vmap": lambda f: jax.jvp(jax.vmap(f), (jnp.ones((2, 4, 4)),), (jnp.ones((2, 4, 4)),)),
    "linearize": lambda f: jax.linearize(f, X)[1](X),
    "jacfwd": lambda f: jax.jacfwd(f)(X),
}
TWICE_REVERSE_IN_JAX = {
    "grad of grad": lambda f: jax.grad(lambda x: (jax.grad(f)(x) ** 2).sum())(X),
    "grad of grad under jit": lambda f: jax.jit(jax.grad(lambda x: jax.grad(f)(x).sum()))(X),
}
SECOND_IN_JAX = {
    **TWICE_REVERSE_IN_JAX,
    "hessian": lambda f: jax.hessian(f)(X),
    "hessian under jit": lambda f: jax.jit(jax.hessian(f))(X),
    "jvp of grad": lambda f: jax.jvp(jax.grad(f), (X,), (X,)),
}


@pytest.mark.parametrize("way", {**REVERSE_IN_JAX, **FORWARD_IN_JAX})
def test_jax_refuses_the_gradient_of_an_aligned(way):
    with pytest.raises(NotImplementedError) as raised:
        {**REVERSE_IN_JAX, **FORWARD_IN_JAX}[way](JAX["aligned weight"])
    assert str(raised.value) == IN_JAX


@offered
@pytest.mark.parametrize("way", FORWARD_IN_JAX)
def test_jax_refuses_forward_mode(way, name):
    with pytest.raises(NotImplementedError) as raised:
        FORWARD_IN_JAX[way](JAX[name])
    assert str(raised.value) == (
        f"forward mode (jax.jvp, jax.linearize) of {operator(name)} is not offered: use jax.grad or jax.vjp"
    )


@offered
@pytest.mark.parametrize("way", SECOND_IN_JAX)
def test_jax_refuses_second_derivatives(way, name):
    with pytest.raises(NotImplementedError) as raised:
        SECOND_IN_JAX[way](lambda x: (JAX[name](x) ** 2).sum())
    sentence = f"second derivatives of {operator(name)} are not offered: use jax.lax.stop_gradient on its gradient"
    forward = f"forward mode (jax.jvp, jax.linearize) of {operator(name)} is not offered: use jax.grad or jax.vjp"
    assert str(raised.value) in ({sentence} if way in TWICE_REVERSE_IN_JAX else {sentence, forward})


@names
def test_torch_without_grad_mode_gives_the_result(name):
    with torch.no_grad():
        assert not TORCH[name](ONES.clone().requires_grad_()).requires_grad


def test_the_remedy_of_torch_for_an_aligned():
    x = ONES.clone().requires_grad_()
    (TORCH["aligned weight"](x.detach()).sum() * x.sum()).backward()
    assert x.grad is not None


def test_the_remedy_of_jax_for_an_aligned():
    grad = jax.grad(lambda x: JAX["aligned weight"](jax.lax.stop_gradient(x)).sum() * x.sum())(X)
    assert grad.shape == (4, 4)
