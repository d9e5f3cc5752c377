"""A function's results, or results that are there, against a golden, case by case: for `assert_matches_golden`."""

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from crosscheck.backends import NumpyAdapter, own_digits
from crosscheck.bits import as_numpy
from crosscheck.candidate_adapters import named_by
from crosscheck.cases import Inputs
from crosscheck.golden_arrays import Whole, difference
from crosscheck.golden_compare import inputs_of
from crosscheck.goldens import Golden, GoldenCase, GoldenError, open_golden
from crosscheck.jax_adapter import JaxAdapter
from crosscheck.operators import CALLS, positional
from crosscheck.torch_adapter import TorchAdapter
from crosscheck.verdict import counted

__all__ = ["ADAPTERS", "GoldenDiffers", "differences_from_golden"]

ADAPTERS: Mapping[str, Any] = {"numpy": NumpyAdapter, "torch": TorchAdapter, "jax": JaxAdapter}
SHOWN = 5  # cases that a text names
RESULT = "outputs.result"


class GoldenDiffers(AssertionError):
    """Raised by `assert_matches_golden`.

    Arguments:
        differences: a sentence for each case that differs, {case id: sentence}.
        compared: how many cases were compared.
        golden: its folder.
    """

    def __init__(self, differences: Mapping[str, str], compared: int, golden: str, context: str = "") -> None:
        self.differences, self.compared, self.golden, self.context = dict(differences), compared, golden, context
        lines = [f"  {case_id}: {text}" for case_id, text in list(self.differences.items())[:SHOWN]]
        if len(self.differences) > SHOWN:
            lines.append(f"  and {len(self.differences) - SHOWN} more")
        number, have = len(self.differences), "has" if len(self.differences) == 1 else "have"
        head = f"{number} of {counted(compared, 'case')} {have} other bits than {golden}:"
        super().__init__("\n".join([f"{context}: {head}" if context else head, *lines]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.differences, self.compared, self.golden, self.context)


def differences_from_golden(
    function_or_results: Callable[..., Any] | Mapping[str, Any],
    folder: str | Path,
    cases: str | Iterable[str] | None,
    framework: str,
    device: str,
) -> tuple[dict[str, str], int]:
    """Sentences for the cases that differ, and how many were compared: `assert_matches_golden` says the rest."""
    __tracebackhide__ = True
    if framework not in ADAPTERS:
        raise ValueError(f"the framework is {framework!r}; expected one of {', '.join(ADAPTERS)}")
    golden = open_golden(folder)
    chosen = _chosen(golden, cases)
    golden.check_files()
    if isinstance(function_or_results, Mapping):
        _check_results(function_or_results, chosen, golden)
        answers = {case.id: (function_or_results[case.id], "") for case in chosen}
        answer = answers.__getitem__
    else:
        caller = _Caller(function_or_results, golden, ADAPTERS[framework](device, 1))
        answer = caller.answer
    differences = {}
    for case in chosen:
        result, note = answer(case.id)
        text = difference(Whole.of(as_numpy(result, f"the result of {case.id}")), golden.load(case.id, RESULT))
        if text is not None:
            differences[case.id] = text + note
    return differences, len(chosen)


def _chosen(golden: Golden, cases: str | Iterable[str] | None) -> list[GoldenCase]:
    names = [] if cases is None or isinstance(cases, str) else list(cases)
    missing = [name for name in names if name not in golden.cases]
    if missing:
        raise GoldenError(f"{golden.folder} has no case {missing[0]}; it has {', '.join(golden.cases) or 'none'}")
    pattern = cases if isinstance(cases, str) else "*" if cases is None else ""
    chosen = [case for name, case in golden.cases.items() if name in names or fnmatch.fnmatchcase(name, pattern)]
    if not chosen:
        raise GoldenError(f"nothing compared: {golden.folder} has no such case ({cases!r})")
    for case in chosen:
        if RESULT not in case.arrays:
            raise GoldenError(f"{case.id} in {golden.folder} has no {RESULT}; expected the result of an operator")
    return chosen


def _check_results(results: Mapping[str, Any], chosen: list[GoldenCase], golden: Golden) -> None:
    names = {case.id for case in chosen}
    for name in sorted(names ^ set(results), key=str):
        where = "the results, and was chosen" if name in names else f"the cases chosen from {golden.folder}"
        raise ValueError(f"{name} is missing from {where}; expected one result for each: choose with cases=")


class _Caller:
    """A function with an operator's signature, called as candidates are."""

    def __init__(self, function: Callable[..., Any], golden: Golden, adapter: Any) -> None:
        self.function, self.golden, self.adapter = function, golden, adapter
        named = named_by(function)
        self.readable, self.named = named is not None, named or ()

    def answer(self, case_id: str) -> tuple[Any, str]:
        """The result, and what else there is to say of a difference."""
        __tracebackhide__ = True
        case = self.golden.cases[case_id].without_gradients()
        inputs = inputs_of(self.golden, case)
        if isinstance(inputs, str):
            raise GoldenError(f"{case_id}: {inputs}")
        digits = None if case.untold else case.digits
        positional, by_name = self._arguments(case, inputs)
        note = ""
        if digits is not None and "digits" in self.named:
            by_name["digits"] = digits
        elif digits not in (None, own_digits(case.op, inputs)):
            note = f" (the function takes no digits, and the case has {digits})"
        try:
            return self.function(*positional, **by_name), note
        except Exception as error:
            error.add_note(f"crosscheck: raised for {case_id}")
            raise

    def _arguments(self, case: GoldenCase, inputs: Inputs) -> tuple[list[Any], dict[str, Any]]:
        if set(inputs) - {"bias"} not in CALLS:
            raise GoldenError(f"{case.id} has the inputs {', '.join(inputs)}; expected those of an operator")
        made = {name: self.adapter.from_numpy(array) for name, array in inputs.items()}
        tensors = [made[name] for name in positional(made)]
        if "bias" not in made:
            return tensors, {}
        if not self.readable:
            return [*tensors, made["bias"]], {}
        if "bias" not in self.named:
            raise TypeError(f"{case.id} has a bias, and the function takes none; choose other cases with cases=")
        return tensors, {"bias": made["bias"]}
