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

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(sentence)

    class Refused(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*args: Any) -> Any:
            return operator(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        backward = staticmethod(refuse)
        jvp = staticmethod(refuse)

    operator.register_autograd(refuse)  # for the compiler, which takes no Function with a forward mode

    def call(*args: Any) -> Any:
        return operator(*args) if torch.compiler.is_compiling() else Refused.apply(*args)

    return call
