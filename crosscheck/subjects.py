"""A function of the caller's own and the call that it is tried on, for `crosscheck.batch_variant`.

The function is called with arrays of the framework, device and dtype of what was given; transforms and comparison are
made in NumPy.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.arguments import ArgumentChanged, Kept, check_copies, versions
from crosscheck.arrays import a_kind, as_numpy, has_values, is_array
from crosscheck.bits import Difference, compare
from crosscheck.calls import Call
from crosscheck.cases import Inputs
from crosscheck.invariance import Attempt, NotApplicable, Trial, trials
from crosscheck.makers import OnJaxDevice, maker_of
from crosscheck.operators import CALLS, IDS, as_rows, leading, result_shape
from crosscheck.row_transforms import FLOATS, row_trials
from crosscheck.trees import leaves_of

__all__ = ["Operator", "Subject", "subject_of"]

Array = NDArray[Any]
SHARED = ("weight", "bias")  # of the batch, what the call itself gets as it was given
Results = dict[str, Array]  # by the path in what the function returned; of one array it is ""


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
        self.inputs: Inputs = {name: as_numpy(given[name], _called(name)) for name in batch}
        self.makers = {name: maker_of(given[name], _called(name)) for name in batch}
        self.strided = not any(isinstance(maker, OnJaxDevice) for maker in self.makers.values())
        self._check()
        self.kept = Kept({name: x for name, x in given.items() if name not in batch or name in SHARED})

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

    def run(self, inputs: Inputs, layout: Mapping[str, str] | None = None) -> Results:
        """What the function returns: an array, or the arrays of a tuple, a list, a dict or another tree.

        Raises:
            ArgumentChanged: it has written into its arguments.
            TypeError: it returns something else.
            ValueError: it returns no array.
        """
        __tracebackhide__ = True
        arguments = {name: self._argument(name, inputs, layout or {}) for name in self.given}
        before = versions(arguments)
        result = self.function(**arguments) if self.by_name else self.function(*arguments.values())
        results = _arrays_of(result)
        check_copies(
            arguments, {name: x for name, x in inputs.items() if arguments[name] is not self.given[name]}, before
        )
        return results

    def _argument(self, name: str, inputs: Inputs, layout: Mapping[str, str]) -> Any:
        if name not in inputs:
            return self.given[name]
        array, maker = inputs[name], self.makers[name]
        if name in layout:
            placed = maker.place(array, layout[name])
            if isinstance(placed, np.ndarray):
                placed.flags.writeable = (
                    True  # one row expanded: a function that writes into it is told so, by its bits
                )
            return placed
        shared = name in SHARED and array is self.inputs[name]
        return self.given[name] if shared else maker.from_numpy(array)

    def base(self) -> Results:
        """The result of the call itself."""
        __tracebackhide__ = True
        results = self._of_the_call_itself()
        for path, result in results.items():
            if result.shape[:1] != (self.count,):
                raise ValueError(
                    f"the result{path} has shape {result.shape} for {self.count} rows; expected [{self.count}, ...]: "
                    "name the arguments that are the batch, rows=, and put its axis first"
                )
        return results

    def _of_the_call_itself(self) -> Results:
        __tracebackhide__ = True
        try:
            results = self.run(self.inputs)
        except Exception as error:
            if not isinstance(error, ArgumentChanged):
                error.add_note("crosscheck: raised in the call itself, before any transform")
            raise
        self.kept.check()
        return results

    def difference(self, trial: Trial[Array], base: Results) -> tuple[str, Difference] | None:
        """Where the transformed calls differ from the call itself: the path in the result, and how it does there."""
        __tracebackhide__ = True
        calls = [self._transformed(trial, inputs, base) for inputs in trial.calls]
        for path, expected in base.items():
            found = self._difference(trial, [results[path] for results in calls], expected)
            if found is not None:
                return path, found
        return None

    def _difference(self, trial: Trial[Array], results: list[Array], base: Array) -> Difference | None:
        for inputs, result in zip(trial.calls, results, strict=True):
            due = self.due(inputs, base)
            if result.dtype != base.dtype or result.shape != due:
                return compare(result, np.broadcast_to(np.zeros((), base.dtype), due))
        return compare(trial.join([self.as_rows(x) for x in results]), trial.expected(self.as_rows(base)))

    def _transformed(self, trial: Trial[Array], inputs: Inputs, base: Results) -> Results:
        __tracebackhide__ = True
        try:
            with np.errstate(all="ignore"):  # rows that come in overflow on purpose
                results = self.run(inputs, trial.layout)
            if list(results) != list(base):
                got, want = (", ".join(f"the result{path}" for path in x) for x in (results, base))
                raise ValueError(f"the arrays are {got}; expected {want}, as in the call itself")
        except ArgumentChanged:
            raise
        except Exception as error:
            if "expanded" in trial.layout.values():
                self._check_writes(inputs)
            error.add_note(f"crosscheck: raised under the transform {trial.name!r} ({trial.column})")
            raise
        return results

    def _check_writes(self, inputs: Inputs) -> None:
        """Torch refuses to write into one row expanded; whether it was that shows in rows that are stored each.

        Raises:
            ArgumentChanged: the function writes into its arguments.
        """
        try:
            self.run(inputs)
        except ArgumentChanged:
            raise
        except Exception:  # it refuses these rows however they are stored
            return


class Operator(Subject):
    """An operator of the contract, whose rows are all leading axes, and whose vocab is transformed as well."""

    def _check(self) -> None:
        pass  # `_is_operator` has

    @property
    def _call(self) -> Call:
        return Call(self.inputs)

    @property
    def count(self) -> int:
        return len(self._call.rows)

    def first(self, rows: int) -> Inputs:
        return self._call.with_rows(self._call.rows[:rows])

    def _trials(self, inputs: Inputs, seed: int) -> Iterator[Attempt]:
        return (attempt for attempt in trials(inputs, seed) if getattr(attempt, "parts", None) is None)

    def due(self, inputs: Inputs, base: Array) -> tuple[int, ...]:
        return result_shape(inputs)

    def as_rows(self, result: Array) -> Array:
        return as_rows(result, self.inputs)

    def base(self) -> Results:
        __tracebackhide__ = True
        results = self._of_the_call_itself()
        if list(results) != [""]:
            raise ValueError(
                f"the result is {len(results)} arrays; expected one, as an operator of the contract with these "
                f"arguments has: of another function, name the batch, rows={self._call.axis!r}"
            )
        if (result := results[""]).shape != (due := result_shape(self.inputs)):
            raise ValueError(
                f"the result has shape {result.shape}; expected {due}, as an operator of the contract with these "
                f"arguments has: of another function, name the batch, rows={self._call.axis!r}"
            )
        return results


def subject_of(function: Callable[..., Any], inputs: Any, rows: str | Sequence[str] | None) -> Subject:
    """The function with its arguments; `assert_batch_invariant` says how they are read."""
    if not callable(function):
        raise TypeError(f"function is {a_kind(function)}; expected a function of the inputs, which come behind it")
    by_name = isinstance(inputs, Mapping)
    given = dict(inputs) if isinstance(inputs, Mapping) else _named(function, inputs)
    unnamed = [name for name in given if not isinstance(name, str)]
    if unnamed:
        raise TypeError(f"inputs has the key {unnamed[0]!r}; expected names of arguments: in order they are a tuple")
    if not given:
        raise ValueError("inputs are empty; expected the arguments of the function, one of them the batch")
    if rows is None and all(map(has_values, given.values())) and _is_operator(given):
        return Operator(function, given, by_name, list(given))
    if rows is not None and not isinstance(rows, str | Sequence):
        raise TypeError(f"rows is {a_kind(rows)}; expected the name of an argument, or several, among {list(given)}")
    batch = [next(iter(given))] if rows is None else [rows] if isinstance(rows, str) else list(rows)
    unknown = [name for name in batch if name not in given]
    if unknown or not batch:
        raise ValueError(f"rows names {unknown or 'nothing'}; expected names of arguments, among {list(given)}")
    return Subject(function, given, by_name, batch)


def _named(function: Callable[..., Any], inputs: Any) -> dict[str, Any]:
    """Positional arguments by the names that the signature has for them, or by their numbers."""
    if not is_array(inputs) and not isinstance(inputs, tuple | list):
        raise TypeError(
            f"inputs is {a_kind(inputs)}; expected a dict of arguments by name, a tuple of them in order, or one array"
        )
    values = (inputs,) if is_array(inputs) else tuple(inputs)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return {names[i] if i < len(names) else str(i): value for i, value in enumerate(values)}


def _called(name: str) -> str:
    return f"argument {name}" if name.isdigit() else name


def _arrays_of(result: Any) -> Results:
    """The arrays of a result, copied, since the next call may write into them; None among its parts is left out."""
    if result is None:
        raise TypeError("the result is None; expected an array, or a tuple or dict of arrays: return what to compare")
    leaves = [(path, leaf) for path, leaf in leaves_of(result, "the result") if leaf is not None]
    if not leaves:
        raise ValueError(f"the result is {a_kind(result)} without an array; expected one to compare")
    return {path: as_numpy(leaf, f"the result{path}").copy() for path, leaf in leaves}


def _is_operator(given: Mapping[str, Any]) -> bool:
    if set(given) - ({"bias"} if "hidden" in given else set()) not in CALLS or not all(map(is_array, given.values())):
        return False
    shapes = {name: tuple(x.shape) for name, x in given.items()}
    dtypes = {name: str(x.dtype).removeprefix("torch.") for name, x in given.items()}
    if not all(dtypes[name].startswith(("int", "uint")) for name in IDS if name in given):
        return False
    if "target_ids" in given and shapes["target_ids"] != shapes[leading(given)][:-1]:
        return False
    if "logits" in given:
        return dtypes["logits"] in FLOATS and shapes["logits"][-1:] > (0,)
    vocab_and_width = shapes["weight"]
    if len(vocab_and_width) != 2 or dtypes["weight"] not in FLOATS:
        return False
    if "token_ids" in given:
        return True
    if shapes.get("bias", vocab_and_width[:1]) != vocab_and_width[:1]:
        return False
    return dtypes["hidden"] in FLOATS and shapes["hidden"][-1:] == vocab_and_width[1:]
