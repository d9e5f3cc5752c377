"""The report in the terminal: a table of checks, the accuracy by digits, and every failure with its repetition.

A cell reads "passed/judged"; "-" where no case could be judged. The table has full words from WIDE columns on
and short ones below, so it is readable at 80.
"""

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from crosscheck.accuracy import Accuracy
from crosscheck.cases import OPS
from crosscheck.runner import Run
from crosscheck.verdict import CHECKS, Verdict

__all__ = ["print_environments", "print_report", "repeat_command"]

WIDE = 116
SHOWN = 10  # failures shown unless all are asked for
SHORT = {
    "bits": "bits", "inputs": "input", "population": "popul", "position": "posit", "neighbours": "neigh",
    "padding": "pad", "chunking": "chunk", "layout": "layout", "repeat": "repeat",
}  # fmt: skip
LEGEND = (
    "bits: equal to the contract. input: left unmodified. The others compare a backend with itself: popul(ation): "
    "rows removed or added; posit(ion): reordered; neigh(bours): other rows replaced; pad(ding); chunk(ing): in two "
    "calls; layout: strides and offsets; repeat: the same call again. ULP: max, ~mean."
)
ACCURACY = "Against the exact value: ULP max, ULP mean, largest error / largest logit"


@dataclass(frozen=True)
class _Row:
    """The verdicts of one operator on one backend in one mode by one implementation."""

    op: str
    backend: str
    mode: str
    implementation: str
    verdicts: list[Verdict]

    def counts(self, check: str) -> tuple[int, int]:
        """Passed and judged. A verdict without checks, of a case that raised or crashed, counts as bits that differ."""
        states = [verdict.checks[check].state for verdict in self.verdicts if verdict.checks]
        unjudged = sum(not verdict.checks for verdict in self.verdicts) if check == "bits" else 0
        return states.count("pass"), states.count("pass") + states.count("fail") + unjudged

    def ulps(self) -> tuple[float, float] | None:
        return _pooled(verdict.accuracy for verdict in self.verdicts)


def _pooled(accuracies: Iterable[Accuracy | None]) -> tuple[float, float] | None:
    """The largest and the mean ULP error over all samples."""
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    if not known:
        return None
    samples = sum(accuracy.samples for accuracy in known)
    return max(a.max_ulp for a in known), sum(a.mean_ulp * a.samples for a in known) / samples


def _rows(verdicts: Sequence[Verdict]) -> list[_Row]:
    groups: dict[tuple[str, str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        key = (verdict.op, verdict.backend, verdict.mode, verdict.implementation)
        groups.setdefault(key, []).append(verdict)
    rows = [_Row(*key, group) for key, group in groups.items()]
    return sorted(rows, key=lambda row: OPS.index(row.op))


# Parts of the report -----------------------------------------------------------------------------------
def print_environments(console: Console, environments: dict[str, dict[str, Any]]) -> None:
    """For each backend its device, threads and versions, and what its column `layout` really tries."""
    for name, said in environments.items():
        if said["reason"] is None:
            versions = ", ".join(f"{what} {version}" for what, version in said["versions"].items())
            threads = f"{said['threads']} thread{'s' * (said['threads'] != 1)}"
            _line(console, f"{name}: {said['device']}, {threads}; {versions}")
            _line(console, f"  layouts: {said['layouts']}", style="dim")


def print_report(console: Console, run: Run, command: Sequence[str], *, verbose: bool) -> None:
    """The whole report.

    Arguments:
        command: what repeats the run, less --filter and --backends.
        verbose: show all failures, and for each check all its trials.
    """
    console.print(_table(_rows(run.verdicts), wide=console.width >= WIDE))
    if console.width < WIDE:
        console.print(Text(LEGEND, style="dim"))
    accuracy = _accuracy_table(run)
    if accuracy.row_count:
        _line(console, ACCURACY, style="bold")
        console.print(accuracy)
    failed = [verdict for verdict in run.verdicts if verdict.failed]
    for verdict in failed if verbose else failed[:SHOWN]:
        _failure(console, verdict, command, verbose)
    if not verbose and len(failed) > SHOWN:
        _line(console, f"... and {len(failed) - SHOWN} more failures: --verbose shows them, --json FILE keeps them")
    _line(console, _summary(run, failed), style="bold red" if failed else "bold green")


def _line(console: Console, text: str, style: str = "") -> None:
    """One line, however long: the terminal wraps it, and a file or a pipe keeps it whole."""
    console.print(Text(text, style=style), soft_wrap=True)


def _table(rows: list[_Row], *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 1), header_style="bold", pad_edge=False)
    table.add_column("backend, mode", overflow="fold")
    if wide:
        table.add_column("runs", overflow="fold", min_width=8)
    for check in CHECKS:
        table.add_column(check if wide else SHORT[check], justify="right", no_wrap=True)
    table.add_column("ULP max" if wide else "ULP", justify="right", no_wrap=True)
    if wide:
        table.add_column("mean", justify="right", no_wrap=True)
    op = None
    for row in rows:
        if row.op != op:
            op = row.op
            table.add_row(Text(f"{op}", style="bold cyan"))
        cells = [_cell(*row.counts(check)) for check in CHECKS]
        ulps = row.ulps()
        largest, mean = (_short(ulps[0]), _short(ulps[1])) if ulps else ("-", "-")
        if wide:
            table.add_row(f" {row.backend} {row.mode}", row.implementation, *cells, largest, mean)
        else:
            table.add_row(f" {row.backend} {row.mode}", *cells, largest)
            runs = Text(f"   runs {row.implementation}", style="dim")
            table.add_row(runs, *[""] * len(CHECKS), Text(f"~{mean}" if ulps else "", style="dim"))
    return table


def _cell(passed: int, judged: int) -> Text:
    if not judged:
        return Text("-", style="dim")
    return Text(f"{passed}/{judged}", style="green" if passed == judged else "bold red")


def _short(value: float) -> str:
    if math.isinf(value):
        return "inf"
    return f"{value:.2f}" if value < 1000 else _power(value)


def _power(value: float) -> str:
    """One digit and a power of ten: 2e-3, 3e5, 1, 0."""
    return f"{value:.0e}".replace("e+00", "").replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def _accuracy_table(run: Run) -> Table:
    """Rows of one operator and number of digits; one row where all backends have the same errors."""
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="bold", pad_edge=False)
    table.add_column("op, digits", overflow="fold")
    for dtype in ("bfloat16", "float16", "float32"):
        table.add_column(f"{dtype} out", justify="right", no_wrap=True)
    for (op, digits), cells in _accuracies(run).items():
        distinct: dict[tuple[str, ...], list[str]] = {}
        for who, values in cells.items():
            distinct.setdefault(values, []).append(who)
        table.add_row(f"{op}, {digits}", *(next(iter(distinct)) if len(distinct) == 1 else ()))
        if len(distinct) > 1:
            for values, names in distinct.items():
                table.add_row("  " + ", ".join(names), *values)
    return table


