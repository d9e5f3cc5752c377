"""What makes an operator differentiable in reverse mode: a gradient is one exact sum and one rounding.

The twin is rlk_jax/differentiable.py.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.autograd import forward_ad

from rlk_torch.refusal import without_gradient

_Rule = Callable[..., Any]


def differentiable(name: str, operator: Any, setup_context: _Rule, backward: _Rule, vmap: _Rule) -> Callable[..., Any]:
    """A custom operator with its gradient, in eager code, under transformations and in compiled code.

    Arguments:
        name: of the public function, for sentences.
        operator: the custom operator.
        setup_context, backward: as `torch.library.CustomOpDef.register_autograd` takes them.
        vmap: an operator -> its rule, as `register_vmap` takes it: a batch of tokens becomes more tokens, so
            that a gradient that the batch shares is still one sum.

    An autograd function of our own does what the operator's registration cannot: torch takes forward mode through
    an operator that does not know it as a zero tangent, and adds up in floating point what a batch shares.
    """

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            return operator(*args)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return vmap(Differentiable.apply)(info, in_dims, *args)

    # Attributes, for rules that are functions of their own.
    Differentiable.setup_context = staticmethod(setup_context)  # type: ignore[method-assign]
    Differentiable.backward = staticmethod(backward)  # type: ignore[method-assign]
    Differentiable.jvp = staticmethod(no_forward_mode(name))  # type: ignore[method-assign]
    operator.register_autograd(backward, setup_context=setup_context)
    operator.register_vmap(vmap(operator))

    in_eager_code = left_to_eager_code(Differentiable.apply)

    def call(*args: Any) -> Any:
        if not torch.compiler.is_compiling():
            return Differentiable.apply(*args)
        return in_eager_code(*args) if _under_a_derivative() else operator(*args)

    return call


def left_to_eager_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that the compiler does not enter."""

    def in_eager_code(*args: Any) -> Any:
        if "torch._dynamo" in sys.modules:  # else nothing has been compiled, and this would import the compiler
            return torch.compiler.disable(function)(*args)
        return function(*args)

    # What torch.compiler.disable sets; the decorator itself would import the compiler with this module.
    in_eager_code._torchdynamo_disable = True  # type: ignore[attr-defined]
    return in_eager_code


def no_forward_mode(name: str) -> _Rule:
    """What an autograd function has for its tangents: a sentence."""

    def refuse(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(
            f"forward mode (torch.func.jvp, torch.autograd.forward_ad) of {name} is not offered: "
            "use torch.func.grad, torch.func.vjp or backward()"
        )

    return refuse


def _under_a_derivative() -> bool:
    """Inside torch.func.grad, vjp or jvp, or a forward-mode level: there the compiler cannot take an operator's
    gradient (PyTorch 2.9 to 2.13) and would drop a tangent; it gets the autograd function, and leaves it to eager code.
    """
    of_derivatives = (TransformType.Grad, TransformType.Jvp)
    levels = retrieve_all_functorch_interpreters()
    return forward_ad._current_level >= 0 or any(level.key() in of_derivatives for level in levels)


# What torch.compiler.assume_constant_result sets: the answer holds for the code that is being compiled.
_under_a_derivative._dynamo_marked_constant = True  # type: ignore[attr-defined]


def gradient_only(operator: Any, name: str) -> Callable[..., Any]:
    """A gradient, a custom operator, whose own gradient is refused."""
    return without_gradient(operator, no_second_derivative(name))


def no_second_derivative(name: str) -> str:
    return f"second derivatives of {name} are not offered: detach its gradient, or do without create_graph=True"


def one_by_one(op: Any) -> Callable[..., Any]:
    """The rule of an operator that takes the members of a batch by themselves."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        results = []
        for index in range(max(info.batch_size, 1)):
            results.append(op(*(x if d is None else member(x, d, index) for x, d in zip(args, in_dims, strict=True))))
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results)[: info.batch_size], 0
        return tuple(torch.stack(x)[: info.batch_size] for x in zip(*results, strict=True)), (0,) * len(results[0])

    return rule


def member(x: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """One of a batch; of an empty one, zeros in its place, since a result has to have a shape."""
    return x.select(dim, index) if x.shape[dim] else x.new_zeros(x.movedim(dim, 0).shape[1:])


def more_rows(op: Any) -> Callable[..., Any]:
    """The rule of an operator of rows [..., K] and others: a batch of rows is more rows, others go one by one."""

    def rule(info: Any, in_dims: Any, rows: torch.Tensor, *others: Any) -> Any:
        if in_dims[0] is None or any(dim is not None for dim in in_dims[1:]):
            return one_by_one(op)(info, in_dims, rows, *others)
        return op(rows.movedim(in_dims[0], 0), *others), 0

    return rule


def together(count: int, results: int = 1) -> Callable[..., Any]:
    """The rule of an operator whose first arguments all have a row for each member of a batch: it is more rows."""

    def with_rule(op: Any) -> Callable[..., Any]:
        def rule(info: Any, in_dims: Any, *args: Any) -> Any:
            rows = [
                x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
                for x, dim in zip(args[:count], in_dims[:count], strict=True)
            ]
            return op(*rows, *args[count:]), 0 if results == 1 else (0,) * results

        return rule

    return with_rule
