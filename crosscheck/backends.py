"""Adapters from NumPy bits to NumPy bits, and that of the contract itself.

`crosscheck.torch_adapter` and `crosscheck.jax_adapter` are the only files that touch a framework.

An adapter is made in its backend's own process, whose environment `crosscheck/registry.py` prepares. It is made
with the device's name and the number of threads, and has

- `available()`: None, or in a few words why nothing can run here; called before anything else;
- `from_numpy(array)`: the framework's array with the same bits, in memory of its own; integers of 64 bits
  reach the operator unnarrowed;
- `to_numpy(array)`: the same bits in NumPy;
- `run(op, inputs, digits, mode)`: the operator on a dict of the framework's arrays; `digits` None leaves the
  choice to the operator; `mode` is one of the backend's;
- `run_parts(op, inputs, digits, mode, parts)`: the same from parts of its arguments as devices would hold them,
  `parts` "vocab" or "hidden" and how many there are; `NotOffered` where it has no such form;
- `gradients(op, inputs, grad, digits, mode)`: the gradients of all arguments but ids, by name, for the upstream
  gradient `grad` of the operator's result; ids are not checked, so that bad ones are allowed;
- `place(array, layout)`: as `from_numpy`, stored transposed, strided, expanded or unaligned;
- `layouts`: in words, what `place` really does;
- `versions()`, `device_name()`: for the report;
- `implementation(op, inputs, digits)`: the name of what runs a call; without inputs, of what runs most calls.

A framework is imported by its adapter's methods, never with this module.
"""

import platform
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from crosscheck.bits import as_numpy
from crosscheck.calls import contract_result, named_digits
from crosscheck.gradients import contract_gradients
from crosscheck.trial import Parts
from crosscheck.verdict import NotOffered

__all__ = ["Adapter", "Call", "NumpyAdapter", "implementing", "own_digits", "unchecked"]

Array = NDArray[Any]
Call = dict[str, Any]  # a call's arguments by name


class Adapter(Protocol):
    layouts: str

    def available(self) -> str | None: ...
    def from_numpy(self, array: Array) -> Any: ...
    def to_numpy(self, array: Any) -> Array: ...
    def run(self, op: str, inputs: Call, digits: int | None, mode: str) -> Any: ...
    def run_parts(self, op: str, inputs: Call, digits: int | None, mode: str, parts: Parts) -> Any: ...
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

    def run_parts(self, op: str, inputs: Call, digits: int | None, mode: str, parts: Parts) -> Any:
        raise NotOffered("the contract has no form of it that takes parts")

    def gradients(self, op: str, inputs: Call, grad: Any, digits: int | None, mode: str) -> Call:
        return contract_gradients(inputs, grad, digits)

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


def implementing(package: Any, device: str, op: str, inputs: Call | None, digits: int | None, after: str) -> str:
    """after: what makes log-probabilities of logits."""
    if op == "selected_logprob":
        return after
    head = "lm_head" if op == "linear_logprob" else op.removesuffix("_fp32")
    operator = package.get_op(head, device=device)
    if inputs is None:
        found = str(operator.implementation)
    else:
        found = str(operator.served_by(inputs["weight"], digits=own_digits(op, inputs) if digits is None else digits))
    return f"{found}, then {after}" if op == "linear_logprob" else found


def own_digits(op: str, inputs: Call) -> int:
    """The operator's own choice for a call."""
    wide = "hidden" in inputs and str(inputs["hidden"].dtype).endswith("float32")
    return 4 if wide or op in ("lm_head_fp32", "linear_logprob") else 3


def unchecked(op: str, digits: int | None) -> dict[str, Any]:
    """The options of a call whose gradients are taken: ids are not read, and bad ones add nothing."""
    unread = {} if op.startswith("lm_head") else {"check_ids": False}
    return {**unread, **named_digits(digits)}
