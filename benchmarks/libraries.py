"""The LM head of each library, as calls over float32 NumPy arrays that have finished when they return."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
LIBRARIES = ("torch", "numpy", "jax")


class Model:
    """Hidden states and a weight held as the library's own arrays.

    Arguments:
        library: one of LIBRARIES; it is imported here.
    """

    def __init__(self, library: str, hidden: Array, weight: Array) -> None:
        self.package, convert, self._wait = _library(library)
        self.hidden, self.weight = convert(hidden), convert(weight)

    def release_weight(self) -> None:
        """Forget the weight, where what was aligned from it is all that is needed."""
        self.weight = None

    def align(self, digits: int) -> Any:
        return self._wait(self.package.align(self.weight, digits))

    def logits(self, digits: int, aligned: Any = None) -> Any:
        """With the weight aligned before, or aligned by the call."""
        weight = self.weight if aligned is None else aligned
        return self._wait(self.package.lm_head(self.hidden, weight, digits=digits))


def _library(name: str) -> tuple[Any, Callable[[Array], Any], Callable[[Any], Any]]:
    if name == "torch":
        import torch

        import rlk_torch

        return rlk_torch, torch.from_numpy, lambda result: result
    if name == "jax":
        import jax

        import rlk_jax

        return rlk_jax, lambda x: jax.block_until_ready(jax.numpy.array(x)), jax.block_until_ready
    from crosscheck import contract

    return contract, lambda x: x, lambda result: result


def inputs(rows: int, vocab: int, width: int) -> tuple[Array, Array]:
    """Normal hidden states and weights, drawn without a temporary of another type."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((rows, width), np.float32), rng.standard_normal((vocab, width), np.float32)
