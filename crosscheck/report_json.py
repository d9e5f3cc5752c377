"""The report as JSON, schema `crosscheck-report/1`.

    schema          "crosscheck-report/1": fields and checks are added within a version, never renamed or removed
    contract        "fixed-k/1", what the bits were compared with
    crosscheck      the version of this program
    command         what was typed, quoted for a shell
    outcome         "interrupted", where verdicts are missing, else the worst of the verdicts' outcomes
    summary         the last line of the run: the outcome, and what it rests on
    due             how many verdicts a complete run makes
    written         when the report was made: UTC, ISO 8601
    notes           sentences on the input
    machine         system, architecture, processor, cores, instruction_set
    backends        {name: {reason, device, versions, threads, modes, implementations, layouts}}; implementations has
                    the operators that the cases run
    bins            {errors, distances}: the upper bounds of the bins of all histograms of each kind; a bin holds what
                    is above the bound before its own, up to and with its own, and the last bound is "inf"
    cases           {id: the case's fields}
    verdicts        a list, of each case on each backend in each mode:
        case, op, backend, mode, implementation
        status          "judged", "raised", "crashed", "timed out" or "not run"; message says why
        outcome         from the worst: "different", a dtype, a shape or a bit; "failed", the backend raised or
                        crashed; "incomplete", there was no time or no process left for an answer; "equal"
        failed          whether the outcome is another than "equal"
        repeat          where it failed: the command that makes this verdict again
        digits, dtype   of the call, of its result
        checks          {check: {state, passed, failed, not_applicable}}: state is "pass", "fail" or
                        "not applicable"; passed counts trials; failed lists {trial, text, difference, spread}, with
                        difference null where the transformed call raised;
                        not_applicable lists {trial, reason}.
                        spread is of a verdict's first failure that has one, else null, and says how the elements that
                        differ are spread over the compared arrays, as matrices with all leading axes in the rows:
                        {shape, grid, rows, columns, distances, nan}. grid has their number in each of at most 32 x 64
                        bins, of which bin i of n holds the rows r with r * n // shape[0] == i, and the columns
                        likewise; rows and columns count those that have one; distances is a histogram of the ULPs
                        between the two values, and nan the number of pairs that have none. The sum of grid, and that
                        of distances and nan, is the count of the difference
                        In "grad", added last, a trial says which gradient it failed for; its differences are of
                        that gradient, and have null where taking the gradients raised
        accuracy        {max_ulp, mean_ulp, max_relative, samples}, or null; infinity is the string "inf"
                        Added: max_scaled_ulp, the largest error in ULPs of the logit's scale: the larger of the
                        logit and of the root of the sum of its squared products; and histogram, {ulp, scaled}: of
                        the samples' errors in ULPs of the logit and of its scale, over the bins `errors`
        seconds         the time that the verdict took
        tolerance       of --tolerance, in ULPs of the logit's scale, or null; an error above it is "different"
        digest          SHA-256 of the result's dtype, shape and bits; contract_digest of the contract's, and empty
                        where the two were not compared
        nature          "NaN patterns", "signs of zeros" or both, where a candidate's result differs in nothing else
        smallest        {transform, rows} or null: the fewest rows in which a candidate depends on the batch
        basis           the name of what the verdict rests on, among `bases`
        inputs_digest   SHA-256 of the case's inputs; effort is what was tried: {compiles, thorough, gradients}
        kept            whether --resume took the verdict from an earlier report
        reproducers     of --reproducers: a list of {kind, failing, shrunk, path, fails, note, more}: what fails and the
                        sizes it was shrunk to, in words; the script; whether the script was seen to fail; how many
                        failures of the kind there are beside it
    candidates      in a run with candidates: {name: what it is, in a sentence}
    agreement       likewise: {members, pairs, classes, cases}; pairs lists {a, b, equal, cases}, numbers of cases;
                    classes are members with equal bits in all the `cases` that all members have
    controls        likewise: a list of {name, what, caught}: whether the planted faults were found
    bases           {name: what verdicts rest on}: backend, device, versions, implementations, layouts, threads,
                    machine, python, variables, a digest of the installed packages, and {file: digest} of the code, the
                    "sources" and what was "imported later"; --resume keeps verdicts where all of it is as it was

A candidate's status, and outcome, may also be "not offered": it takes no bias, or cannot be compiled.
A difference has the fields of `crosscheck.bits.Difference`. Numbers that JSON has not (NaN, infinities) are the
strings "nan", "inf", "-inf".
"""

