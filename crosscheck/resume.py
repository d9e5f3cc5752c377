"""Continuing a run from the JSON report of an earlier one, and what its verdicts rest on.

A verdict is kept where all that it rests on is as it was: the case's inputs and what was tried; the code of the judged
backend or candidate, of crosscheck and of this project; versions, device, machine, threads and environment variables.
Whatever is not is judged again, and the reason is said. A kept verdict is marked as such in every report.
"""

import hashlib
import json
import platform
import threading
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import fields
from pathlib import Path
from typing import Any

from crosscheck import contract
from crosscheck.bench import digest_of_inputs
from crosscheck.golden_write import VARIABLES
from crosscheck.judge import Judged
from crosscheck.registry import Backend
from crosscheck.report_json import SCHEMA, machine, program_version
from crosscheck.sources import file_digest
from crosscheck.verdict import NOT_OFFERED, Verdict, counted

__all__ = ["Earlier", "Ledger", "ResumeError", "read_report"]

Basis = dict[str, Any]
Place = tuple[str, str, str]  # case, backend, mode
LATE = "imported later"  # the member of a basis that has the files which are not known when a process starts
CHANGED = "changed during the run"  # in place of a digest
SAID = ("device", "versions", "implementations", "layouts", "packages", "sources")  # by a process that starts
_NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_FIELDS = frozenset(field.name for field in fields(Verdict))


class ResumeError(ValueError):
    """A report that cannot be continued; the text says why, and what to do."""


# The earlier report ------------------------------------------------------------------------------------
class Earlier:
    """The verdicts of a report, and what they rest on. `again`: how many are judged again, by the reason."""

    def __init__(self, path: Path, verdicts: Mapping[Place, Verdict], bases: Mapping[str, Basis]) -> None:
        self.path, self.verdicts, self.bases = path, verdicts, bases
        self.again: Counter[str] = Counter()
        self.digests: dict[str, str] = {}  # of inputs, which modes and backends share

    def keeps(self, case: Judged, place: Place, effort: Mapping[str, Any], now: Basis) -> Verdict | None:
        """The verdict, marked as kept, where everything is as it was."""
        verdict = self.verdicts.get(place)
        if verdict is None:
            return None
        reason = self._what_changed(verdict, case, effort, now)
        if reason:
            self.again[reason] += 1
            return None
        verdict.kept, verdict.reproducers = True, []
        return verdict

    def notes(self, verdicts: int) -> list[str]:
        """What was kept of a run of so many verdicts, in a sentence."""
        kept = sum(verdict.kept for verdict in self.verdicts.values())
        parts = [f"{kept} of {counted(verdicts, 'verdict')} kept from {self.path}"]
        parts += [f"{count} judged again: {reason}" for reason, count in self.again.most_common()]
        missing = verdicts - kept - self.again.total()
        return ["; ".join([*parts, f"{missing} {'was' if missing == 1 else 'were'} not in it"] if missing else parts)]

    def _what_changed(self, verdict: Verdict, case: Judged, effort: Mapping[str, Any], now: Basis) -> str:
        """One reason in words; nothing where there is none."""
        if verdict.status not in ("judged", NOT_OFFERED):
            return f"no answer was there ({verdict.status})"
        before = self.bases.get(verdict.basis)
        if before is None:
            return "the report does not say what they rest on"
        if difference := _difference(before, now):
            return difference
        if changed := [path for path, digest in before[LATE].items() if file_digest(path) != digest]:
            return _files(changed)
        if verdict.effort != effort:
            return "something else is tried, since there are more cases or fewer"
        if case.id not in self.digests:
            self.digests[case.id] = digest_of_inputs(case.inputs())
        if verdict.inputs_digest != self.digests[case.id]:
            return "the inputs are others"
        return ""


