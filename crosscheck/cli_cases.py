"""What the commands share: how they are ended, the options that choose cases, and the cases that they choose."""

import fnmatch
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from crosscheck.cases import DTYPES, OPS, default_suite, full_suite
from crosscheck.checkpoint import CheckpointError
from crosscheck.judge import Judged
from crosscheck.real_input import RealInput, real_cases

__all__ = [
    "Unusable",
    "case_options",
    "chosen_cases",
    "given_options",
    "list_ids",
    "list_option",
    "matching",
    "termination_as_interrupt",
]

Command = TypeVar("Command", bound=Callable[..., Any])
CHECKPOINT_ONLY = ("embedding_key", "lm_head_key", "token_ids", "hidden", "dtype", "max_rows")


class Unusable(click.ClickException):
    """Input that cannot be used: one sentence on stderr, and the exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"crosscheck: {self.format_message()}", err=True)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM, which a scheduler sends, ends a command as Ctrl-C does: processes and files are cleared away."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


NO_CASE = "no case matches {!r}; crosscheck run --list shows the ids"
list_option = click.option("--list", "list_only", is_flag=True, help="Print the ids of the cases and stop.")
_OPTIONS = (
    click.option("--suite", type=click.Choice(["default", "full"]), default="default", show_default=True,
                 help="The built-in cases: a selection, or twenty times as many."),
    click.option("--op", "ops", multiple=True, type=click.Choice(OPS), help="Only this operator; may be repeated."),
    click.option("--filter", "pattern", default="*", metavar="GLOB", help="Only cases whose id matches."),
    list_option,
    click.option("--checkpoint", metavar="PATH", help="A safetensors file, index or folder: cases on its tables."),
    click.option("--embedding-key", metavar="KEY", help="The embedding table [V, H] in the checkpoint."),
    click.option("--lm-head-key", metavar="KEY", help="The LM head [V, K]; the embedding's key where not given."),
    click.option("--token-ids", metavar="IDS.npy", help="Token ids of any integer dtype and shape."),
    click.option("--hidden", metavar="HIDDEN.npy", help="Hidden states [..., K]; else embedding rows of the ids."),
    click.option("--dtype", type=click.Choice(list(DTYPES)), help="Round tables and hidden states to it first."),
    click.option("--max-rows", type=click.IntRange(1), default=32, show_default=True, help="Ids and rows to use."),
)  # fmt: skip


def case_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def list_ids(ids: Iterable[str]) -> NoReturn:
    """Print them, and end the command."""
    click.echo("\n".join(ids))
    raise click.exceptions.Exit(0)


def matching(pattern: str) -> Callable[[str], bool]:
    """Whether the id of a case matches."""
    return lambda case_id: fnmatch.fnmatchcase(case_id, pattern)


def given_options(context: click.Context) -> dict[str, click.Option]:
    """The options that were typed, by parameter name, in the order of --help."""
    return {
        option.name: option
        for option in context.command.params
        if isinstance(option, click.Option)
        and option.name is not None
        and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }


def chosen_cases(
    context: click.Context, options: Mapping[str, Any], no_case: str = NO_CASE
) -> tuple[list[Judged], list[str]]:
    """The cases, and notes on them.

    Arguments:
        no_case: what to say where none matches, with {!r} for the pattern.

    Raises:
        Unusable: options that would be ignored, input that cannot be used, or no case at all.
    """
    _refuse_what_would_be_ignored(given_options(context))
    ops = [op for op in OPS if op in options["ops"]] or OPS
    found: Sequence[Judged]
    notes: list[str] = []
    if options["checkpoint"] is None:
        found = [case for case in (default_suite if options["suite"] == "default" else full_suite)() if case.op in ops]
    else:
        try:
            found, notes = real_cases(_real_input(options), ops)
        except CheckpointError as error:
            raise Unusable(str(error)) from error
    cases = [case for case in found if matching(options["pattern"])(case.id)]
    if not cases:
        raise Unusable(no_case.format(options["pattern"]))
    return cases, notes


def _refuse_what_would_be_ignored(given: Mapping[str, click.Option]) -> None:
    for name in CHECKPOINT_ONLY:
        if name in given and "checkpoint" not in given:
            raise Unusable(f"{given[name].opts[0]} means something with --checkpoint only")
    if "suite" in given and "checkpoint" in given:
        raise Unusable(
            "--suite chooses among the built-in cases, and --checkpoint has cases of its own in place of them; "
            "expected one of the two: run crosscheck twice for both"
        )


def _real_input(options: Mapping[str, Any]) -> RealInput:
    missing = [f"--{name.replace('_', '-')}" for name in ("embedding_key", "token_ids") if options[name] is None]
    if missing:
        raise Unusable(f"--checkpoint needs {' and '.join(missing)} as well")
    return RealInput(
        options["checkpoint"],
        options["embedding_key"],
        options["embedding_key"] if options["lm_head_key"] is None else options["lm_head_key"],
        options["token_ids"],
        options["hidden"],
        options["dtype"],
        options["max_rows"],
    )
