"""Gradients that are not offered: whoever asks for one gets a sentence, never a wrong number.

The twin is rlk_jax/refusal.py.
"""

from collections.abc import Callable
from typing import Any

import torch


def without_gradient(operator: Any, sentence: str) -> Callable[..., Any]:
    """A custom operator whose gradient, asked for in reverse or in forward mode, raises the sentence.

    Reverse mode alone could be left to the operator. But torch takes forward mode through an operator that does not
    know it as a zero tangent, and gives `torch.func.grad` through it an error of its own.
    """
    in_eager_code = eager_without_gradient(operator, sentence)
    # For the compiler, which takes no Function with a forward mode.
    operator.register_autograd(_refusing(sentence))

    def call(*args: Any) -> Any:
        return operator(*args) if torch.compiler.is_compiling() else in_eager_code(*args)

    return call


def eager_without_gradient(function: Callable[..., Any], sentence: str) -> Callable[..., Any]:
    """The same of any function of eager code that gives tensors."""
    refuse = _refusing(sentence)

    class Refused(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*args: Any) -> Any:
            return function(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        backward = staticmethod(refuse)
        jvp = staticmethod(refuse)

    return Refused.apply


def _refusing(sentence: str) -> Callable[..., Any]:
    def refuse(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(sentence)

    return refuse
