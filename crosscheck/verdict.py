"""What the judge says about one case on one backend in one mode, as plain records that become JSON."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from crosscheck.accuracy import Accuracy
from crosscheck.bits import Difference
from crosscheck.trial import COLUMNS

__all__ = [
    "CHECKS",
    "NOT_OFFERED",
    "OUTCOMES",
    "Check",
    "Failure",
    "NotOffered",
    "Verdict",
    "counted",
    "in_one_line",
    "worst",
]

CHECKS = ("bits", "inputs", *COLUMNS, "grad")
NOT_OFFERED = "not offered"
OUTCOMES = ("different", "failed", "incomplete", "equal", NOT_OFFERED)  # the worst first


class NotOffered(Exception):
    """What is asked of a candidate is nothing that it has, for the reason in the text: no failure of its own."""


def worst(outcomes: Iterable[str]) -> str:
    """The outcome of several: "equal" where all are, also where there is none."""
    return min(outcomes, key=OUTCOMES.index, default="equal")


def counted(number: int, noun: str) -> str:
    """
    Example:
        >>> counted(1, "case"), counted(0, "case")
        ('1 case', '0 cases')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def in_one_line(error: Exception) -> str:
    """The type of an exception and the first line of its text, in characters that any terminal and file can take."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {_printable(lines[0])}" if lines else type(error).__name__


def _printable(text: str) -> str:
    """With escapes in place of control characters and of halves of surrogate pairs."""
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in text)


@dataclass(frozen=True)
class Failure:
    """A trial that gave other bits: what was tried, the difference in words and as a record.

    There is no record where the call raised. `spread`, the fields of `crosscheck.spread.Spread`, is that of the first
    failure of a verdict alone.
    """

    trial: str
    text: str
    difference: dict[str, Any] | None
    spread: dict[str, Any] | None = None


@dataclass
class Check:
    """The trials of one check: how many passed, which failed, which could not be made and why."""

    passed: int = 0
    failed: list[Failure] = field(default_factory=list)
    not_applicable: list[dict[str, str]] = field(default_factory=list)

    def enter(self, trial: str, difference: Difference | None, spread: dict[str, Any] | None = None) -> None:
        if difference is None:
            self.passed += 1
        else:
            self.failed.append(Failure(trial, difference.describe(), asdict(difference), spread))

    def enter_raised(self, trial: str, error: Exception) -> None:
        self.failed.append(Failure(trial, f"raised {in_one_line(error)}", None))

    def leave_out(self, trial: str, reason: str) -> None:
        self.not_applicable.append({"trial": trial, "reason": reason})

    @property
    def state(self) -> str:
        """ "pass", "fail" or, where no trial could be made, "not applicable"."""
        if self.failed:
            return "fail"
        return "pass" if self.passed else "not applicable"


@dataclass
class Verdict:
    """One case on one backend in one mode.

    Arguments:
        status: "judged", or why there are no checks: "raised", "crashed", "timed out", "not run" or, of a candidate
            that takes no bias or cannot be compiled, "not offered".
        message: one sentence that says what happened, where the status is not "judged".
        checks: one `Check` for each of CHECKS.
        digits: as the case has it: "2", "3", "4" or, where the operator chose, "auto".
        dtype: of the result.
        accuracy: of LM head logits; None where it has no meaning.
        tolerance: the error that is tolerated, in ULPs of the logit's scale; None where there is no limit.
        digest, contract_digest: SHA-256 of the result, and of the contract's where the two are compared.
        nature: of the elements of a candidate's result that differ, in words, where they are all NaN or zero.
        smallest: {"transform", "rows"}: in how few rows a candidate shows that its rows depend on the batch.
        basis: the name of what it rests on, of those in `Run.bases`.
        inputs_digest: SHA-256 of the case's inputs.
        effort: the fields of `crosscheck.judge.Effort`.
        kept: whether an earlier run made it.
        reproducers: of its failures that were shrunk, the fields of `crosscheck.reproducer.Reproducer`.
    """

    case: str
    op: str
    backend: str
    mode: str
    implementation: str
    status: str = "judged"
    message: str = ""
    checks: dict[str, Check] = field(default_factory=dict)
    digits: str = "auto"
    dtype: str = ""
    accuracy: Accuracy | None = None
    seconds: float = 0.0
    tolerance: float | None = None
    digest: str = ""
    contract_digest: str = ""
    nature: str = ""
    smallest: dict[str, Any] | None = None
    basis: str = ""
    inputs_digest: str = ""
    effort: dict[str, Any] = field(default_factory=dict)
    kept: bool = False
    reproducers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def intolerable(self) -> bool:
        """Whether the error is above what is tolerated."""
        if self.tolerance is None or self.accuracy is None:
            return False
        return not self.accuracy.max_scaled_ulp <= self.tolerance

    @property
    def outcome(self) -> str:
        """One of OUTCOMES: whether a bit differs is told from whether there was an answer at all.

        "different": a dtype, a shape or a bit, or an error above the tolerance; "failed": the backend raised or
        crashed; "incomplete": there was no time or no process left for an answer; "not offered": the status is.
        """
        if self.status == NOT_OFFERED:
            return NOT_OFFERED
        if self.status in ("timed out", "not run"):
            return "incomplete"
        failures = [failure for check in self.checks.values() for failure in check.failed]
        if self.intolerable or any(failure.difference is not None for failure in failures):
            return "different"
        return "failed" if failures or self.status != "judged" else "equal"

    @property
    def compared(self) -> bool:
        """Whether its result was held against the contract's; a candidate that cannot be told the digits has none."""
        bits = self.checks.get("bits")
        return self.status == "judged" and (bits is None or bits.state != "not applicable")

    @property
    def failed(self) -> bool:
        """Whether the outcome is anything but equal, or not offered."""
        return self.outcome not in ("equal", NOT_OFFERED)

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        for name, check in self.checks.items():
            fields["checks"][name] = {"state": check.state, **fields["checks"][name]}
        return fields

    @staticmethod
    def from_json(fields: dict[str, Any]) -> "Verdict":
        checks = {}
        for name, check in fields["checks"].items():
            failed = [Failure(**failure) for failure in check["failed"]]
            checks[name] = Check(check["passed"], failed, check["not_applicable"])
        accuracy = None if fields["accuracy"] is None else Accuracy(**fields["accuracy"])
        return Verdict(**{**fields, "checks": checks, "accuracy": accuracy})
