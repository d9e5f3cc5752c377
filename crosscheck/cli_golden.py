"""The commands on goldens: `golden write`, `golden verify`, `record` and `compare`.

Exit codes: 0 every output has the same bits, 1 one differs or a backend gave no answer, 2 what cannot be used or
compared, 130 interrupted.
"""

import functools
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np

from crosscheck.candidates import CandidateError
from crosscheck.cli_candidates import read_candidates
from crosscheck.cli_cases import (
    Unusable,
    case_options,
    chosen_cases,
    given_options,
    list_ids,
    list_option,
    matching,
    termination_as_interrupt,
)
from crosscheck.cli_types import SECONDS
from crosscheck.golden_compare import Findings, compare_goldens, verify_golden
from crosscheck.golden_record import NoAnswer, record
from crosscheck.golden_write import SAMPLE_ROWS, WHOLE_UP_TO, contract_answers, cpu_features, made_by, write_golden
from crosscheck.goldens import Golden, GoldenError, open_golden
from crosscheck.judge import Judged
from crosscheck.progress import shown_cases
from crosscheck.registry import BACKENDS, Backend
from crosscheck.runner import BackendMissing
from crosscheck.threads import ThreadsError, fair_threads
from crosscheck.verdict import counted

__all__ = ["COMMANDS"]

EXIT_NO_ANSWER, EXIT_INTERRUPTED = 1, 130
SHOWN = 20  # sentences of a kind, without --verbose
FOLDER = click.Path(path_type=Path)
_WRITING = (
    click.option("--gradients", is_flag=True, help="Store the gradients as well, for an upstream gradient."),
    click.option("--whole-up-to", type=click.IntRange(0), default=WHOLE_UP_TO, show_default=True, metavar="BYTES",
                 help="Larger arrays are stored as digests of their rows, and some rows."),
    click.option("--sample-rows", type=click.IntRange(1), default=SAMPLE_ROWS, show_default=True,
                 help="How many rows of a larger array are stored, evenly spread."),
    click.option("--force", is_flag=True, help="Replace a golden that is there."),
)  # fmt: skip
_filter = click.option("--filter", "pattern", default="*", metavar="GLOB", help="Only cases whose id matches.")
_verbose = click.option("--verbose", is_flag=True, help=f"Show every difference, not the first {SHOWN}.")


def _writes(command: Any) -> Any:
    for option in reversed(_WRITING):
        command = option(command)
    return command


def _plainly(command: Callable[..., None]) -> Callable[..., None]:
    """Every fault as one sentence on stderr; SIGTERM, which a scheduler sends, clears away as Ctrl-C does."""

    @functools.wraps(command)
    def plain(*arguments: Any, **options: Any) -> None:
        try:
            with termination_as_interrupt():
                command(*arguments, **options)
        except (GoldenError, BackendMissing, ThreadsError) as error:
            raise Unusable(str(error)) from error
        except OSError as error:
            raise Unusable(f"{error.filename or 'a file'} cannot be used: {error.strerror}") from error
        except NoAnswer as error:
            click.echo(f"crosscheck: {error}; nothing was written; --filter chooses other cases", err=True)
            sys.exit(EXIT_NO_ANSWER)
        except KeyboardInterrupt:
            click.echo("crosscheck: interrupted; no golden was written", err=True)
            sys.exit(EXIT_INTERRUPTED)

    return plain


# Writing -----------------------------------------------------------------------------------------------
@click.group("golden")
def golden_group() -> None:
    """Write the contract's inputs and outputs as files, and verify such files."""


@golden_group.command("write")
@click.argument("folder", type=FOLDER)
@case_options
@_writes
@click.pass_context
@_plainly
def write_command(context: click.Context, folder: Path, **options: Any) -> None:
    """Write inputs, and the outputs that the contract gives for them, to FOLDER."""
    cases = _announced(context, options)
    with shown_cases("contract", len(cases)) as heard:
        size = write_golden(
            folder, contract_answers(cases, heard, gradients=options["gradients"]), _this_process(),
            whole_up_to=options["whole_up_to"], sample_rows=options["sample_rows"], force=options["force"],
        )  # fmt: skip
    _say_written(folder, len(cases), size)


