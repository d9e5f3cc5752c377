"""Judge one case: run it on a backend's adapter, compare it with the contract and with its own transforms."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crosscheck import accuracy, contract
from crosscheck.backends import Adapter
from crosscheck.bits import Difference, compare
from crosscheck.cases import Inputs
from crosscheck.gradients import Gradients, result_shape
from crosscheck.invariance import NotApplicable, Trial, trials
from crosscheck.judge_gradient import GradientScope, expected_gradients, gradient_call, judge_gradients
from crosscheck.verdict import CHECKS, Check, Verdict

__all__ = ["Answer", "Effort", "Judged", "expected_answer", "judge"]

Array = NDArray[Any]
NEW_SHAPE = "a mode that compiles tries the transforms that need another compilation in some cases only"
OTHER_MODE = "where every mode compiles, each takes the gradients of some of the cases"


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
    def shared_out(self) -> bool: ...
    def inputs(self) -> Inputs: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Answer:
    """What the contract gives for a case."""

    result: Array
    gradients: Gradients


@dataclass(frozen=True)
class Effort:
    """What is tried, where a mode compiles and each new shape costs it some tenths of a second.

    Arguments:
        compiles: whether the mode does.
        thorough: try the transforms that change shapes or storage, too; those of gradients in a small case only.
        gradients: take gradients.
    """

    compiles: bool = False
    thorough: bool = True
    gradients: bool = True

    @property
    def gradient_shapes(self) -> str:
        if not self.compiles:
            return "all"
        return "small" if self.thorough else "none"

    @property
    def new_shapes(self) -> bool:
        return self.thorough or not self.compiles


EVERYTHING = Effort()


def expected_answer(case: Judged) -> Answer:
    inputs = case.inputs()
    digits = {} if case.digits is None else {"digits": case.digits}
    result: Array = getattr(contract, case.op)(**inputs, **digits)
    return Answer(result, expected_gradients(case.op, inputs, case.seed))


def judge(
    adapter: Adapter,
    backend: str,
    case: Judged,
    mode: str,
    expected: Answer,
    *,
    effort: Effort = EVERYTHING,
    announce: Callable[[str], None] = lambda doing: None,
) -> Verdict:
    """Run the case and all its transforms.

    Arguments:
        expected: the contract's answer.
        effort: what to leave out.
        announce: told in a few words what is about to run, so that a crash can be placed.

    Raises:
        Whatever the call itself raises: the process that called decides what that means. A transformed call
        that raises fails its trial, and one that takes gradients fails the check "grad".
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
    verdict.checks["bits"].enter("the call itself", compare(result, expected.result))
    bench.look_after(arguments, verdict.checks["inputs"])
    if result.shape == expected.result.shape:
        _try_transforms(bench, result, verdict.checks, effort, announce)
        if "hidden" in bench.inputs:
            verdict.accuracy = accuracy.measure(result, bench.inputs, case.seed)
        _take_gradients(bench, expected.gradients, verdict.checks, effort, announce)
    else:
        reason = f"the result has shape {result.shape}; expected {expected.result.shape}"
        for name in CHECKS[2:]:
            verdict.checks[name].leave_out("any", reason)
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

    def look_after(self, arguments: dict[str, Any], check: Check) -> None:
        """Enter whether the call left its arguments alone; a weight that it did is used again."""
        for name, array in self.inputs.items():
            change = compare(self.adapter.to_numpy(arguments[name]), array)
            check.enter(f"{name} after the call", change)
            if change is None and name == "weight":
                self.weight = arguments[name]

    def run(self, arguments: dict[str, Any]) -> Array:
        return self.adapter.to_numpy(self.adapter.run(self.case.op, arguments, self.case.digits, self.mode))

    def difference(self, trial: Trial[Array], base: Array) -> Difference | None:
        """How the transformed calls differ from the untransformed result [rows, width]."""
        results = []
        for inputs in trial.calls:
            result, shape = self.run(self.arguments(inputs, trial.layout)), result_shape(inputs)
            if result.shape != shape or result.dtype != base.dtype:
                return compare(result, np.broadcast_to(np.zeros((), base.dtype), shape))
            results.append(_as_rows(result))
        return compare(trial.join(results), trial.expected(base))


def _try_transforms(
    bench: _Bench,
    result: Array,
    checks: Mapping[str, Check],
    effort: Effort,
    announce: Callable[[str], None],
) -> None:
    base = _as_rows(result)
    for attempt in trials(bench.inputs, bench.case.seed):
        check = checks[attempt.column]
        if isinstance(attempt, NotApplicable):
            check.leave_out(attempt.name, attempt.reason)
        elif not effort.new_shapes and not attempt.keeps_shapes(bench.inputs):
            check.leave_out(attempt.name, NEW_SHAPE)
        else:
            announce(attempt.name)
            try:
                check.enter(attempt.name, bench.difference(attempt, base))
            except Exception as error:  # the judged code's own: it fails this trial, the others are still judged
                check.enter_raised(attempt.name, error)


def _take_gradients(
    bench: "_Bench",
    expected: Gradients,
    checks: Mapping[str, Check],
    effort: Effort,
    announce: Callable[[str], None],
) -> None:
    if not effort.gradients:
        checks["grad"].leave_out("any", OTHER_MODE)
        return
    case = bench.case
    call = gradient_call(case.op, bench.inputs, case.seed)
    scope = GradientScope(bench.adapter, case.op, case.digits, bench.mode)
    judge_gradients(scope, call, case.seed, expected, checks, new_shapes=effort.gradient_shapes, announce=announce)


def _as_rows(result: Array) -> Array:
    return result.reshape(int(np.prod(result.shape[:-1])), result.shape[-1])
