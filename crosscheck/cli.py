"""The command line: `crosscheck run` judges backends, `crosscheck info` says what there is; cli_golden.py has the rest.

Exit codes: 0 every bit equal, 1 something differs or a backend raised, crashed or timed out, 2 input that cannot be
used or a backend that is missing, 130 interrupted.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from crosscheck.candidates import CandidateError
from crosscheck.cli_candidates import candidate_options, read_candidates
from crosscheck.cli_cases import Unusable, case_options, chosen_cases, given_options, termination_as_interrupt
from crosscheck.cli_golden import COMMANDS as GOLDEN_COMMANDS
from crosscheck.judge import Judged
from crosscheck.progress import shown
from crosscheck.registry import BACKENDS, Backend
from crosscheck.report import print_environments, print_report
from crosscheck.report_json import as_json, check_writable, program_version, write_json
from crosscheck.runner import BackendMissing, Run, describe, run
from crosscheck.verdict import counted

__all__ = ["main"]

DEFAULT_BACKENDS = "numpy,torch-cpu,jax-cpu"
EXIT_NOT_EQUAL, EXIT_INTERRUPTED = 1, 130
NO_CASE = "nothing compared: no case matches {!r}; --list shows the ids"
NARROW = 60  # columns, below which `info` prints lines in place of a table
# A failure is repeated with its own case, and backend or candidate; --json would replace the report of the whole run.
NOT_REPEATED = ("backends", "candidates", "device", "pattern", "json_path")
EPILOG = """\b
The parts of a case id:
  lm_head, embedding    the operator; with _fp32, its float32 form
  bf16, fp16, fp32      dtype of the table, or of hidden and weight;
                        bf16xfp32: bfloat16 hidden, float32 weight
  N257, N2x3, Nscalar   257 rows; leading shape [2, 3]; a single id
  K4096, H4096, V1000   width of a row (K: LM head, H: embedding); vocab
  d3, dauto             digits; the operator's own choice
  bias, nobias          a bias in the dtype of hidden, none;
                        bias_fp32: a bias in float32
  int64, uint8, ...     dtype of the token ids
  checkpoint            on the tables of --checkpoint
"""


class _Remembering(click.Command):
    """A command that keeps the words that were typed, in `context.meta["typed"]`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["typed"] = shlex.join([*ctx.command_path.split(), *args])
        return super().parse_args(ctx, args)