@click.command("record")
@click.option("-o", "--output", "folder", required=True, type=FOLDER, help="The golden to write.")
@click.option("--backend", "name", help="The backend to run; crosscheck info lists them.")
@click.option(
    "--candidate",
    metavar="NAME=FRAMEWORK:MODULE:FUNCTION",
    help="Or your own function, in torch or jax, as in crosscheck run. Needs one --op.",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where the candidate runs."
)
@click.option("--mode", help="How to run it; its first mode where not given.")
@case_options
@_writes
@click.option("--timeout", type=SECONDS, default=120.0, show_default=True,
              help="Seconds for one call.")  # fmt: skip
@click.pass_context
@_plainly
def record_command(context: click.Context, folder: Path, mode: str | None, **options: Any) -> None:
    """Run a backend, or your own candidate, on each case once, in a process of its own, and store inputs and outputs.

    A golden from another machine, or of another backend, is compared with it by crosscheck compare.
    """
    backend = _backend(context, options)
    mode = backend.modes[0] if mode is None else mode
    if mode not in backend.modes:
        raise Unusable(f"{backend.name} has no mode {mode!r}; expected one of {', '.join(backend.modes)}")
    cases = _announced(context, options)
    with shown_cases(backend.name, len(cases)) as heard:
        done = record(
            folder, cases, backend, mode, timeout=options["timeout"], gradients=options["gradients"],
            candidate=options["candidate"] or "", whole_up_to=options["whole_up_to"],
            sample_rows=options["sample_rows"], force=options["force"], heard=heard,
        )  # fmt: skip
    for note in done.notes:
        click.echo(f"note: {note}")
    _say_written(folder, done.cases, done.size)


def _backend(context: click.Context, options: Mapping[str, Any]) -> Backend:
    """The one that is to be recorded.

    Raises:
        Unusable: none, or both, or one that is not known or cannot be read.
    """
    known: Mapping[str, Backend] = context.obj or BACKENDS
    name, spec = options["name"], options["candidate"]
    if (name is None) == (spec is None):
        raise Unusable("record runs one thing; expected --backend NAME or --candidate NAME=FRAMEWORK:MODULE:FUNCTION")
    if spec is not None:
        try:
            chosen = {**options, "candidates": (spec,), "tolerances": ()}
            return read_candidates(chosen, given_options(context), known).backends[0]
        except CandidateError as error:
            raise Unusable(str(error)) from error
    if "device" in given_options(context):
        raise Unusable("--device means something with --candidate only; --backend names its device")
    if name not in known:
        raise Unusable(f"no backend {name!r}; the known ones are {', '.join(known)}")
    return known[name]


def _announced(context: click.Context, options: Mapping[str, Any]) -> list[Judged]:
    cases, notes = chosen_cases(context, options)
    if options["list_only"]:
        list_ids(case.id for case in cases)
    for note in notes:
        if options["gradients"] or not note.startswith("gradients"):
            click.echo(f"note: {note}")
    return cases


def _this_process() -> dict[str, Any]:
    said = {
        "device": "cpu",
        "versions": {"python": platform.python_version(), "ml_dtypes": ml_dtypes.__version__},
        "threads": fair_threads(1),
    }
    return made_by("numpy", "eager", said, os.environ)


def _say_written(folder: Path, cases: int, size: int) -> None:
    click.echo(f"written: {folder}, {counted(cases, 'case')}, {size / 1e6:.1f} MB")


