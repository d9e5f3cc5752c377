"""The adapter of rlk_torch. torch is imported by its methods, never with this module."""

import importlib.util
import types
import warnings
from collections.abc import Callable
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from crosscheck.backends import Call, implementing, unchecked
from crosscheck.bits import as_numpy
from crosscheck.calls import named_digits
from crosscheck.operators import wanted
from crosscheck.parts import of_parts
from crosscheck.trial import Parts

__all__ = ["TorchAdapter"]

Array = NDArray[Any]


class TorchAdapter:
    """rlk_torch on one device; bfloat16 crosses as int16."""

    layouts = "torch views with these strides and storage offsets"

    def __init__(self, device: str, threads: int) -> None:
        self.device, self.threads = device, threads
        self.compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def available(self) -> str | None:
        if importlib.util.find_spec("torch") is None:
            return "torch is not installed"
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            return f"torch {torch.__version__} sees no CUDA device"
        torch.set_num_threads(self.threads)
        return None

    def from_numpy(self, array: Array) -> Any:
        import torch

        bits = array.view(np.int16) if array.dtype == ml_dtypes.bfloat16 else array
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            shared = torch.from_numpy(np.ascontiguousarray(bits).reshape(bits.shape))
        tensor = shared.to(self.device, copy=True)
        return tensor.view(torch.bfloat16) if array.dtype == ml_dtypes.bfloat16 else tensor

    def to_numpy(self, array: Any) -> Array:
        return as_numpy(array, "the result").copy()  # the next call may write into it

    def run(self, op: str, inputs: Call, digits: int | None, mode: str) -> Any:
        return self._call(op, inputs, named_digits(digits), mode)

    def run_parts(self, op: str, inputs: Call, digits: int | None, mode: str, parts: Parts) -> Any:
        import rlk_torch

        return of_parts(rlk_torch, op, inputs, named_digits(digits), parts)

    def gradients(self, op: str, inputs: Call, grad: Any, digits: int | None, mode: str) -> Call:
        import torch

        names = wanted(inputs)
        leaves = {name: x.detach().requires_grad_(name in names) for name, x in inputs.items()}
        result = self._call(op, leaves, unchecked(op, digits), mode)
        return dict(zip(names, torch.autograd.grad(result, [leaves[name] for name in names], grad), strict=True))

    def operator(self, op: str) -> Callable[..., Any]:
        import rlk_torch

        return cast(Callable[..., Any], getattr(rlk_torch, op))

    def _call(self, op: str, inputs: Call, options: Call, mode: str) -> Any:
        operator = self.operator(op)
        if mode == "compile":
            signature = (op, *options.items(), *((name, x.dtype) for name, x in inputs.items()))
            if signature not in self.compiled:
                self.compiled[signature] = _torch_compile(operator, options)
            return self.compiled[signature](inputs)
        return operator(**inputs, **options)

    def place(self, array: Array, layout: str) -> Any:
        tensor = self.from_numpy(array)
        if layout == "transposed":
            return tensor.mT.contiguous().mT
        if layout == "strided":
            wide = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]))
            return wide[..., ::2].copy_(tensor)
        if layout == "expanded":
            return tensor[:1].expand(tensor.shape)
        memory = tensor.new_zeros(tensor.numel() + 1)
        return memory[1:].view(tensor.shape).copy_(tensor)

    def versions(self) -> dict[str, str]:
        import torch

        found = {"torch": torch.__version__, "cpu capability": torch.backends.cpu.get_cpu_capability()}
        return found | ({"cuda": str(torch.version.cuda)} if self.device == "cuda" else {})

    def device_name(self) -> str:
        import torch

        return torch.cuda.get_device_name() if self.device == "cuda" else "cpu"

    def implementation(self, op: str, inputs: Call | None = None, digits: int | None = None) -> str:
        import torch

        import rlk_torch

        of_logits = rlk_torch.logprob.default_implementation(torch.device(self.device))
        return implementing(rlk_torch, self.device, op, inputs, digits, of_logits)


def _torch_compile(operator: Callable[..., Any], options: Call) -> Callable[..., Any]:
    """One compiled function for all shapes, with a code object and so a cache of its own.

    `fullgraph`: a graph break, or more compilations than torch allows, is an error and not an eager call.
    """
    import torch

    def call(inputs: Call) -> Any:
        return operator(**inputs, **options)

    own = types.FunctionType(call.__code__.replace(), call.__globals__, "call", None, call.__closure__)
    torch._dynamo.config.recompile_limit = 256  # sizes 0 and 1 and each layout are compiled for themselves
    return torch.compile(own, dynamic=True, fullgraph=True)
