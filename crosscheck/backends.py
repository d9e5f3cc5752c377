"""The only file that touches a framework: adapters from NumPy bits to NumPy bits.

An adapter is made in its backend's own process, whose environment `crosscheck/registry.py` prepares. It is made
with the device's name and the number of threads, and has

- `available()`: None, or in a few words why nothing can run here; called before anything else;
- `from_numpy(array)`: the framework's array with the same bits, in memory of its own; integers of 64 bits
  reach the operator unnarrowed;
- `to_numpy(array)`: the same bits in NumPy;
- `run(op, inputs, digits, mode)`: the operator on a dict of the framework's arrays; `digits` None leaves the
  choice to the operator; `mode` is one of the backend's;
- `gradients(op, inputs, grad, digits, mode)`: the gradients of all arguments but ids, by name, for the upstream
  gradient `grad` of the operator's result; ids are not checked, so that bad ones are allowed;
- `place(array, layout)`: as `from_numpy`, stored transposed, strided, expanded or unaligned;
- `layouts`: in words, what `place` really does;
- `versions()`, `device_name()`: for the report;
- `implementation(op, inputs, digits)`: the name of what runs a call; without inputs, of what runs most calls.

A framework is imported by its adapter's methods, never with this module.
"""

import importlib.util
import platform
import types
import warnings
from collections.abc import Callable
from typing import Any, Protocol, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from crosscheck.bits import as_numpy
from crosscheck.calls import contract_result, named_digits
from crosscheck.gradients import contract_gradients, wanted

__all__ = ["Adapter", "JaxAdapter", "NumpyAdapter", "TorchAdapter", "own_digits", "unchecked"]

Array = NDArray[Any]
Call = dict[str, Any]  # a call's arguments by name


class Adapter(Protocol):
    layouts: str

    def available(self) -> str | None: ...
    def from_numpy(self, array: Array) -> Any: ...
    def to_numpy(self, array: Any) -> Array: ...
    def run(self, op: str, inputs: Call, digits: int | None, mode: str) -> Any: ...
    def gradients(self, op: str, inputs: Call, grad: Any, digits: int | None, mode: str) -> Call: ...
    def place(self, array: Array, layout: str) -> Any: ...
    def versions(self) -> dict[str, str]: ...
    def device_name(self) -> str: ...
    def implementation(self, op: str, inputs: Call | None = None, digits: int | None = None) -> str: ...