# Comparing ---------------------------------------------------------------------------------------------
@golden_group.command("verify")
@click.argument("folder", type=FOLDER)
@_filter
@list_option
@_verbose
@_plainly
def verify_command(folder: Path, pattern: str, list_only: bool, verbose: bool) -> None:
    """Compute the contract's outputs again from the inputs in FOLDER, with NumPy alone, and compare.

    Also of a recording: whether the backend gave the contract's bits.
    """
    golden = open_golden(folder)
    chosen = _chosen(pattern, list_only, golden)
    _describe("golden", golden)
    features = cpu_features()
    click.echo(f"contract  computed here: numpy {np.__version__}, instruction set {features[-1] if features else '?'}")
    with shown_cases("verify", len(chosen)) as heard:
        findings = verify_golden(golden, matching(pattern), heard)
    _conclude(findings, verbose, "the contract's bits")


@click.command("compare")
@click.argument("actual", type=FOLDER)
@click.argument("expected", type=FOLDER)
@_filter
@list_option
@_verbose
@_plainly
def compare_command(actual: Path, expected: Path, pattern: str, list_only: bool, verbose: bool) -> None:
    """Compare the outputs in two goldens, bit for bit; no framework and no backend is needed.

    Exit code 0: equal. 1: an output differs. 2: something cannot be compared: cases or arrays that one side has not,
    other inputs, another contract, a damaged file.
    """
    got, want = open_golden(actual), open_golden(expected)
    chosen = _chosen(pattern, list_only, got, want)
    _describe("actual", got)
    _describe("expected", want)
    with shown_cases("compare", sum(name in got.cases and name in want.cases for name in chosen)) as heard:
        findings = compare_goldens(got, want, matching(pattern), heard)
    _conclude(findings, verbose, "the same bits")


def _chosen(pattern: str, list_only: bool, *goldens: Golden) -> list[str]:
    """The ids of the cases that any of the goldens has; where they are to be listed, nothing more happens."""
    chosen = list(filter(matching(pattern), dict.fromkeys(name for golden in goldens for name in golden.cases)))
    if list_only:
        list_ids(chosen)
    return chosen


def _describe(side: str, golden: Golden) -> None:
    """Who made a golden, with what, and what ran. The manifest is another's: whatever is there is only shown."""
    made = golden.made_by
    versions, machine, environment = (_fields(made.get(name)) for name in ("versions", "machine", "environment"))
    features = made.get("cpu_features")
    best = features[-1] if isinstance(features, list) and features else "not recorded"
    runs = sorted({case.implementation for case in golden.cases.values()})
    maker = f"the candidate {made['candidate']}" if "candidate" in made else made.get("backend")
    parts = [
        f"{golden.folder}: {counted(len(golden.cases), 'case')} of {maker}, {made.get('mode')}",
        f"device {made.get('device')}, runs {', '.join(runs)}",
        ", ".join(f"{what} {number}" for what, number in versions.items()),
        f"{machine.get('processor')}, instruction set {best}",
        f"{golden.contract}, crosscheck {golden.crosscheck}",
    ]
    click.echo(f"{side:9} {parts[0]}")
    for part in parts[1:]:
        click.echo(f"{'':10}{part}")
    if environment:
        click.echo(f"{'':10}environment " + " ".join(f"{name}={value}" for name, value in environment.items()))


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _conclude(findings: Findings, verbose: bool, same: str) -> None:
    """Every finding, the last line, and the exit code."""
    for word, sentences in (("UNUSABLE", findings.unusable), ("DIFFERENT", findings.different)):
        kept = sentences if verbose else sentences[:SHOWN]
        for sentence in kept:
            click.echo(f"{word} {sentence}")
        if len(kept) < len(sentences):
            click.echo(f"... and {len(sentences) - len(kept)} more; --verbose shows all")
    if findings.exit_code == 0:
        click.echo(f"EQUAL: every output has {same} ({counted(len(findings.equal), 'case')})")
    else:
        word = "DIFFERENT" if findings.different else "UNUSABLE"
        click.echo(f"{word}: {findings.counts}")
    sys.exit(findings.exit_code)


COMMANDS: tuple[click.Command, ...] = (golden_group, record_command, compare_command)