def _accuracies(run: Run) -> dict[tuple[str, str], dict[str, tuple[str, ...]]]:
    """{(op, digits): {"backend mode": one cell a dtype}}."""
    found: dict[tuple[str, str], dict[str, dict[str, list[Accuracy]]]] = {}
    for verdict in run.verdicts:
        if verdict.accuracy is not None:
            key = (verdict.op, verdict.digits)
            dtypes = found.setdefault(key, {}).setdefault(f"{verdict.backend} {verdict.mode}", {})
            dtypes.setdefault(verdict.dtype, []).append(verdict.accuracy)
    order = ("bfloat16", "float16", "float32")
    return {
        key: {who: tuple(_accuracy_cell(dtypes.get(dtype, [])) for dtype in order) for who, dtypes in cells.items()}
        for key, cells in sorted(found.items())
    }


def _accuracy_cell(accuracies: list[Accuracy]) -> str:
    pooled = _pooled(accuracies)
    if pooled is None:
        return "-"
    relative = max(accuracy.max_relative for accuracy in accuracies)
    return f"{_short(pooled[0])} {_short(pooled[1])} {_power(relative)}"


def _failure(console: Console, verdict: Verdict, command: Sequence[str], verbose: bool) -> None:
    where = f"{verdict.case} on {verdict.backend}, {verdict.mode} ({verdict.implementation})"
    console.print(Text.assemble(("FAILED ", "bold red"), where), soft_wrap=True)
    if verdict.status != "judged":
        _line(console, f"  {verdict.status}: {verdict.message}")
    for name, check in verdict.checks.items():
        for failure in check.failed if verbose else check.failed[:1]:
            more = len(check.failed) - 1
            others = f" (and {more} more trials)" if more and not verbose else ""
            _line(console, f"  {name}, {failure.trial}: {failure.text}{others}")
    _line(console, f"  repeat: {repeat_command(command, verdict)}", style="dim")


def repeat_command(command: Sequence[str], verdict: Verdict) -> str:
    return shlex.join([*command, "--filter", verdict.case, "--backends", verdict.backend])


def _summary(run: Run, failed: list[Verdict]) -> str:
    cases = len({verdict.case for verdict in run.verdicts})
    size = f"{cases} cases, {len(run.environments)} backends, {len(run.verdicts)} verdicts"
    if failed:
        return f"DIFFERENT: {len(failed)} of {len(run.verdicts)} verdicts failed ({size})"
    return f"EQUAL: every bit is the contract's, under every transform ({size})"
