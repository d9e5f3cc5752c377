"""Gradients that are not offered: whoever asks for one gets a sentence, never a wrong number.

The twin is rlk_torch/refusal.py.
"""

from collections.abc import Callable
from typing import Any

import jax


def without_gradient(operator: Any, sentence: str, nondiff_argnums: tuple[int, ...] = ()) -> Callable[..., Any]:
    """A function whose gradient, asked for in reverse or in forward mode, raises the sentence."""
    refused = jax.custom_jvp(operator, nondiff_argnums=nondiff_argnums)

    @refused.defjvp
    def refuse(*args: Any) -> Any:
        raise NotImplementedError(sentence)

    return refused
