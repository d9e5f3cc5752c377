"""The command line: `crosscheck run` judges backends, `crosscheck info` says what there is; cli_golden.py has the rest.

Exit codes: 0 every bit equal, 1 something differs or a backend raised, crashed or timed out, 2 input that cannot be
used or a backend that is missing, 130 interrupted.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from crosscheck.candidates import CandidateError
from crosscheck.cli_candidates import Candidates, candidate_options, read_candidates
from crosscheck.cli_cases import (
    Unusable,
    case_options,
    chosen_cases,
    given_options,
    list_ids,
    termination_as_interrupt,
)
from crosscheck.cli_golden import COMMANDS as GOLDEN_COMMANDS
from crosscheck.cli_order import order_command
from crosscheck.cli_report import REPORT_OPTIONS, Reports, report_options
from crosscheck.cli_running import RUNNING_OPTIONS, read_running, running_options
from crosscheck.registry import BACKENDS, Backend
from crosscheck.report import print_environments, print_report
from crosscheck.report_json import as_json, program_version
from crosscheck.runner import Run, describe
from crosscheck.threads import ThreadsError
from crosscheck.verdict import counted

__all__ = ["main"]

DEFAULT_BACKENDS = "numpy,torch-cpu,jax-cpu"
EXIT_NOT_EQUAL, EXIT_INTERRUPTED = 1, 130
NO_CASE = "nothing compared: no case matches {!r}; --list shows the ids"
NARROW = 60  # columns, below which `info` prints lines in place of a table
# A failure is repeated with its own case, and backend or candidate; its reports would replace those of the whole run.
NOT_REPEATED = ("backends", "candidates", "device", "pattern", *REPORT_OPTIONS, *RUNNING_OPTIONS)
EPILOG = """\b
The parts of a case id:
  lm_head, embedding    the operator; with _fp32, its float32 form;
                        selected_logprob, linear_logprob
  bf16, fp16, fp32      dtype of the table, of logits, or of hidden and weight;
                        bf16xfp32: bfloat16 hidden, float32 weight
  N257, N2x3, Nscalar   257 rows; leading shape [2, 3]; a single id
  K4096, H4096, V1000   width of a row (K: LM head, H: embedding); vocab
  d3, dauto             digits; the operator's own choice
  bias, nobias          a bias in the dtype of hidden, none;
                        bias_fp32: a bias in float32
  int64, uint8, ...     dtype of the token ids, or of the targets
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


for command in (*GOLDEN_COMMANDS, order_command):
    main.add_command(command)


@main.command("run", cls=_Remembering, epilog=EPILOG)
@click.option("--backends", default=DEFAULT_BACKENDS, show_default=True, help="Backends to judge, with commas.")
@candidate_options
@case_options
@report_options
@running_options
@click.option(
    "--mode", type=click.Choice(["eager", "compiled"]), help="Judge eager code alone, or compiled code alone."
)
@click.option("--verbose", is_flag=True, help="Show every failure and every trial that failed.")
@click.pass_context
def run_command(context: click.Context, backends: str, **options: Any) -> None:
    """Judge backends, or your own candidates, on the built-in cases, or on a checkpoint.

    Every case is compared with the fixed-K contract, bit for bit, and with itself under transforms that must
    not change a bit; so are its gradients, for an upstream gradient that is drawn with the case. Exit code 0:
    all equal. 1: something differs, or a backend raised, crashed or timed out. 2: unusable input or a missing
    backend.
    """
    try:
        known: Mapping[str, Backend] = context.obj or BACKENDS
        given = given_options(context)
        candidates = _candidates(options, given, known)
        running = read_running(options, given)
        chosen = [] if candidates and "backends" not in given else _backends(backends, known)
        everything = _in_mode([*chosen, *candidates.backends], options["mode"])
        unused = [option for name, option in REPORT_OPTIONS.items() if name in given]
        if unused and "list_only" in given:
            raise Unusable(f"--list judges nothing, so there is no report for {unused[0]}; expected one of the two")
        cases, notes = chosen_cases(context, options, NO_CASE)
        if options["list_only"]:
            list_ids(case.id for case in cases)
        reports = Reports.of(options)
        reports.check()
        running.check()
        console = Console(highlight=False)
        _print_notes(console, notes)
        repeating = _repeating(context, given)

        def report_of(result: Run) -> dict[str, Any]:
            candidates.mark(result)
            return as_json(result, cases, context.meta["typed"], notes, repeating)

        with termination_as_interrupt():
            result, kept = running.judge(cases, everything, lambda partial: reports.write_part(report_of, partial))
            candidates.finish(result, options["timeout"])
            problem = running.reproduce(result, cases, everything)
        _print_notes(console, kept)
        notes += kept
        print_environments(console, result.environments)
        if result.verdicts:
            print_report(console, result, repeating, verbose=options["verbose"])
        if reports.files:
            reports.write(report_of(result))
        if problem:
            raise Unusable(problem)
    except KeyboardInterrupt:
        _interrupted("interrupted; every process that was started has been ended")
    if not result.complete:
        made = len(result.verdicts)
        _interrupted(f"interrupted: {made} of {counted(result.due, 'verdict')} made{reports.continued_by(made)}")
    sys.exit(0 if result.outcome == "equal" else EXIT_NOT_EQUAL)


def _interrupted(message: str) -> NoReturn:
    click.echo(f"crosscheck: {message}", err=True)
    sys.exit(EXIT_INTERRUPTED)


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _candidates(options: Mapping[str, Any], given: Mapping[str, Any], known: Mapping[str, Backend]) -> Candidates:
    try:
        return read_candidates(options, given, known)
    except CandidateError as error:
        raise Unusable(str(error)) from error


def _backends(names: str, known: Mapping[str, Backend]) -> list[Backend]:
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = f"no backend {', '.join(map(repr, unknown))}" if unknown else "no backend is named"
        raise Unusable(f"{what}; the known ones are {', '.join(known)}")
    return [known[name] for name in wanted]


def _in_mode(backends: Sequence[Backend], mode: str | None) -> list[Backend]:
    if mode is None:
        return list(backends)
    without = [backend.name for backend in backends if not backend.only(mode).modes]
    if without:
        raise Unusable(f"--mode {mode}: {', '.join(without)} {'has' if len(without) == 1 else 'have'} no such mode")
    return [backend.only(mode) for backend in backends]


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


@main.command("info")
@click.pass_context
def info_command(context: click.Context) -> None:
    """List backends: whether each can run here, its device, versions and implementations."""
    known: Mapping[str, Backend] = context.obj or BACKENDS
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=False, header_style="bold")
    for column in ("backend", "available", "modes", "what runs, and where"):
        table.add_column(column, overflow="fold")
    for name, said in _described(known).items():
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


def _described(known: Mapping[str, Backend]) -> dict[str, dict[str, Any]]:
    try:
        return describe(list(known.values()))
    except ThreadsError as error:
        raise Unusable(str(error)) from error


def _what_runs(said: Mapping[str, Any]) -> list[str]:
    """Lines on a backend: the reason where it cannot run."""
    if said["reason"] is not None:
        return [said["reason"]]
    runs = [f"{op}: {implementation}" for op, implementation in said["implementations"].items()]
    versions = [f"{what} {number}" for what, number in said["versions"].items()]
    return [f"device {said['device']}; {', '.join(runs)}", ", ".join(versions), f"layouts: {said['layouts']}"]


if __name__ == "__main__":
    main()
