"""Whether a function of the caller's own gives each row of a batch the same bits in any company, and where it does not.

A function is compared with its own result, so one that is wrong everywhere is batch-invariant all the same.
"""

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from crosscheck.arguments import ArgumentChanged
from crosscheck.arrays import a_kind
from crosscheck.bits import Difference
from crosscheck.invariance import COLUMNS, NotApplicable, Trial
from crosscheck.judge_candidate import VOCAB, fewest
from crosscheck.subjects import Subject

__all__ = ["BatchVariant", "find_variance"]

Array = NDArray[Any]
Found = tuple[str, Difference]  # the path in the result, and the difference there


class BatchVariant(AssertionError):
    """Raised by `assert_batch_invariant`.

    Arguments:
        transform: what was done to the batch, one of `crosscheck.invariance`'s names.
        column: the kind of transform, one of `crosscheck.invariance.COLUMNS`.
        difference: of the rows in the transformed call (actual) from the same rows in the call itself (expected).
        rows: the fewest first rows of the batch that show it, found by doubling and bisection.
        path: of the array in what the function returned, as in `[1]`; "" where that is one array.
    """

    def __init__(
        self, transform: str, column: str, difference: Difference, rows: int, context: str = "", path: str = ""
    ) -> None:
        self.transform, self.column, self.difference, self.rows, self.context, self.path = (
            transform, column, difference, rows, context, path,
        )  # fmt: skip
        super().__init__(f"{context}: {self._text()}" if context else self._text())

    def _text(self) -> str:
        what = {"layout": "depends on how its arguments are stored", "repeat": "is not repeatable"}.get(
            self.column, "depends on the rest of the vocab" if self.transform in VOCAB else "depends on the batch"
        )
        few = "" if self.column == "repeat" else f", from {self.rows} row{'' if self.rows == 1 else 's'} on"
        return (
            f"the result{self.path} {what}: {self.transform!r} ({self.column}) changes it{few}; in the transformed "
            f"call (actual) and in the call itself (expected), {self.difference.describe()}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.transform, self.column, self.difference, self.rows, self.context, self.path)


# The search --------------------------------------------------------------------------------------------
def find_variance(
    subject: Subject, transforms: str | Iterable[str] | None, seed: int, context: str
) -> BatchVariant | ArgumentChanged | None:
    """The first of the transforms that changes a bit, as the error to raise, or that the function changes arguments.

    Raises:
        ValueError: an unknown transform, or nothing to compare.
    """
    __tracebackhide__ = True
    chosen = _chosen(subject, transforms, seed)
    try:
        found = _first_variance(subject, chosen, seed, context)
        subject.kept.check()
    except ArgumentChanged as error:
        return ArgumentChanged(error.argument, error.difference, error.same, context)
    return found


def _first_variance(subject: Subject, chosen: set[str], seed: int, context: str) -> BatchVariant | None:
    __tracebackhide__ = True
    base, tried, reasons = subject.base(), 0, []
    for attempt in subject.attempts(subject.inputs, seed):
        if not chosen & {attempt.column, attempt.name}:
            continue
        if isinstance(attempt, NotApplicable):
            reasons.append(f"{attempt.name}: {attempt.reason}")
            continue
        tried += 1
        found = subject.difference(attempt, base)
        if found is not None:
            rows, (path, difference) = _smallest(subject, attempt, found, seed)
            return BatchVariant(attempt.name, attempt.column, difference, rows, context, path)
    if not tried:
        raise ValueError(f"nothing compared: no transform applies to these inputs ({'; '.join(reasons)})")
    return None


def _chosen(subject: Subject, transforms: str | Iterable[str] | None, seed: int) -> set[str]:
    if transforms is not None and not isinstance(transforms, Iterable):
        raise TypeError(f"transforms is {a_kind(transforms)}; expected a column or a transform by name, or several")
    names = set(COLUMNS if transforms is None else [transforms] if isinstance(transforms, str) else transforms)
    if not names:
        raise ValueError("transforms are empty; expected a column or a transform by name, or None for all of them")
    if not names - set(COLUMNS):
        return names
    attempts = subject.attempts(subject.first(3), seed)  # with three rows all of them apply
    known = list(dict.fromkeys(attempt.name for attempt in attempts if isinstance(attempt, Trial)))
    unknown = sorted(names - {*COLUMNS, *known}, key=str)
    if unknown:
        raise ValueError(
            f"there is no transform {unknown[0]!r} of these inputs; expected a column, {', '.join(COLUMNS)}, or one of "
            f"{', '.join(map(repr, known))}"
        )
    return names


def _smallest(subject: Subject, trial: Trial[Array], found: Found, seed: int) -> tuple[int, Found]:
    """The fewest first rows that show the difference, and the difference they show."""
    shown = {subject.count: found}
    if trial.column == "repeat" or subject.count == 0:
        return subject.count, found

    def shows(rows: int) -> bool:
        difference = _difference_of(subject, trial.name, rows, seed)
        if difference is not None:
            shown[rows] = difference
        return difference is not None

    rows = fewest(subject.count, shows)
    return rows, shown[rows]


def _difference_of(subject: Subject, name: str, rows: int, seed: int) -> Found | None:
    inputs = subject.first(rows)
    for attempt in subject.attempts(inputs, seed):
        if isinstance(attempt, Trial) and attempt.name == name:
            try:
                return subject.difference(attempt, subject.run(inputs))
            except Exception:  # it has no answer for this size, so this size shows nothing
                return None
    return None
