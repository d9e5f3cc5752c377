"""Judge one case: run it on a backend's adapter, compare it with the contract and with its own transforms."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crosscheck import accuracy, contract
from crosscheck.backends import Adapter
from crosscheck.bits import Difference, compare
from crosscheck.cases import Inputs
from crosscheck.invariance import COLUMNS, NotApplicable, Trial, trials
from crosscheck.verdict import CHECKS, Check, Failure, Verdict

__all__ = ["Judged", "expected_result", "in_one_line", "judge"]

Array = NDArray[Any]
NEW_SHAPE = "a mode that compiles tries the transforms that need another compilation in some cases only"


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
    def inputs(self) -> Inputs: ...
    def to_json(self) -> dict[str, Any]: ...


def expected_result(case: Judged) -> Array:
    """The contract's answer."""
    digits = {} if case.digits is None else {"digits": case.digits}
    result: Array = getattr(contract, case.op)(**case.inputs(), **digits)
    return result


def judge(
    adapter: Adapter,
    backend: str,
    case: Judged,
    mode: str,
    expected: Array,
    *,
    thorough: bool = True,
    announce: Callable[[str], None] = lambda doing: None,
) -> Verdict:
    """Run the case and all its transforms.

    Arguments:
        expected: the contract's answer.
        thorough: try the transforms that change shapes or storage, too.
        announce: told in a few words what is about to run, so that a crash can be placed.

    Raises:
        Whatever the call itself raises: the process that called decides what that means. A transformed call
        that raises fails its trial.
    """
    started = time.perf_counter()
    bench = _Bench(adapter, case, mode)
    announce("the call itself")
    arguments = bench.arguments(bench.inputs)
    result = bench.run(arguments)
    verdict = Verdict(
        case.id,
        case.op,
        backend,
        mode,
        adapter.implementation(case.op, arguments, case.digits),
        checks={name: Check() for name in CHECKS},
        digits="auto" if case.digits is None else str(case.digits),
        dtype=result.dtype.name,
    )
    _enter(verdict.checks["bits"], "the call itself", compare(result, expected))
    for name, array in bench.inputs.items():
        change = compare(adapter.to_numpy(arguments[name]), array)
        _enter(verdict.checks["inputs"], f"{name} after the call", change)
        if change is None and name == "weight":
            bench.weight = arguments[name]
    if result.shape == expected.shape:
        _try_transforms(bench, result, verdict.checks, thorough, announce)
        if "hidden" in bench.inputs:
            verdict.accuracy = accuracy.measure(result, bench.inputs, case.seed)
    else:
        reason = f"the result has shape {result.shape}; expected {expected.shape}"
        for name in COLUMNS:
            verdict.checks[name].not_applicable.append({"trial": "any", "reason": reason})
    verdict.seconds = time.perf_counter() - started
    return verdict


class _Bench:
    """A case on an adapter in a mode. `weight`: the adapter's copy of the weight, which calls share once it is set."""

    def __init__(self, adapter: Adapter, case: Judged, mode: str) -> None:
        self.adapter, self.case, self.mode = adapter, case, mode
        self.inputs = case.inputs()
        self.weight: Any = None

    def arguments(self, inputs: Inputs, layout: Mapping[str, str] | None = None) -> dict[str, Any]:
        return {name: self._argument(array, (layout or {}).get(name)) for name, array in inputs.items()}

    def _argument(self, array: Array, layout: str | None) -> Any:
        if layout is not None:
            return self.adapter.place(array, layout)
        if self.weight is not None and array is self.inputs["weight"]:
            return self.weight
        return self.adapter.from_numpy(array)

    def run(self, arguments: dict[str, Any]) -> Array:
        return self.adapter.to_numpy(self.adapter.run(self.case.op, arguments, self.case.digits, self.mode))

    def difference(self, trial: Trial, base: Array) -> Difference | None:
        """How the transformed calls differ from the untransformed result [rows, width]."""
        results = []
        for inputs in trial.calls:
            result, shape = self.run(self.arguments(inputs, trial.layout)), _result_shape(inputs)
            if result.shape != shape or result.dtype != base.dtype:
                return compare(result, np.broadcast_to(np.zeros((), base.dtype), shape))
            results.append(_as_rows(result))
        return compare(trial.join(results), trial.expected(base))


def _try_transforms(
    bench: _Bench,
    result: Array,
    checks: Mapping[str, Check],
    thorough: bool,
    announce: Callable[[str], None],
) -> None:
    base = _as_rows(result)
    for attempt in trials(bench.inputs, bench.case.seed):
        check = checks[attempt.column]
        if isinstance(attempt, NotApplicable):
            check.not_applicable.append({"trial": attempt.name, "reason": attempt.reason})
        elif not thorough and not attempt.keeps_shapes(bench.inputs):
            check.not_applicable.append({"trial": attempt.name, "reason": NEW_SHAPE})
        else:
            announce(attempt.name)
            try:
                _enter(check, attempt.name, bench.difference(attempt, base))
            except Exception as error:  # the judged code's own: it fails this trial, the others are still judged
                check.failed.append(Failure(attempt.name, f"raised {in_one_line(error)}", None))


def _result_shape(inputs: Inputs) -> tuple[int, ...]:
    if "token_ids" in inputs:
        return (*inputs["token_ids"].shape, inputs["weight"].shape[1])
    return (*inputs["hidden"].shape[:-1], inputs["weight"].shape[0])


def _as_rows(result: Array) -> Array:
    return result.reshape(int(np.prod(result.shape[:-1])), result.shape[-1])


def in_one_line(error: Exception) -> str:
    """The type of an exception and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _enter(check: Check, trial: str, difference: Difference | None) -> None:
    if difference is None:
        check.passed += 1
    else:
        check.failed.append(Failure(trial, difference.describe(), asdict(difference)))
