"""A function of the caller's own and the call that it is tried on, for `crosscheck.batch_variant`.

The function is called with arrays of the framework, device and dtype of what was given; transforms and comparison are
made in NumPy.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.backends import NumpyAdapter, TorchAdapter
from crosscheck.bench import as_rows
from crosscheck.bits import Difference, as_numpy, compare, is_array
from crosscheck.calls import Call
from crosscheck.cases import Inputs
from crosscheck.gradients import result_shape
from crosscheck.invariance import Attempt, NotApplicable, Trial, trials
from crosscheck.row_transforms import FLOATS, row_trials

__all__ = ["Operator", "Subject", "subject_of"]

Array = NDArray[Any]
OPERATORS = ({"hidden", "weight"}, {"hidden", "weight", "bias"}, {"token_ids", "weight"})


class Subject:
    """A function of a batch along axis 0 of some arguments; the others are handed on as they are.

    Arguments:
        given: the arguments by name.
        by_name: whether they are passed so.
        batch: the names of those that transforms change.
    """

    def __init__(
        self, function: Callable[..., Any], given: Mapping[str, Any], by_name: bool, batch: Sequence[str]
    ) -> None:
        self.function, self.given, self.by_name = function, given, by_name
        self.inputs: Inputs = {name: as_numpy(given[name], name) for name in batch}
        self.makers = {name: _maker(given[name], name) for name in batch}
        self.strided = not any(isinstance(maker, _OnJaxDevice) for maker in self.makers.values())
        self._check()

    def _check(self) -> None:
        shapes = {name: x.shape for name, x in self.inputs.items()}
        if not all(shapes.values()) or len({shape[0] for shape in shapes.values()}) != 1:
            raise ValueError(f"the batch has the shapes {shapes}; expected [rows, ...], as many rows in each")

    @property
    def count(self) -> int:
        return len(next(iter(self.inputs.values())))

    def first(self, rows: int) -> Inputs:
        return {name: x[:rows] for name, x in self.inputs.items()}

    def attempts(self, inputs: Inputs, seed: int) -> Iterator[Attempt]:
        for attempt in self._trials(inputs, seed):
            if isinstance(attempt, Trial) and not self.strided and set(attempt.layout.values()) - {"expanded"}:
                yield NotApplicable(attempt.column, attempt.name, "JAX arrays have no strides")
            else:
                yield attempt

    def _trials(self, inputs: Inputs, seed: int) -> Iterator[Attempt]:
        return row_trials(inputs, seed)

    def due(self, inputs: Inputs, base: Array) -> tuple[int, ...]:
        """The shape that the result of a call must have."""
        return (len(next(iter(inputs.values()))), *base.shape[1:])

    def as_rows(self, result: Array) -> Array:
        return result

    def run(self, inputs: Inputs, layout: Mapping[str, str] | None = None) -> Array:
        __tracebackhide__ = True
        arguments = {name: self._argument(name, inputs, layout or {}) for name in self.given}
        result = self.function(**arguments) if self.by_name else self.function(*arguments.values())
        return as_numpy(result, "the result").copy()  # the next call may write into it

    def _argument(self, name: str, inputs: Inputs, layout: Mapping[str, str]) -> Any:
        if name not in inputs:
            return self.given[name]
        array, maker = inputs[name], self.makers[name]
        if name in layout:
            return maker.place(array, layout[name])
        shared = name in ("weight", "bias") and array is self.inputs[name]
        return self.given[name] if shared else maker.from_numpy(array)

    def base(self) -> Array:
        """The result of the call itself."""
        __tracebackhide__ = True
        result = self.run(self.inputs)
        if result.shape[:1] != (self.count,):
            raise ValueError(
                f"the result has shape {result.shape} for {self.count} rows; expected [{self.count}, ...]: name the "
                "arguments that are the batch, rows=, and put its axis first"
            )
        return result

    def difference(self, trial: Trial[Array], base: Array) -> Difference | None:
        __tracebackhide__ = True
        results = []
        for inputs in trial.calls:
            try:
                with np.errstate(all="ignore"):  # rows that come in overflow on purpose
                    result = self.run(inputs, trial.layout)
            except Exception as error:
                error.add_note(f"crosscheck: raised under the transform {trial.name!r} ({trial.column})")
                raise
            due = self.due(inputs, base)
            if result.dtype != base.dtype or result.shape != due:
                return compare(result, np.broadcast_to(np.zeros((), base.dtype), due))
            results.append(self.as_rows(result))
        return compare(trial.join(results), trial.expected(self.as_rows(base)))


class Operator(Subject):
    """An LM head or an embedding, whose rows are all leading axes, and whose vocab is transformed as well."""

    def _check(self) -> None:
        pass  # `_is_operator` has

    @property
    def _call(self) -> Call:
        return Call(self.inputs, np.random.default_rng(0))

    @property
    def count(self) -> int:
        return len(self._call.rows)

    def first(self, rows: int) -> Inputs:
        return self._call.with_rows(self._call.rows[:rows])

    def _trials(self, inputs: Inputs, seed: int) -> Iterator[Attempt]:
        return trials(inputs, seed)

    def due(self, inputs: Inputs, base: Array) -> tuple[int, ...]:
        return result_shape(inputs)

    def as_rows(self, result: Array) -> Array:
        return as_rows(result)

    def base(self) -> Array:
        __tracebackhide__ = True
        result = self.run(self.inputs)
        if result.shape != (due := result_shape(self.inputs)):
            raise ValueError(
                f"the result has shape {result.shape}; expected {due}, as an LM head or an embedding with these "
                f"arguments has: of another function, name the batch, rows={self._call.axis!r}"
            )
        return result


class _OnJaxDevice:
    def __init__(self, x: Any, name: str) -> None:
        if len(x.devices()) > 1:
            raise ValueError(f"{name} lies on {len(x.devices())} devices; expected one: shard it inside the function")
        (self.device,) = x.devices()

    def from_numpy(self, array: Array) -> Any:
        return sys.modules["jax"].device_put(array.copy(), self.device)

    def place(self, array: Array, layout: str) -> Any:
        return self.from_numpy(array)


def _maker(x: Any, name: str) -> Any:
    """What makes arrays of the framework and device of x, by `from_numpy` and `place`."""
    if isinstance(x, np.ndarray | np.generic):
        return NumpyAdapter("cpu", 1)
    torch = sys.modules.get("torch")
    in_torch = torch is not None and isinstance(x, torch.Tensor)
    return TorchAdapter(str(x.device), 1) if in_torch else _OnJaxDevice(x, name)


def subject_of(function: Callable[..., Any], inputs: Any, rows: str | Sequence[str] | None) -> Subject:
    """The function with its arguments; `assert_batch_invariant` says how they are read."""
    by_name = isinstance(inputs, Mapping)
    given = dict(inputs) if isinstance(inputs, Mapping) else _named(function, inputs)
    if not given:
        raise ValueError("inputs are empty; expected the arguments of the function, one of them the batch")
    if rows is None and _is_operator(given):
        return Operator(function, given, by_name, list(given))
    batch = [next(iter(given))] if rows is None else [rows] if isinstance(rows, str) else list(rows)
    unknown = [name for name in batch if name not in given]
    if unknown or not batch:
        raise ValueError(f"rows names {unknown or 'nothing'}; expected names of arguments, among {list(given)}")
    return Subject(function, given, by_name, batch)


def _named(function: Callable[..., Any], inputs: Any) -> dict[str, Any]:
    """Positional arguments by the names that the signature has for them, or by their numbers."""
    values = (inputs,) if is_array(inputs) else tuple(inputs)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return {names[i] if i < len(names) else str(i): value for i, value in enumerate(values)}


def _is_operator(given: Mapping[str, Any]) -> bool:
    if set(given) not in OPERATORS or not all(map(is_array, given.values())):
        return False
    shapes = {name: tuple(x.shape) for name, x in given.items()}
    dtypes = {name: str(x.dtype).removeprefix("torch.") for name, x in given.items()}
    vocab_and_width = shapes["weight"]
    if len(vocab_and_width) != 2 or dtypes["weight"] not in FLOATS:
        return False
    if "token_ids" in given:
        return dtypes["token_ids"].startswith(("int", "uint"))
    if shapes.get("bias", vocab_and_width[:1]) != vocab_and_width[:1]:
        return False
    return dtypes["hidden"] in FLOATS and shapes["hidden"][-1:] == vocab_and_width[1:]
