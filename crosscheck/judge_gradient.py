"""Judge the gradients of one case: compare them with the contract's and with those of transformed calls."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.backends import Adapter
from crosscheck.bits import compare
from crosscheck.candidate_adapters import Candidate
from crosscheck.cases import Inputs
from crosscheck.gradient_invariance import BAD_IDS, gradient_trials, work
from crosscheck.gradients import Gradients, contract_gradients, part_of, upstream, wanted
from crosscheck.operators import gradients_as_rows
from crosscheck.spread import enter_compared
from crosscheck.trial import NotApplicable, Trial
from crosscheck.verdict import NOT_OFFERED, Check, NotOffered, in_one_line

__all__ = ["GradientScope", "expected_gradients", "gradient_call", "judge_gradients"]

Array = NDArray[Any]
SMALL = 2**12  # work; larger cases are not worth another compilation
ITSELF = "the call itself"
NEW_SHAPE = "a mode that compiles tries the transforms that need another compilation in a few small cases only"


def gradient_call(op: str, inputs: Inputs, seed: int) -> Inputs:
    """The inputs that take part in the gradients, and the upstream gradient."""
    part, _ = part_of(inputs)
    return {**part, "grad": upstream(op, part, seed)}


def expected_gradients(op: str, inputs: Inputs, seed: int, digits: int | None) -> Gradients:
    """The contract's answer."""
    call = gradient_call(op, inputs, seed)
    return contract_gradients(call, call.pop("grad"), digits)


class GradientScope:
    """What to take gradients of, and how: an operator of an adapter in a mode."""

    def __init__(self, adapter: Adapter, op: str, digits: int | None, mode: str) -> None:
        self.adapter, self.op, self.digits, self.mode = adapter, op, digits, mode

    def arguments(self, inputs: Inputs, layout: Mapping[str, str] | None = None) -> dict[str, Any]:
        stored = layout or {}
        return {
            name: self.adapter.place(array, stored[name]) if name in stored else self.adapter.from_numpy(array)
            for name, array in inputs.items()
        }

    def gradients(self, arguments: dict[str, Any]) -> Gradients:
        """By the argument's name.

        Raises:
            ValueError: another set of gradients than that of the arguments.
            Whatever the adapter raises.
        """
        others = {name: array for name, array in arguments.items() if name != "grad"}
        found = self.adapter.gradients(self.op, others, arguments["grad"], self.digits, self.mode)
        names = wanted(others)
        if set(found) != set(names):
            raise ValueError(f"gradients of {', '.join(found) or 'nothing'}; expected those of {', '.join(names)}")
        return {name: self.adapter.to_numpy(found[name]) for name in names}


def judge_gradients(
    scope: GradientScope,
    call: Inputs,
    seed: int,
    expected: Gradients,
    checks: Mapping[str, Check],
    *,
    new_shapes: str,
    announce: Callable[[str], None],
) -> None:
    """Enter everything in checks: in "grad", and in "inputs" whether the call left its arguments alone.

    Arguments:
        call: inputs, with the upstream gradient among them.
        new_shapes: which calls may have other shapes or storage: "all", "small" or "none".
    """
    check = checks["grad"]
    announce("the gradients")
    try:
        arguments = scope.arguments(call)
        found = scope.gradients(arguments)
    except NotOffered as reason:
        check.leave_out("any", f"{NOT_OFFERED}: {reason}")
        return
    except Exception as error:  # the judged code's own: the results are judged all the same
        check.enter_raised(ITSELF, error)
        return
    for name, array in found.items():
        enter_compared(checks, "grad", f"{ITSELF}, gradient of {name}", array, expected[name])
    for name, array in call.items():
        label = "the upstream gradient" if name == "grad" else name
        checks["inputs"].enter(f"{label} after the gradients", compare(scope.adapter.to_numpy(arguments[name]), array))
    if any(not _alike(array, expected[name]) for name, array in found.items()):
        check.leave_out("transforms", "a gradient has another shape or dtype")
        return
    base = gradients_as_rows(found)
    free = new_shapes == "all" or (new_shapes == "small" and work(call) <= SMALL)
    for attempt in gradient_trials(call, seed):
        if isinstance(attempt, NotApplicable):
            check.leave_out(attempt.name, attempt.reason)
        elif not free and not attempt.keeps_shapes(call):
            check.leave_out(attempt.name, NEW_SHAPE)
        else:
            announce(f"the gradients, {attempt.name}")
            _try(scope, attempt, base, check)


def _try(scope: GradientScope, trial: Trial[Gradients], base: Gradients, check: Check) -> None:
    try:
        _enter_trial(scope, trial, base, check)
    except NotOffered as lacking:
        check.leave_out(trial.name, str(lacking))
    except Exception as error:  # it fails this trial, the others are still judged
        if trial.name == BAD_IDS and isinstance(scope.adapter, Candidate):
            check.leave_out(trial.name, f"it refuses bad ids: {in_one_line(error)}")
        else:
            check.enter_raised(trial.name, error)


def _enter_trial(scope: GradientScope, trial: Trial[Gradients], base: Gradients, check: Check) -> None:
    results = []
    for inputs in trial.calls:
        found = scope.gradients(scope.arguments(inputs, trial.layout))
        for name, array in found.items():
            if not _alike(array, inputs[name]):
                shaped = np.broadcast_to(np.zeros((), inputs[name].dtype), inputs[name].shape)
                check.enter(f"{trial.name}, gradient of {name}", compare(array, shaped))
                return
        results.append(gradients_as_rows(found))
    expected = trial.expected(base)
    found = trial.join(results)
    differences = {name: compare(found[name], expected[name]) for name in expected}
    different = {name: difference for name, difference in differences.items() if difference is not None}
    for name, difference in different.items():
        check.enter(f"{trial.name}, gradient of {name}", difference)
    if not different:
        check.enter(trial.name, None)


def _alike(array: Array, other: Array) -> bool:
    return array.shape == other.shape and array.dtype == other.dtype
