"""The two frameworks behind one face: NumPy arrays in, the framework's own arrays inside, NumPy bits out."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import rlk_jax
import rlk_torch
from crosscheck.bits import as_numpy

torch.set_num_threads(1)  # the arrays are small, and threads of torch that share a core wait for each other

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [BFLOAT16, np.dtype(np.float16), np.dtype(np.float32)]
INTEGERS = [np.dtype(f"{kind}{width}") for kind in ("int", "uint") for width in (8, 16, 32, 64)]


@dataclass(frozen=True)
class Framework:
    """What a test needs of a framework.

    Arguments:
        package: rlk_torch or rlk_jax.
        array: a NumPy array as the framework's, with the same bits, in memory of its own.
        compiled: the function as the framework compiles it, the whole of it.
        vmap: `vmap(function, in_axes)`.
    """

    name: str
    package: ModuleType
    array: Callable[[NDArray[Any]], Any]
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]]
    vmap: Callable[..., Callable[..., Any]]

    def run(self, op: str, *args: Any, compiled: bool = False, **options: Any) -> NDArray[Any]:
        """The bits of an operator's result; NumPy arrays of floats become the framework's first."""
        operator = getattr(self.package, op)
        arrays = [self.array(x) if isinstance(x, np.ndarray) and x.dtype in FLOATS else x for x in args]
        if compiled:
            return as_numpy(self.compiled(lambda *given: operator(*given, **options))(*arrays))
        return as_numpy(operator(*arrays, **options))


def _torch_array(x: NDArray[Any]) -> torch.Tensor:
    shared = torch.from_numpy(np.array(x.view(np.int16) if x.dtype == BFLOAT16 else x, order="C"))
    return shared.view(torch.bfloat16) if x.dtype == BFLOAT16 else shared


def _torch_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """With a fresh cache: torch counts compilations by the place of a function in the source."""
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True)


def _jax_array(x: NDArray[Any]) -> jax.Array:
    return jnp.asarray(x.copy())


TORCH = Framework("torch", rlk_torch, _torch_array, _torch_compiled, torch.func.vmap)
JAX = Framework("jax", rlk_jax, _jax_array, jax.jit, jax.vmap)
FRAMEWORKS = (TORCH, JAX)

both = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
eager_and_compiled = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
