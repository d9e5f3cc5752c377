"""The cases that the fixture `crosscheck_case` has, and what a test is given of one."""

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from crosscheck.arrays import a_kind
from crosscheck.calls import contract_result, named_digits
from crosscheck.cases import OPS, Case, Inputs, default_suite, full_suite
from crosscheck.golden_check import ADAPTERS
from crosscheck.golden_compare import inputs_of
from crosscheck.goldens import Golden, GoldenCase, GoldenError, open_golden

__all__ = ["ChosenCase", "DrawnCase", "NoSuchCase", "cases_of", "suite_cases"]

Array = NDArray[Any]


class NoSuchCase(Exception):
    """What a marker asks for is not there; the text is a sentence."""


@dataclass(frozen=True, repr=False)
class DrawnCase:
    """One call, for one test.

    Arguments:
        id: as in `crosscheck run --list`.
        op: the operator that is called.
        digits: None leaves the choice to the operator.
        inputs: the arguments by name, as NumPy arrays of the test's own.
        case: of a built-in case, what it was drawn from.
        expect: what `expected` calls.
    """

    id: str
    op: str
    digits: int | None
    inputs: Inputs
    case: Case | None
    expect: Callable[[], Array]

    def __repr__(self) -> str:
        return f"<crosscheck case {self.id}>"

    @property
    def options(self) -> dict[str, int]:
        """{"digits": ...}, or nothing where the operator is to choose."""
        return named_digits(self.digits)

    def arrays(self, framework: str, device: str = "cpu") -> dict[str, Any]:
        """The inputs as arrays of "numpy", "torch" or "jax", on "cpu" or "cuda".

        JAX without 64-bit mode would narrow ids of 64 bits, so they stay NumPy arrays there.
        """
        if framework not in ADAPTERS:
            raise ValueError(f"the framework is {framework!r}; expected one of {', '.join(ADAPTERS)}")
        adapter = ADAPTERS[framework](device, 1)
        return {name: adapter.from_numpy(array) for name, array in self.inputs.items()}

    def expected(self) -> Array:
        """What the contract gives for the inputs as they were drawn, or what the golden has."""
        return self.expect()


@dataclass(frozen=True)
class ChosenCase:
    """What is known of a case when tests are collected; nothing is drawn yet."""

    id: str
    draw: Callable[[], DrawnCase]

    def drawn(self) -> DrawnCase:
        return self.draw()


def suite_cases(suite: str, pattern: str = "*") -> list[Case]:
    every = default_suite() if suite == "default" else full_suite()
    return [case for case in every if fnmatch.fnmatchcase(case.id, pattern)]


def cases_of(
    suite: str,
    root: Path,
    pattern: str,
    op: str | Sequence[str] | None = None,
    filter: str = "*",
    golden: str | Path | None = None,
) -> list[ChosenCase]:
    """The cases of one test, in the order of the suite or of the golden.

    Arguments:
        root: what `golden` is relative to.
        pattern: that of the command line, which may leave none.
        op, filter, golden: those of the marker.

    Raises:
        NoSuchCase: an unknown operator, a golden that cannot be read, or no case that the marker allows.
    """
    _check_marker(op, filter, golden)
    ops = OPS if op is None else (op,) if isinstance(op, str) else tuple(op)
    for name in ops:
        if name not in OPS:
            raise NoSuchCase(f"the marker's op is {name!r}; expected some of {', '.join(OPS)}")
    if golden is None:
        found = [(case.op, _of_suite(case)) for case in suite_cases(suite)]
        where = f"the {suite} suite"
    else:
        found, where = _of_golden(root / golden), f"the golden {golden}"
    allowed = [case for name, case in found if name in ops and fnmatch.fnmatchcase(case.id, filter)]
    if not allowed:
        raise NoSuchCase(f"{where} has no case of {' or '.join(ops)} that matches {filter!r}")
    return [case for case in allowed if fnmatch.fnmatchcase(case.id, pattern)]


def _check_marker(op: object, filter: object, golden: object) -> None:
    for name, value, kinds, expected in (
        ("op", op, str | list | tuple | None, f"one or several of {', '.join(OPS)}"),
        ("filter", filter, str, "a glob for ids"),
        ("golden", golden, str | Path | None, "a folder"),
    ):
        if not isinstance(value, kinds):
            raise NoSuchCase(f"the marker's {name} is {a_kind(value)}; expected {expected}")


def _of_suite(case: Case) -> ChosenCase:
    def expect() -> Array:
        return contract_result(case.op, case.inputs(), case.digits)

    return ChosenCase(case.id, lambda: DrawnCase(case.id, case.op, case.digits, case.inputs(), case, expect))


def _of_golden(folder: Path) -> list[tuple[str, ChosenCase]]:
    try:
        golden = open_golden(folder)
    except GoldenError as error:
        raise NoSuchCase(str(error)) from error
    return [(case.op, _stored(golden, case.without_gradients())) for case in golden.cases.values()]


def _stored(golden: Golden, case: GoldenCase) -> ChosenCase:
    def draw() -> DrawnCase:
        inputs = inputs_of(golden, case)
        if isinstance(inputs, str):
            raise GoldenError(f"{case.id}: {inputs}")
        return DrawnCase(case.id, case.op, case.digits, inputs, None, expect)

    def expect() -> Array:
        return golden.array(case.id, "outputs.result")

    return ChosenCase(case.id, draw)
