"""`crosscheck order`: in which order a candidate's, or a backend's, LM head adds its products.

Exit codes: 0 one order at every number of rows, vocab and position, or none, for the sums are exact; 1 the order
changes, there is none that explains the sums, or a candidate gave no result; 2 what cannot be used; 130 interrupted.
"""

import itertools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from crosscheck.candidates import CandidateError, candidate_backends
from crosscheck.cases import DTYPES
from crosscheck.cli_cases import Unusable, given_options, termination_as_interrupt
from crosscheck.cli_types import SECONDS
from crosscheck.order.report import order_json, print_order
from crosscheck.order.run import OrderRun, Setting, order_run
from crosscheck.progress import shown
from crosscheck.registry import BACKENDS, Backend
from crosscheck.report_json import check_writable, write_json
from crosscheck.runner import BackendMissing
from crosscheck.threads import ThreadsError

__all__ = ["order_command"]

EXIT_CHANGES, EXIT_INTERRUPTED = 1, 130
SUMS = ("lm_head", "lm_head_fp32")  # the operators that add; an embedding copies rows, which has no order
WIDEST = 4096
MOST_RESULTS = 2**24


class Numbers(click.ParamType):
    """Numbers with commas, each once."""

    name = "numbers"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            numbers = list(dict.fromkeys(int(word) for word in str(value).split(",")))
        except ValueError:
            numbers = []
        if not numbers or not all(self.least <= number <= self.most for number in numbers):
            self.fail(f"{value!r}; expected numbers from {self.least} to {self.most} with commas", param, ctx)
        return numbers


@click.command("order")
@click.option("--op", required=True, type=click.Choice(SUMS),
              help="Whose sums are looked at; an embedding adds nothing.")  # fmt: skip
@click.option("--candidate", "candidates", multiple=True, metavar="NAME=FRAMEWORK:MODULE:FUNCTION",
              help="Your own function, in torch or jax; may be repeated.")  # fmt: skip
@click.option("--backend", "names", multiple=True, help="A backend of crosscheck info; may be repeated.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="Where the candidates run.")  # fmt: skip
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="bf16", show_default=True,
              help="Of hidden states and weight.")  # fmt: skip
@click.option("--width", "widths", type=Numbers(2, WIDEST), default="64,100", show_default=True, metavar="K,...",
              help="How many products a sum has; the others are compared with the first.")  # fmt: skip
@click.option("--rows", type=Numbers(1, 2**16), default="1,2,16,257", show_default=True, metavar="N,...",
              help="How many rows of hidden states a call has.")  # fmt: skip
@click.option("--vocab", type=Numbers(1, 2**20), default="1,100", show_default=True, metavar="V,...",
              help="How many rows the weight has.")  # fmt: skip
@click.option("--mode", type=click.Choice(["eager", "compile", "jit"]), default="eager", show_default=True,
              help="compile is of torch, jit of jax.")  # fmt: skip
@click.option("--timeout", type=SECONDS, default=120.0, show_default=True,
              help="Seconds for one call; a setting makes some hundred.")  # fmt: skip
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the report.")
@click.pass_context
def order_command(context: click.Context, json_path: Path | None, **options: Any) -> None:
    """Reveal in which order a sum over K adds its products, and what changes it.

    By its results alone (FPRev, arXiv 2411.00442), at each number of rows and vocab, for every row and column. Exit
    code 0: one order for all of them, or none, for the sums are exact. 1: it changes, or there is no result.
    2: unusable input or a missing backend.
    """
    backends = _backends(context, options)
    sizes = itertools.product(options["widths"], sorted(options["rows"]), sorted(options["vocab"]))
    settings = [Setting(*of_each) for of_each in sizes]
    _check_sizes(settings)
    if json_path is not None:
        with _writing(json_path):
            check_writable(json_path)
    try:
        run = _run(backends, settings, options)
    except KeyboardInterrupt:
        click.echo("crosscheck: interrupted; every process that was started has been ended", err=True)
        sys.exit(EXIT_INTERRUPTED)
    print_order(Console(highlight=False), run)
    if json_path is not None:
        with _writing(json_path):
            write_json(json_path, order_json(run, _command(context)))
    sys.exit(0 if run.outcome in ("one order", "no order") else EXIT_CHANGES)


def _backends(context: click.Context, options: Mapping[str, Any]) -> list[Backend]:
    """What was asked for, candidates first.

    Raises:
        Unusable: nothing was, or something that cannot be used.
    """
    known: Mapping[str, Backend] = context.obj or BACKENDS
    if not options["candidates"] and "device" in given_options(context):
        raise Unusable("--device means something with --candidate only; --backend names its device")
    unknown = [name for name in options["names"] if name not in known]
    if unknown:
        raise Unusable(f"no backend {', '.join(map(repr, unknown))}; the known ones are {', '.join(known)}")
    try:
        found = candidate_backends(options["candidates"], options["device"], list(known))
    except CandidateError as error:
        raise Unusable(str(error)) from error
    found += [known[name] for name in dict.fromkeys(options["names"])]
    if not found:
        raise Unusable("nothing to reveal; expected --candidate NAME=torch:MODULE:FUNCTION or --backend NAME")
    for backend in found:
        if options["mode"] not in backend.modes:
            raise Unusable(
                f"{backend.name} has no mode {options['mode']!r}; expected one of {', '.join(backend.modes)}"
            )
    return found


def _check_sizes(settings: Sequence[Setting]) -> None:
    for setting in settings:
        if (results := setting.rows * setting.vocab) > MOST_RESULTS:
            raise Unusable(
                f"{setting.rows} rows and a vocab of {setting.vocab} have {results} results; expected at most "
                f"{MOST_RESULTS}: ask for many rows and a large vocab in two runs"
            )


def _run(backends: Sequence[Backend], settings: Sequence[Setting], options: Mapping[str, Any]) -> OrderRun:
    try:
        with termination_as_interrupt(), shown({backend.name: len(settings) for backend in backends}) as progress:
            return order_run(
                backends, settings, op=options["op"], dtype=DTYPES[options["dtype"]].name, mode=options["mode"],
                timeout=options["timeout"], progress=progress,
            )  # fmt: skip
    except BackendMissing as error:
        raise Unusable(f"{error}; nothing was revealed") from error
    except ThreadsError as error:
        raise Unusable(str(error)) from error


def _command(context: click.Context) -> str:
    """What repeats the run, quoted for a shell."""
    words = context.command_path.split()
    for name, option in given_options(context).items():
        value = context.params[name]
        for one in value if option.multiple else [value]:
            words += [option.opts[0], ",".join(map(str, one)) if isinstance(one, list) else str(one)]
    return shlex.join(words)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unusable(f"the report cannot be written to {path}: {error.strerror}") from error