class NumpyAdapter:
    """The contract itself."""

    layouts = "NumPy views with these strides"

    def __init__(self, device: str, threads: int) -> None:
        pass

    def available(self) -> str | None:
        return None

    def from_numpy(self, array: Array) -> Array:
        return array.copy()

    def to_numpy(self, array: Any) -> Array:
        return as_numpy(array, "the result").copy()  # the next call may write into it

    def run(self, op: str, inputs: Call, digits: int | None, mode: str) -> Any:
        return contract_result(op, inputs, digits)

    def gradients(self, op: str, inputs: Call, grad: Any, digits: int | None, mode: str) -> Call:
        return contract_gradients(inputs, grad)

    def place(self, array: Array, layout: str) -> Array:
        """A view into fresh memory that holds the same values."""
        if layout == "transposed":
            return array.swapaxes(-1, -2).copy().swapaxes(-1, -2)
        if layout == "strided":
            wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
            wide[..., ::2] = array
            return wide[..., ::2]
        if layout == "expanded":
            return np.broadcast_to(array[:1].copy(), array.shape)
        memory = np.zeros(array.size + 1, array.dtype)
        memory[1:] = array.reshape(-1)
        return memory[1:].reshape(array.shape)

    def versions(self) -> dict[str, str]:
        return {"python": platform.python_version(), "numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__}

    def device_name(self) -> str:
        return "cpu"

    def implementation(self, op: str, inputs: Call | None = None, digits: int | None = None) -> str:
        return "contract"


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
        import rlk_torch

        return _implementation(rlk_torch, self.device, op, inputs, digits)


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


class JaxAdapter:
    """rlk_jax on one platform, which the process's JAX_PLATFORMS fixes."""

    layouts = "NumPy views with these strides handed over: JAX arrays have no strides"

    def __init__(self, device: str, threads: int) -> None:
        self.device = device
        self.jitted: dict[tuple[str, str, int | None], Callable[..., Any]] = {}

    def available(self) -> str | None:
        if importlib.util.find_spec("jax") is None:
            return "jax is not installed"
        import jax

        try:
            jax.devices(self.device)
        except RuntimeError as error:
            return f"jax {jax.__version__} has no {self.device} device: {str(error).splitlines()[0]}"
        return None

    def from_numpy(self, array: Array) -> Any:
        if array.dtype.kind in "iu" and array.itemsize == 8:
            return array.copy()  # JAX without 64-bit mode would narrow the ids before the operator reads them
        return self._put(array.copy())

    def _put(self, array: Array) -> Any:
        import jax

        return jax.device_put(array, jax.devices(self.device)[0])

    def to_numpy(self, array: Any) -> Array:
        return as_numpy(array, "the result")

    def operator(self, op: str) -> Callable[..., Any]:
        import rlk_jax

        return cast(Callable[..., Any], getattr(rlk_jax, op))

    def run(self, op: str, inputs: Call, digits: int | None, mode: str) -> Any:
        import jax

        operator = self.operator(op)
        if mode == "jit":
            compiled = jax.jit(lambda inputs: operator(**inputs, **named_digits(digits)))
            return self.jitted.setdefault(("result", op, digits), compiled)(inputs)
        return operator(**inputs, **named_digits(digits))

    def gradients(self, op: str, inputs: Call, grad: Any, digits: int | None, mode: str) -> Call:
        import jax

        operator, options = self.operator(op), unchecked(op, digits)

        def of(inputs: Call, grad: Any) -> Call:
            some = {name: inputs[name] for name in wanted(inputs)}
            others = {name: x for name, x in inputs.items() if name not in some}
            _, pullback = jax.vjp(lambda some: operator(**others, **some, **options), some)
            found: Call = pullback(grad)[0]
            return found

        if mode == "jit":
            of = self.jitted.setdefault(("gradients", op, digits), jax.jit(of))
        return of(inputs, grad)

    def place(self, array: Array, layout: str) -> Any:
        view = NumpyAdapter("cpu", 1).place(array, layout)
        return view if array.dtype.kind in "iu" else self._put(view)

    def versions(self) -> dict[str, str]:
        import jax
        import jaxlib

        return {"jax": jax.__version__, "jaxlib": jaxlib.__version__}

    def device_name(self) -> str:
        import jax

        return str(jax.devices(self.device)[0].device_kind)

    def implementation(self, op: str, inputs: Call | None = None, digits: int | None = None) -> str:
        import rlk_jax

        return _implementation(rlk_jax, self.device, op, inputs, digits)


def _implementation(package: Any, device: str, op: str, inputs: Call | None, digits: int | None) -> str:
    operator = package.get_op(op.removesuffix("_fp32"), device=device)
    if inputs is None:
        return str(operator.implementation)
    digits = own_digits(op, inputs) if digits is None else digits
    return str(operator.served_by(inputs["weight"], digits=digits))


def own_digits(op: str, inputs: Call) -> int:
    """The operator's own choice for a call."""
    wide = "hidden" in inputs and str(inputs["hidden"].dtype).endswith("float32")
    return 4 if wide or op == "lm_head_fp32" else 3


def unchecked(op: str, digits: int | None) -> dict[str, Any]:
    """The options of a call whose gradients are taken: ids are not read, and bad ones add nothing."""
    return {"check_ids": False} if op.startswith("embedding") else named_digits(digits)