def read_report(path: Path, places: Set[Place]) -> Earlier:
    """The report of an earlier run, which has verdicts of the places that are to be judged.

    Raises:
        ResumeError: no report, a damaged one, one of another contract or version, or of another run altogether.
    """
    try:
        report = json.loads(path.read_bytes())
    except OSError as error:
        raise ResumeError(f"the report {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResumeError(f"{path} is no JSON: it may be truncated; expected what run --json writes") from error
    _check_versions(path, report)
    try:
        verdicts = [_verdict(said) for said in report["verdicts"]]
        bases = {name: {**basis, LATE: dict(basis[LATE])} for name, basis in report.get("bases", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ResumeError(f"{path} is damaged: its verdicts cannot be read; run without --resume") from error
    found = {(verdict.case, verdict.backend, verdict.mode): verdict for verdict in verdicts}
    if not any(place in places for place in found):
        raise ResumeError(
            f"{path} has no verdict of a case, backend and mode that is to be judged here: expected the options of the "
            "run that wrote it, which it has under 'command'"
        )
    return Earlier(path, found, bases)


def _check_versions(path: Path, report: Any) -> None:
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise ResumeError(f"{path} is no report of crosscheck run --json; expected schema {SCHEMA!r}")
    for what, here in (("contract", contract.VERSION), ("crosscheck", program_version())):
        if report.get(what) != here:
            raise ResumeError(
                f"{path} was made with {what} {report.get(what)}, and this is {here}: none of its verdicts can be "
                "kept; run without --resume"
            )


def _verdict(said: Mapping[str, Any]) -> Verdict:
    """A verdict from a report, where numbers that JSON has not are text."""
    known = {name: value for name, value in said.items() if name in _FIELDS}
    if known["accuracy"] is not None:
        known["accuracy"] = {name: _number(value) for name, value in known["accuracy"].items()}
    verdict = Verdict.from_json(known)
    for check in verdict.checks.values():
        for failure in check.failed:
            for name in ("actual", "expected"):
                if failure.difference is not None:
                    failure.difference[name] = _number(failure.difference[name])
    return verdict


def _number(value: Any) -> Any:
    return _NUMBERS.get(value, value) if isinstance(value, str) else value


# What verdicts rest on ---------------------------------------------------------------------------------
class Ledger:
    """Keeps what the verdicts of a run rest on, and gives the earlier ones that rest on the same.

    Arguments:
        environment: variables, as of this process.
    """

    def __init__(self, environment: Mapping[str, str], earlier: Earlier | None = None) -> None:
        self.environment, self.earlier = environment, earlier
        self.machine = machine()
        self.lock = threading.Lock()  # processes start in threads of their own
        self.known: dict[str, Basis] = {}

    def enter(self, backend: Backend, threads: int, said: Mapping[str, Any]) -> str:
        """The name of what verdicts of a process rest on, by what it said when it started."""
        variables = {**self.environment, **backend.environment(threads)}
        basis = {
            "backend": {"factory": backend.factory, "device": backend.device, "target": backend.target},
            **{name: said[name] for name in SAID},
            "threads": threads,
            "machine": self.machine,
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "variables": {name: variables[name] for name in sorted(variables) if name.startswith(VARIABLES)},
        }
        name = hashlib.sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()[:16]
        with self.lock:
            self.known.setdefault(name, {**basis, LATE: {}})
        return name

    def add_sources(self, basis: str, sources: Mapping[str, str]) -> None:
        """Files that were imported since the process started."""
        with self.lock:
            late = self.known[basis][LATE]
            for path, digest in sources.items():
                late[path] = digest if late.get(path, digest) == digest else CHANGED

    def keeps(self, case: Judged, backend: str, mode: str, effort: dict[str, Any], basis: str) -> Verdict | None:
        """The earlier verdict, where there is one that rests on the same."""
        if self.earlier is None:
            return None
        kept = self.earlier.keeps(case, (case.id, backend, mode), effort, self.known[basis])
        if kept is not None:
            self.add_sources(basis, self.earlier.bases[kept.basis][LATE])
            kept.basis = basis
        return kept

    @property
    def bases(self) -> dict[str, Basis]:
        """By name, as they are now."""
        with self.lock:
            return {name: {**basis, LATE: dict(basis[LATE])} for name, basis in self.known.items()}


# In words ----------------------------------------------------------------------------------------------
def _difference(before: Basis, now: Basis) -> str:
    """The first thing that is not as it was; nothing where all is."""
    for what in ("backend", "device", "versions", "implementations", "layouts", "threads", "machine", "python",
                 "variables"):  # fmt: skip
        if before.get(what) != now[what]:
            return _was(what, before.get(what), now[what])
    if before.get("packages") != now["packages"]:
        return "other packages are installed"
    old, new = before.get("sources") or {}, now["sources"]
    changed = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    return _files(changed) if changed else ""


def _was(what: str, before: Any, now: Any) -> str:
    """
    Example:
        >>> _was("versions", {"torch": "2.11"}, {"torch": "2.13"})
        'versions: torch was 2.11 and is 2.13'
    """
    if isinstance(before, dict) and isinstance(now, dict):
        name = next(name for name in {**before, **now} if before.get(name) != now.get(name))
        return _was(f"{what}: {name}", before.get(name, "not there"), now.get(name, "not there"))
    return f"{what} was {before} and is {now}"


def _files(changed: list[str]) -> str:
    more = f" and {counted(len(changed) - 1, 'more file')}" if len(changed) > 1 else ""
    return f"{changed[0]}{more} changed"
