"""A case on an adapter in a mode: how its calls are made, and how a transformed one is compared with the base."""

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crosscheck.backends import Adapter
from crosscheck.bits import Difference, compare, digest
from crosscheck.cases import Inputs
from crosscheck.operators import as_rows, result_shape
from crosscheck.trial import Parts, Trial
from crosscheck.verdict import Check

__all__ = ["Bench", "Judged", "digest_of_inputs"]

Array = NDArray[Any]


class Judged(Protocol):
    """What can be judged: a built-in `Case`, or a case on real tables."""

    @property
    def id(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def digits(self) -> int | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def thorough(self) -> bool: ...
    @property
    def divided(self) -> bool: ...
    @property
    def shared_out(self) -> bool: ...
    def inputs(self) -> Inputs: ...
    def to_json(self) -> dict[str, Any]: ...


class Bench:
    """`weight`: the adapter's copy of the weight, which calls share once it is set."""

    def __init__(self, adapter: Adapter, case: Judged, mode: str) -> None:
        self.adapter, self.case, self.mode = adapter, case, mode
        self.inputs = case.inputs()
        self.weight: Any = None

    def arguments(self, inputs: Inputs, layout: Mapping[str, str] | None = None) -> dict[str, Any]:
        return {name: self._argument(array, (layout or {}).get(name)) for name, array in inputs.items()}

    def _argument(self, array: Array, layout: str | None) -> Any:
        if layout is not None:
            return self.adapter.place(array, layout)
        if self.weight is not None and array is self.inputs.get("weight"):
            return self.weight
        return self.adapter.from_numpy(array)

    def look_after(self, arguments: dict[str, Any], check: Check) -> None:
        """Enter whether the call left its arguments alone; a weight that it did is used again."""
        for name, array in self.inputs.items():
            change = compare(self.adapter.to_numpy(arguments[name]), array)
            check.enter(f"{name} after the call", change)
            if change is None and name == "weight":
                self.weight = arguments[name]

    def run(self, arguments: dict[str, Any], parts: Parts | None = None) -> Array:
        """parts: into which the arguments are divided."""
        op, digits = self.case.op, self.case.digits
        if parts is None:
            return self.adapter.to_numpy(self.adapter.run(op, arguments, digits, self.mode))
        return self.adapter.to_numpy(self.adapter.run_parts(op, arguments, digits, self.mode, parts))

    def pair(self, trial: Trial[Array], base: Array) -> tuple[Array, Array]:
        """What the transformed calls give, and what the untransformed result [rows, width] says they must.

        Where a call gives another shape or dtype it is that result, and zeros of the shape and dtype that are due.
        """
        results = []
        for inputs in trial.calls:
            result, shape = self.run(self.arguments(inputs, trial.layout), trial.parts), result_shape(inputs)
            if result.shape != shape or result.dtype != base.dtype:
                return result, np.broadcast_to(np.zeros((), base.dtype), shape)
            results.append(as_rows(result, inputs))
        return trial.join(results), trial.expected(base)

    def difference(self, trial: Trial[Array], base: Array) -> Difference | None:
        """How the transformed calls differ from the untransformed result [rows, width]."""
        return compare(*self.pair(trial, base))


def digest_of_inputs(inputs: Inputs) -> str:
    """SHA-256 in hex over the names, dtypes, shapes and bits of a call's arguments."""
    said = "".join(f"{name} {digest(array)}\n" for name, array in sorted(inputs.items()))
    return hashlib.sha256(said.encode()).hexdigest()
