"""Gradients of both frameworks behind one face: NumPy operands in, NumPy bits out, by the frameworks' own autograd."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import pytest
import torch
from frameworks import FLOATS, TORCH, Framework
from numpy.typing import NDArray

from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

Array = NDArray[Any]

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])


def assert_lm_head(actual: Any, grad: Any, hidden: Any, weight: Any, bias_dtype: Any = None, context: str = "") -> None:
    """The gradients of hidden, weight and, where it has a dtype, bias are the contract's."""
    __tracebackhide__ = True
    expected = contract.lm_head_grads(grad, hidden, weight, bias_dtype)
    for name, one, other in zip(("hidden", "weight", "bias"), actual, expected, strict=False):
        assert_bits_equal(one, other, context=f"{context} the gradient of {name}".strip())
    assert len(actual) == (2 if bias_dtype is None else 3)


def placed(framework: Framework, x: Any, device: str = "cpu") -> Any:
    """A NumPy array as the framework's on "cpu" or "gpu"; anything else as it is.

    64-bit ids stay in NumPy for JAX, which would narrow them before the operator sees them.
    """
    if not isinstance(x, np.ndarray):
        return x
    if framework is TORCH:
        return framework.array(x).to("cuda" if device == "gpu" else device)
    return x if x.dtype.itemsize == 8 else jax.device_put(framework.array(x), jax.devices(device)[0])


def gradients(
    framework: Framework,
    op: str | Callable[..., Any],
    *operands: Any,
    grad: Any,
    compiled: bool = False,
    rows_under_vmap: bool = False,
    device: str = "cpu",
    **options: Any,
) -> tuple[Array, ...]:
    """The gradients of an operator's floating-point operands, in their order.

    Arguments:
        op: its name in the package, or the operator itself.
        operands: NumPy arrays, the framework's own arrays, an `Aligned` or None, as the operator takes them.
        grad: the gradient of its result.
        compiled: operator and gradient are compiled, with ids that nothing can read.
        rows_under_vmap: the operator sees the members of its first operand one by one, in `vmap`.
    """
    operator = getattr(framework.package, op) if isinstance(op, str) else op
    function = _function(framework, operator, rows_under_vmap, tuple(options.items()))
    arguments = [placed(framework, x, device) for x in operands]
    wanted = [i for i, x in enumerate(arguments) if _is_float(x)]
    return pull_back(framework, function, arguments, wanted, placed(framework, grad, device), compiled)


@lru_cache(maxsize=8)
def _function(framework: Framework, operator: Any, rows_under_vmap: bool, options: Any) -> Callable[..., Any]:
    """The same object for the same call, so that JAX compiles nothing twice."""

    def function(first: Any, *others: Any) -> Any:
        if rows_under_vmap:
            return framework.vmap(lambda one: operator(one, *others, **dict(options)))(first)
        return operator(first, *others, **dict(options))

    return function


def pull_back(
    framework: Framework,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    wanted: Sequence[int],
    grad: Any,
    compiled: bool = False,
) -> tuple[Array, ...]:
    """Gradients of function(*arguments), the framework's arrays, at the wanted positions."""
    return value_and_gradients(framework, function, arguments, wanted, grad, compiled)[1]


def value_and_gradients(
    framework: Framework,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    wanted: Sequence[int],
    grad: Any,
    compiled: bool = False,
) -> tuple[Any, tuple[Array, ...]]:
    """The result too, as the framework gives it. Where it is a tuple, so is its gradient."""
    if framework is TORCH:
        leaves = [x.detach().requires_grad_() if i in wanted else x for i, x in enumerate(arguments)]
        value = (framework.compiled(function) if compiled else function)(*leaves)
        found = torch.autograd.grad(value, [leaves[i] for i in wanted], grad)
    else:
        pulled = _pulled_in_jax(function, tuple(wanted))
        value, found = (_compiled_in_jax(function, tuple(wanted)) if compiled else pulled)(list(arguments), grad)
    return value, tuple(as_numpy(x) for x in found)


def _pulled_in_jax(function: Callable[..., Any], wanted: tuple[int, ...]) -> Callable[..., Any]:
    def pulled(arguments: list[Any], grad: Any) -> Any:
        def of_wanted(*leaves: Any) -> Any:
            every = list(arguments)
            for i, leaf in zip(wanted, leaves, strict=True):
                every[i] = leaf
            return function(*every)

        value, pull = jax.vjp(of_wanted, *(arguments[i] for i in wanted))
        return value, pull(grad)

    return pulled


@lru_cache(maxsize=8)
def _compiled_in_jax(function: Callable[..., Any], wanted: tuple[int, ...]) -> Callable[..., Any]:
    return jax.jit(_pulled_in_jax(function, wanted))


def _is_float(x: Any) -> bool:
    return x.is_floating_point() if isinstance(x, torch.Tensor) else getattr(x, "dtype", None) in FLOATS


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)