@click.group("crosscheck", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(program_version(), prog_name="crosscheck")
def main() -> None:
    """Judge implementations of token embedding and LM head, bit for bit."""


for command in GOLDEN_COMMANDS:
    main.add_command(command)


@main.command("run", cls=_Remembering, epilog=EPILOG)
@click.option("--backends", default=DEFAULT_BACKENDS, show_default=True, help="Backends to judge, with commas.")
@candidate_options
@case_options
@click.option("--list", "list_only", is_flag=True, help="Print the ids of the cases and stop.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the report.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=120.0, show_default=True,
              help="Seconds for one call; a case makes some thirty.")  # fmt: skip
@click.option("--verbose", is_flag=True, help="Show every failure and every trial that failed.")
@click.pass_context
def run_command(context: click.Context, backends: str, json_path: Path | None, **options: Any) -> None:
    """Judge backends, or your own candidates, on the built-in cases, or on a checkpoint.

    Every case is compared with the fixed-K contract, bit for bit, and with itself under transforms that must
    not change a bit; so are its gradients, for an upstream gradient that is drawn with the case. Exit code 0:
    all equal. 1: something differs, or a backend raised, crashed or timed out. 2: unusable input or a missing
    backend.
    """
    try:
        known: Mapping[str, Backend] = context.obj or BACKENDS
        given = given_options(context)
        try:
            candidates = read_candidates(options, given, known)
        except CandidateError as error:
            raise Unusable(str(error)) from error
        chosen = [] if candidates and "backends" not in given else _backends(backends, known)
        if "json_path" in given and "list_only" in given:
            raise Unusable("--list judges nothing, so there is no report for --json; expected one of the two")
        cases, notes = chosen_cases(context, options, NO_CASE)
        if options["list_only"]:
            click.echo("\n".join(case.id for case in cases))
            return
        if json_path is not None:
            _check_report(json_path)
        console = Console(highlight=False)
        for note in notes:
            console.print(Text(f"note: {note}"), soft_wrap=True)
        result = _judge(cases, [*chosen, *candidates.backends], options["timeout"])
        candidates.finish(result, options["timeout"])
        print_environments(console, result.environments)
        if result.verdicts:
            print_report(console, result, _repeating(context, given), verbose=options["verbose"])
        if json_path is not None:
            _write_report(json_path, as_json(result, cases, context.meta["typed"], notes))
    except KeyboardInterrupt:
        _interrupted("interrupted; every process that was started has been ended")
    if not result.complete:
        _interrupted(f"interrupted: {len(result.verdicts)} of {counted(result.due, 'verdict')} made")
    sys.exit(0 if result.outcome == "equal" else EXIT_NOT_EQUAL)


def _interrupted(message: str) -> NoReturn:
    click.echo(f"crosscheck: {message}", err=True)
    sys.exit(EXIT_INTERRUPTED)


def _backends(names: str, known: Mapping[str, Backend]) -> list[Backend]:
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = f"no backend {', '.join(map(repr, unknown))}" if unknown else "no backend is named"
        raise Unusable(f"{what}; the known ones are {', '.join(known)}")
    return [known[name] for name in wanted]


def _repeating(context: click.Context, given: Mapping[str, click.Option]) -> list[str]:
    """The command that judges as this run does, less --filter and --backends, which a failure adds."""
    words = context.command_path.split()
    for name, option in given.items():
        value = context.params[name]
        if name in NOT_REPEATED:
            continue
        if option.is_flag:
            words.append(option.opts[0])
            continue
        for part in value if option.multiple else [value]:
            words += [option.opts[0], str(part).removesuffix(".0") if isinstance(part, float) else str(part)]
    return words


def _check_report(path: Path) -> None:
    """Before the work, so that no verdict is lost to a mistyped path."""
    try:
        check_writable(path)
    except OSError as error:
        raise Unusable(f"the report cannot be written to {path}: {error.strerror}") from error


def _write_report(path: Path, report: dict[str, Any]) -> None:
    try:
        write_json(path, report)
    except OSError as error:
        raise Unusable(f"the report could not be written to {path}: {error.strerror}") from error


def _judge(cases: Sequence[Judged], backends: Sequence[Backend], timeout: float) -> Run:
    totals = {backend.name: len(backend.modes) * len(cases) for backend in backends}
    try:
        with termination_as_interrupt(), shown(totals) as progress:
            return run(cases, backends, timeout=timeout, progress=progress)
    except BackendMissing as error:
        raise Unusable(f"{error}; nothing was compared") from error


@main.command("info")
@click.pass_context
def info_command(context: click.Context) -> None:
    """List backends: whether each can run here, its device, versions and implementations."""
    known: Mapping[str, Backend] = context.obj or BACKENDS
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=False, header_style="bold")
    for column in ("backend", "available", "modes", "what runs, and where"):
        table.add_column(column, overflow="fold")
    for name, said in describe(list(known.values())).items():
        modes = ", ".join(said["modes"])
        available = Text("yes", style="green") if said["reason"] is None else Text("no", style="yellow")
        runs = Text("\n".join(_what_runs(said)))
        if console.width >= NARROW:
            table.add_row(name, available, modes, runs)
        else:
            console.print(Text.assemble((name, "bold"), " available: ", available, f"; modes: {modes}"))
            console.print(Padding(runs, (0, 0, 0, 2)))
    if table.row_count:
        console.print(table)


def _what_runs(said: Mapping[str, Any]) -> list[str]:
    """Lines on a backend: the reason where it cannot run."""
    if said["reason"] is not None:
        return [said["reason"]]
    runs = [f"{op}: {implementation}" for op, implementation in said["implementations"].items()]
    versions = [f"{what} {number}" for what, number in said["versions"].items()]
    return [f"device {said['device']}; {', '.join(runs)}", ", ".join(versions), f"layouts: {said['layouts']}"]


if __name__ == "__main__":
    main()
