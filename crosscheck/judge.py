"""Judge one case: run it on a backend's adapter, compare it with the contract and with its own transforms."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from crosscheck import accuracy
from crosscheck.backends import Adapter
from crosscheck.bench import Bench, Judged, digest_of_inputs
from crosscheck.bits import digest
from crosscheck.calls import contract_result
from crosscheck.candidate_adapters import Candidate
from crosscheck.gradients import Gradients
from crosscheck.invariance import SHARDS, NotApplicable, trials
from crosscheck.judge_candidate import nature, smallest_batch, try_bad_ids
from crosscheck.judge_gradient import GradientScope, expected_gradients, gradient_call, judge_gradients
from crosscheck.operators import as_rows
from crosscheck.spread import enter_compared
from crosscheck.verdict import CHECKS, NOT_OFFERED, Check, NotOffered, Verdict

__all__ = ["Answer", "Effort", "Judged", "expected_answer", "judge"]

Array = NDArray[Any]
NEW_SHAPE = "a mode that compiles tries the transforms that need another compilation in some cases only"
OTHER_MODE = "where every mode compiles, each takes the gradients of some of the cases"


@dataclass(frozen=True)
class Answer:
    """What the contract gives for a case, and a digest of the inputs that it gives it for."""

    result: Array
    gradients: Gradients
    inputs_digest: str = ""


@dataclass(frozen=True)
class Effort:
    """What is tried, where a mode compiles and each new shape costs it some tenths of a second.

    Arguments:
        compiles: whether the mode does.
        thorough: try the transforms that change shapes or storage, too; those of gradients in a small case only.
        gradients: take gradients.
        divided: divide the vocab and the hidden dimension into all of SHARDS, and not into two parts alone.
    """

    compiles: bool = False
    thorough: bool = True
    gradients: bool = True
    divided: bool = True

    @property
    def gradient_shapes(self) -> str:
        if not self.compiles:
            return "all"
        return "small" if self.thorough else "none"

    @property
    def new_shapes(self) -> bool:
        return self.thorough or not self.compiles

    @property
    def shards(self) -> tuple[int, ...]:
        return SHARDS if self.divided else (2,)


EVERYTHING = Effort()


def expected_answer(case: Judged) -> Answer:
    inputs = case.inputs()
    result = contract_result(case.op, inputs, case.digits)
    return Answer(result, expected_gradients(case.op, inputs, case.seed, case.digits), digest_of_inputs(inputs))


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
    bench = Bench(adapter, case, mode)
    announce("the call itself")
    arguments = bench.arguments(bench.inputs)
    digits = "auto" if case.digits is None else str(case.digits)
    about = (case.id, case.op, backend, mode, adapter.implementation(case.op, arguments, case.digits))
    try:
        result = bench.run(arguments)
    except NotOffered as lacking:
        return Verdict(*about, NOT_OFFERED, str(lacking), digits=digits)
    verdict = Verdict(*about, checks={name: Check() for name in CHECKS}, digits=digits, dtype=result.dtype.name)
    _compare(bench, arguments, result, expected.result, verdict)
    bench.look_after(arguments, verdict.checks["inputs"])
    if result.shape == expected.result.shape:
        _try_transforms(bench, result, verdict.checks, effort, announce)
        if "token_ids" not in bench.inputs:
            verdict.accuracy = accuracy.measure(result, bench.inputs, case.seed)
        if isinstance(adapter, Candidate):
            try_bad_ids(bench, result, verdict.checks["bits"], announce, compared=bool(verdict.contract_digest))
            if effort.new_shapes or mode == "eager":
                announce("the smallest batch")
                verdict.smallest = smallest_batch(bench, verdict.checks)
        _take_gradients(bench, expected.gradients, verdict.checks, effort, announce)
    else:
        reason = f"the result has shape {result.shape}; expected {expected.result.shape}"
        for name in CHECKS[2:]:
            verdict.checks[name].leave_out("any", reason)
    verdict.seconds = time.perf_counter() - started
    return verdict


def _compare(bench: Bench, arguments: dict[str, Any], result: Array, expected: Array, verdict: Verdict) -> None:
    """The result with the contract's, where the candidate could be told all of the call."""
    name, check, reason = "the call itself", verdict.checks["bits"], None
    if isinstance(bench.adapter, Candidate):
        reason = bench.adapter.uncompared(bench.case.op, arguments, bench.case.digits)
        verdict.nature = "" if reason else nature(result, expected)
    verdict.digest = digest(result)
    if reason is None:
        enter_compared(verdict.checks, "bits", name, result, expected)
        verdict.contract_digest = digest(expected)
    else:
        check.leave_out(name, reason)


def _try_transforms(
    bench: Bench,
    result: Array,
    checks: Mapping[str, Check],
    effort: Effort,
    announce: Callable[[str], None],
) -> None:
    base = as_rows(result, bench.inputs)
    for attempt in trials(bench.inputs, bench.case.seed, effort.shards):
        check = checks[attempt.column]
        if isinstance(attempt, NotApplicable):
            check.leave_out(attempt.name, attempt.reason)
        elif not effort.new_shapes and not attempt.keeps_shapes(bench.inputs):
            check.leave_out(attempt.name, NEW_SHAPE)
        else:
            announce(attempt.name)
            try:
                enter_compared(checks, attempt.column, attempt.name, *bench.pair(attempt, base))
            except NotOffered as lacking:
                check.leave_out(attempt.name, str(lacking))
            except Exception as error:  # the judged code's own: it fails this trial, the others are still judged
                check.enter_raised(attempt.name, error)


def _take_gradients(
    bench: Bench,
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
