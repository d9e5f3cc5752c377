"""Failures by kind, and whether a call with other inputs fails in the same way."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from crosscheck.backends import Adapter
from crosscheck.bench import Bench
from crosscheck.bits import Difference, compare
from crosscheck.calls import Call, contract_result
from crosscheck.cases import Inputs
from crosscheck.gradient_invariance import BAD_IDS, gradient_trials
from crosscheck.gradients import Gradients, contract_gradients
from crosscheck.invariance import Trial, trials
from crosscheck.judge_candidate import BAD_ID, BATCH, VOCAB, nature, of_nan_alone
from crosscheck.judge_gradient import ITSELF, GradientScope
from crosscheck.operators import as_rows, gradients_as_rows, result_shape
from crosscheck.rounding import quiet_nan
from crosscheck.verdict import Failure, Verdict, in_one_line
from crosscheck.ways import Way, way_of

__all__ = ["Failing", "Retrial", "bad_id", "failings", "trial_of"]

Array = NDArray[Any]
_OF = ", gradient of "
_AFTER = " after the "  # "hidden after the call", "weight after the gradients"
_UPSTREAM = "the upstream gradient"


@dataclass(frozen=True)
class Failing:
    """A failure that can be tried again.

    Arguments:
        kind: a word, or some with hyphens; one reproducer is made of each.
        title: the kind and what belongs to it, in words.
        trial: the transform, where there is one.
        argument: whose gradient it is, or which argument was changed.
        error: the type of what was raised.
        message: its first line, without its numbers, which may be sizes; None where any will do.
        special: whether NaN patterns, or signs of zeros, are all that differs.
        pair, apart: in which way values differ (`crosscheck.ways.Way`).
        gradients: whether they are what fails.
        index: of the first element that differs.
    """

    kind: str
    title: str
    trial: str = ""
    argument: str = ""
    error: str = ""
    message: str | None = None
    special: bool = False
    pair: str = ""
    apart: int = 0
    gradients: bool = False
    index: tuple[int, ...] = ()

    @property
    def way(self) -> Way:
        return Way(self.pair, self.apart)


def failings(verdict: Verdict) -> Iterator[Failing]:
    """What there is to shrink of a verdict: no crash and no hang, which would end each process that tries."""
    if verdict.status == "raised" and verdict.message.endswith("in: the call itself"):
        error, message = _raised(verdict.message.removesuffix(", in: the call itself"))
        yield Failing("raises", f"raises {error}", error=error, message=message)
    for column, check in verdict.checks.items():
        for failure in check.failed:
            failing = _failing(verdict, column, failure)
            if failing is not None:
                yield failing


def _failing(verdict: Verdict, column: str, failure: Failure) -> Failing | None:
    difference, trial = failure.difference, failure.trial
    if column == "grad":
        return _gradient_failing(failure)
    if difference is None:
        error, message = _raised(failure.text)
        title = f"raises {error} under a transform: {trial}"
        return Failing("raises-transformed", title, trial, error=error, message=message)
    if column == "bits":
        return _of_bits(verdict, trial, difference)
    if column == "inputs":
        argument, _, where = trial.partition(_AFTER)
        name = "grad" if argument == _UPSTREAM else argument
        title = f"changes its arguments: {trial}"
        return Failing("arguments", title, argument=name, gradients=where != "call", **_found(difference))
    kind, title = ("batch", "depends on the batch") if column in BATCH else _ALONE[column]
    if trial in VOCAB:
        kind, title = "vocab", "depends on the rest of the vocab"
    special = of_nan_alone(difference)
    if special:
        kind, title = f"{kind}-nan", f"{title} in NaN patterns"
    elif difference["max_ulp"] == 0:
        kind, title = f"{kind}-zeros", f"{title} in signs of zeros"
    return Failing(kind, f"{title}: {trial}", trial, special=special, **_found(difference))


_ALONE = {"layout": ("layout", "depends on how its arguments are stored"), "repeat": ("repeat", "not repeatable")}


def _found(difference: Mapping[str, Any]) -> dict[str, Any]:
    """Where the first values differ, and in which way."""
    return {**asdict(way_of(difference)), "index": tuple(difference["index"] or ())}


def _of_bits(verdict: Verdict, trial: str, difference: Mapping[str, Any]) -> Failing:
    found = _found(difference)
    if trial.startswith(BAD_ID):
        return Failing("bad-id", f"answers a bad id with another row: {trial}", trial, **{**found, "index": ()})
    kind = difference["kind"]
    if kind != "bits":
        return Failing(kind, f"returns another {kind}", **found)
    equal_values = difference["max_ulp"] == 0 or of_nan_alone(difference)
    if verdict.nature or equal_values:
        only = f" (only {verdict.nature})" if verdict.nature else ""
        return Failing("bits-special", f"other bits than the contract{only}", special=True, **found)
    return Failing("bits", "other bits than the contract", **found)


def _gradient_failing(failure: Failure) -> Failing | None:
    trial, _, argument = failure.trial.partition(_OF)
    if trial == BAD_IDS:
        return None  # its transformed call is none that the contract has a result for
    if failure.difference is None:
        error, message = _raised(failure.text)
        named = "" if trial == ITSELF else trial
        title = f"gradients raise {error}" + (f": {named}" if named else "")
        return Failing("grad-raises", title, named, error=error, message=message, gradients=True)
    kind, found = failure.difference["kind"], _found(failure.difference)
    if trial == ITSELF:
        other = "other bits than the contract" if kind == "bits" else f"another {kind}"
        kind = "grad" if kind == "bits" else f"grad-{kind}"
        title = f"gradient of {argument} with {other}"
        return Failing(kind, title, argument=argument, gradients=True, **found)
    title = f"gradient of {argument} changes with: {trial}"
    return Failing("grad-transform", title, trial, argument, gradients=True, **found)


def _raised(text: str) -> tuple[str, str]:
    """("ValueError", "ValueError: row #") of "raised ValueError: row 12"."""
    text = text.removeprefix("raised ")
    return text.partition(":")[0], re.sub(r"\d+", "#", text)


# Trying again ------------------------------------------------------------------------------------------
def trial_of(failing: Failing, inputs: Inputs, seed: int) -> Trial[Any] | None:
    """The failing transform of these inputs; None where they have none."""
    every: Iterator[Any] = (gradient_trials if failing.gradients else trials)(inputs, seed)
    return next((x for x in every if isinstance(x, Trial) and _alike(x.name, failing.trial)), None)


def _alike(name: str, other: str) -> bool:
    """Whether two transforms are the same but for the sizes that some have in their names."""
    if name == other:
        return True
    words, others = name.split(), other.split()
    if words[:2] == others[:2] == ["leading", "shape"]:
        return True
    if words[:2] == others[:2] == ["pad", "token"]:
        return words[3:] == others[3:] and words[2] != "0" != others[2]
    return False


def bad_id(failing: Failing, inputs: Inputs) -> int:
    """The id that is not in the vocab, which is another where the vocab is smaller."""
    return -1 if failing.trial.endswith("-1") else Call(inputs).vocab


@dataclass(frozen=True)
class _Call:
    """A case of given arrays."""

    op: str
    digits: int | None
    seed: int
    arrays: Inputs
    id: str = "shrunk"
    thorough: bool = False
    divided: bool = False
    shared_out: bool = False

    def inputs(self) -> Inputs:
        return self.arrays

    def to_json(self) -> dict[str, Any]:
        return {"kind": "shrunk"}


@dataclass(frozen=True)
class Retrial:
    """A failure, and what it is a failure of: an operator on an adapter in a mode."""

    adapter: Adapter
    op: str
    digits: int | None
    mode: str
    seed: int
    failing: Failing

    def fails(self, inputs: Inputs) -> bool:
        """Whether the call fails in the same way; with gradients, `inputs` have the upstream gradient.

        What fails otherwise does not count: in the end another failure would have been shrunk.
        """
        try:
            return self._gradients_fail(inputs) if self.failing.gradients else self._result_fails(inputs)
        except Exception:  # the judged code's own, and not the one that is looked for: `_raises` has that
            return False

    def _raises(self, call: Callable[[], Any]) -> bool:
        try:
            call()
        except Exception as error:  # the judged code's own
            name, message = _raised(in_one_line(error))
            return name == self.failing.error and self.failing.message in (None, message)
        return False

    def _result_fails(self, inputs: Inputs) -> bool:
        failing = self.failing
        bench = Bench(self.adapter, _Call(self.op, self.digits, self.seed, inputs), self.mode)
        arguments = bench.arguments(inputs)
        if failing.kind == "raises":
            return self._raises(lambda: bench.run(arguments))
        result = bench.run(arguments)
        if failing.kind == "arguments":
            return self._alike(compare(self.adapter.to_numpy(arguments[failing.argument]), inputs[failing.argument]))
        if failing.kind == "bad-id":
            return self._bad_id_fails(bench, inputs)
        if not failing.trial:
            return self._differs_from_contract(result, inputs)
        trial = trial_of(failing, inputs, self.seed)
        if trial is None or result.shape != result_shape(inputs):
            return False
        base = as_rows(result, inputs)
        if failing.error:
            return self._raises(lambda: bench.difference(trial, base))
        return self._alike(bench.difference(trial, base))

    def _alike(self, difference: Difference | None) -> TypeGuard[Difference]:
        """Whether it is a difference, and in the way of the failure."""
        return difference is not None and self.failing.way.keeps(way_of(asdict(difference)))

    def _differs_from_contract(self, result: Array, inputs: Inputs) -> bool:
        expected = contract_result(self.op, inputs, self.digits)
        difference = compare(result, expected)
        if not self._alike(difference):
            return False
        if difference.kind != "bits":
            return difference.kind == self.failing.kind
        return self.failing.kind.startswith("bits") and bool(nature(result, expected)) == self.failing.special

    def _bad_id_fails(self, bench: Bench, inputs: Inputs) -> bool:
        call = Call(inputs)
        bad = call.with_bad_id(bad_id(self.failing, inputs))
        found = as_rows(bench.run(bench.arguments(bad)), inputs)[-1]
        return self._alike(compare(found, np.full_like(found, quiet_nan(found.dtype).view(found.dtype))))

    def _gradients_fail(self, inputs: Inputs) -> bool:
        failing = self.failing
        scope = GradientScope(self.adapter, self.op, self.digits, self.mode)
        arguments = scope.arguments(inputs)
        trial = trial_of(failing, inputs, self.seed) if failing.trial else None
        if failing.error and not failing.trial:
            return self._raises(lambda: scope.gradients(arguments))
        base = scope.gradients(arguments)
        name = failing.argument
        if failing.kind == "arguments":
            return self._alike(compare(self.adapter.to_numpy(arguments[name]), inputs[name]))
        if not failing.trial:
            others = {argument: x for argument, x in inputs.items() if argument != "grad"}
            difference = compare(base[name], contract_gradients(others, inputs["grad"], self.digits)[name])
            return self._alike(difference) and (difference.kind == "bits") == (failing.kind == "grad")
        if trial is None:
            return False
        if failing.error:
            return self._raises(lambda: self._gradients_of(scope, trial))
        found = trial.join(self._gradients_of(scope, trial))
        return self._alike(compare(found[name], trial.expected(gradients_as_rows(base))[name]))

    def _gradients_of(self, scope: GradientScope, trial: Trial[Gradients]) -> list[Gradients]:
        return [gradients_as_rows(scope.gradients(scope.arguments(call, trial.layout))) for call in trial.calls]