import json
import math
import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from crosscheck import contract
from crosscheck.candidate_report import candidates_json
from crosscheck.histogram import DISTANCES, ERRORS
from crosscheck.judge import Judged
from crosscheck.report import repeat_command, summary
from crosscheck.runner import Run
from crosscheck.verdict import Verdict

__all__ = ["SCHEMA", "as_json", "check_writable", "program_version", "write_json", "write_text"]

SCHEMA = "crosscheck-report/1"
_NUMBERS = re.compile(r"\[\n\s*(-?[\d.e+-]+(?:,\n\s*-?[\d.e+-]+)*)\n\s*\]")  # no text in JSON has a line's end
_INSTRUCTION_SETS = ("sse4_2", "avx", "avx2", "fma", "avx512", "amx", "asimd", "sve", "neon")


def as_json(
    run: Run,
    cases: Sequence[Judged],
    command: str,
    notes: Sequence[str],
    repeating: Sequence[str] = ("crosscheck", "run"),
) -> dict[str, Any]:
    """The report as a tree of plain values.

    Arguments:
        command: as it was typed.
        repeating: the command that judges as the run did, less --filter and --backends.
    """
    report = {
        "schema": SCHEMA,
        "contract": contract.VERSION,
        "crosscheck": program_version(),
        "command": command,
        "outcome": run.outcome,
        "summary": summary(run),
        "due": run.due,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "notes": list(notes),
        "machine": machine(),
        "backends": run.environments,
        "bins": {"errors": ERRORS, "distances": DISTANCES},
        "cases": {case.id: case.to_json() for case in cases},
        "verdicts": [_verdict(run, verdict, repeating) for verdict in run.verdicts],
        **candidates_json(run),
        "bases": run.bases,
    }
    plain: dict[str, Any] = _plain(report)
    return plain


def _verdict(run: Run, verdict: Verdict, repeating: Sequence[str]) -> dict[str, Any]:
    fields = {**verdict.to_json(), "outcome": verdict.outcome, "failed": verdict.failed}
    if verdict.failed:
        fields["repeat"] = repeat_command(repeating, verdict, run.candidates.get(verdict.backend, ()))
    return fields


def check_writable(path: Path) -> None:
    """Raise OSError now, before any work, if the report cannot be written later. Leaves no trace."""
    existed = path.exists()
    with path.open("ab"):
        pass
    if not existed:
        path.unlink()
    if _replaceable(path):
        beside = _beside(path)
        beside.touch()
        beside.unlink()


def write_json(path: Path, report: dict[str, Any]) -> None:
    """`write_text` of the report, with lists of numbers in a line each: a histogram, a row of a grid."""
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    write_text(path, _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text))


def write_text(path: Path, text: str) -> None:
    """Write beside the file and rename: an interrupted run leaves the old report whole."""
    if not _replaceable(path):
        path.write_text(text, encoding="utf-8")
        return
    beside = _beside(path)
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path.resolve())
    finally:
        beside.unlink(missing_ok=True)


def _replaceable(path: Path) -> bool:
    """A file, or none yet; a device or a pipe is written to, never replaced."""
    return path.is_file() or not path.exists()


def _beside(path: Path) -> Path:
    """A name in the folder of the file that path leads to, through links."""
    target = path.resolve()
    return target.with_name(f".{target.name}.{os.getpid()}")


def _plain(value: Any) -> Any:
    """Numbers that JSON has not as strings."""
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def program_version() -> str:
    """The version of the distribution that this package came with."""
    try:
        return version("fixedk")
    except PackageNotFoundError:
        return "not installed"


def machine() -> dict[str, Any]:
    """The CPU side of the environment."""
    flags, model = _cpuinfo()
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "instruction_set": [flag for flag in flags if flag.startswith(_INSTRUCTION_SETS)],
    }


def _cpuinfo() -> tuple[list[str], str]:
    """Flags and model name of the first processor, where /proc tells."""
    fields: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return [], ""
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    return (fields.get("flags") or fields.get("features") or "").split(), fields.get("model name", "")
