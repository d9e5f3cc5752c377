"""The command line: `crosscheck run` judges backends, `crosscheck info` says what there is.

Exit codes: 0 every bit equal, 1 something differs, 2 input that cannot be used or a backend that is missing,
130 interrupted.
"""

import fnmatch
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crosscheck.cases import DTYPES, OPS, default_suite, full_suite
from crosscheck.checkpoint import CheckpointError
from crosscheck.judge import Judged
from crosscheck.progress import shown
from crosscheck.real_input import RealInput, real_cases
from crosscheck.registry import BACKENDS, Backend
from crosscheck.report import print_environments, print_report
from crosscheck.report_json import as_json, check_writable, program_version, write_json
from crosscheck.runner import BackendMissing, Run, describe, run

__all__ = ["main"]

DEFAULT_BACKENDS = "numpy,torch-cpu,jax-cpu"
EXIT_DIFFERENT, EXIT_UNUSABLE, EXIT_INTERRUPTED = 1, 2, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(program_version(), prog_name="crosscheck")
def main() -> None:
    """Judge implementations of token embedding and LM head, bit for bit."""


@main.command("run")
@click.option("--backends", default=DEFAULT_BACKENDS, show_default=True, help="Backends to judge, with commas.")
@click.option("--suite", type=click.Choice(["default", "full"]), default="default", show_default=True)
@click.option("--op", "ops", multiple=True, type=click.Choice(OPS), help="Only this operator; may be repeated.")
@click.option("--filter", "pattern", default="*", metavar="GLOB", help="Only cases whose id matches.")
@click.option("--list", "list_only", is_flag=True, help="Print the ids of the cases and stop.")
@click.option("--checkpoint", metavar="PATH", help="A safetensors file, index or folder: judge on its tables.")
@click.option("--embedding-key", metavar="KEY", help="The embedding table [V, H] in the checkpoint.")
@click.option("--lm-head-key", metavar="KEY", help="The LM head [V, K]; the embedding's key where not given.")
@click.option("--token-ids", metavar="IDS.npy", help="Token ids of any integer dtype and shape.")
@click.option("--hidden", metavar="HIDDEN.npy", help="Hidden states [..., K]; else embedding rows of the ids.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), help="Round tables and hidden states to it first.")
@click.option("--max-rows", type=click.IntRange(1), default=32, show_default=True, help="Ids and rows to use.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the report.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=120.0, show_default=True,
              help="Seconds for one call; a case makes some twenty.")  # fmt: skip
@click.option("--verbose", is_flag=True, help="Show every failure and every trial that failed.")
@click.pass_context
def run_command(context: click.Context, backends: str, json_path: Path | None, **options: Any) -> None:
    """Judge backends on the built-in cases, or on a checkpoint.

    Every case is compared with the fixed-K contract, bit for bit, and with itself under transforms that must
    not change a bit. Exit code 0: all equal. 1: something differs. 2: unusable input or a missing backend.
    """
    try:
        chosen = _backends(backends, context.obj or BACKENDS)
        cases, notes, command = _cases(options)
        if options["list_only"]:
            click.echo("\n".join(case.id for case in cases))
            return
        if json_path is not None:
            _check_report(json_path)
        console = Console(highlight=False)
        for note in notes:
            console.print(Text(f"note: {note}"), soft_wrap=True)
        result = _judge(cases, chosen, options["timeout"])
        print_environments(console, result.environments)
        if result.verdicts:
            print_report(console, result, command, verbose=options["verbose"])
        if json_path is not None:
            _write_report(json_path, as_json(result, cases, command, notes))
    except KeyboardInterrupt:
        _stop(EXIT_INTERRUPTED, "interrupted; every process that was started has been ended")
    if not result.complete:
        due = sum(len(backend.modes) for backend in chosen) * len(cases)
        _stop(EXIT_INTERRUPTED, f"interrupted: {len(result.verdicts)} of {due} verdicts were made")
    sys.exit(EXIT_DIFFERENT if any(verdict.failed for verdict in result.verdicts) else 0)


def _stop(code: int, message: str) -> NoReturn:
    click.echo(f"crosscheck: {message}", err=True)
    sys.exit(code)


def _backends(names: str, known: Mapping[str, Backend]) -> list[Backend]:
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = f"no backend {', '.join(map(repr, unknown))}" if unknown else "no backend is named"
        _stop(EXIT_UNUSABLE, f"{what}; the known ones are {', '.join(known)}")
    return [known[name] for name in wanted]


def _cases(options: dict[str, Any]) -> tuple[list[Judged], list[str], list[str]]:
    """The cases, notes on them, and the command that repeats the run, less --filter and --backends."""
    ops = options["ops"] or OPS
    found: Sequence[Judged]
    notes: list[str] = []
    if options["checkpoint"] is None:
        _refuse_stray_options(options)
        found = default_suite() if options["suite"] == "default" else full_suite()
        found = [case for case in found if case.op in ops]
        command = ["crosscheck", "run"] + (["--suite", "full"] if options["suite"] == "full" else [])
    else:
        source = _real_input(options)
        try:
            found, notes = real_cases(source, ops)
        except CheckpointError as error:
            _stop(EXIT_UNUSABLE, str(error))
        command = _checkpoint_command(source)
    cases = [case for case in found if fnmatch.fnmatchcase(case.id, options["pattern"])]
    if not cases:
        _stop(EXIT_UNUSABLE, f"nothing compared: no case matches {options['pattern']!r}; --list shows the ids")
    return cases, notes, command


def _refuse_stray_options(options: dict[str, Any]) -> None:
    for name in ("embedding_key", "lm_head_key", "token_ids", "hidden", "dtype"):
        if options[name] is not None:
            _stop(EXIT_UNUSABLE, f"--{name.replace('_', '-')} means something with --checkpoint only")


def _real_input(options: dict[str, Any]) -> RealInput:
    missing = [f"--{name.replace('_', '-')}" for name in ("embedding_key", "token_ids") if options[name] is None]
    if missing:
        _stop(EXIT_UNUSABLE, f"--checkpoint needs {' and '.join(missing)} as well")
    return RealInput(
        options["checkpoint"],
        options["embedding_key"],
        options["lm_head_key"] or options["embedding_key"],
        options["token_ids"],
        options["hidden"],
        options["dtype"],
        options["max_rows"],
    )


def _checkpoint_command(source: RealInput) -> list[str]:
    given = {
        "--checkpoint": source.checkpoint,
        "--embedding-key": source.embedding_key,
        "--lm-head-key": source.lm_head_key,
        "--token-ids": source.token_ids,
        "--hidden": source.hidden,
        "--dtype": source.dtype,
        "--max-rows": str(source.max_rows),
    }
    options = [part for name, value in given.items() if value is not None for part in (name, value)]
    return ["crosscheck", "run", *options]


def _check_report(path: Path) -> None:
    """Before the work, so that no verdict is lost to a mistyped path."""
    try:
        check_writable(path)
    except OSError as error:
        _stop(EXIT_UNUSABLE, f"the report cannot be written to {path}: {error.strerror}")


def _write_report(path: Path, report: dict[str, Any]) -> None:
    try:
        write_json(path, report)
    except OSError as error:
        _stop(EXIT_UNUSABLE, f"the report could not be written to {path}: {error.strerror}")


def _judge(cases: Sequence[Judged], backends: Sequence[Backend], timeout: float) -> Run:
    totals = {backend.name: len(backend.modes) * len(cases) for backend in backends}
    try:
        with _termination_as_interrupt(), shown(totals) as progress:
            return run(cases, backends, timeout=timeout, progress=progress)
    except BackendMissing as error:
        _stop(EXIT_UNUSABLE, f"{error}; nothing was compared")


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM, which a scheduler sends, ends a run as Ctrl-C does: processes and files are cleared away."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
        if said["reason"] is not None:
            table.add_row(name, Text("no", style="yellow"), modes, Text(said["reason"]))
            continue
        runs = [f"{op}: {implementation}" for op, implementation in said["implementations"].items()]
        versions = [f"{what} {number}" for what, number in said["versions"].items()]
        lines = [f"device {said['device']}; {', '.join(runs)}", ", ".join(versions), f"layouts: {said['layouts']}"]
        table.add_row(name, Text("yes", style="green"), modes, Text("\n".join(lines)))
    console.print(table)


if __name__ == "__main__":
    main()
