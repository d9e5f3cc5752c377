"""The tables of the report: the checks that each backend passed, and the accuracy by digits.

A cell of the first reads "passed/judged"; "-" where no case could be judged. It has full words from WIDE columns
on, short ones below, with what runs and the errors on a second line, and where those do not fit either, each row
becomes a block of lines.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from crosscheck.accuracy import Accuracy
from crosscheck.cases import OPS
from crosscheck.verdict import CHECKS, NOT_OFFERED, Verdict

__all__ = ["print_accuracy", "print_checks", "short"]

WIDE = 122
ENDLESS = 10_000  # columns: the width at which a table is measured
SHORT = {
    "bits": "bits", "inputs": "input", "population": "popul", "position": "posit", "neighbours": "neigh",
    "padding": "pad", "chunking": "chunk", "layout": "lay", "repeat": "rep", "grad": "grad",
}  # fmt: skip
ACCURACY = "Against the exact value: ULP max, ULP mean, largest error / largest logit"
OUT_DTYPES = ("bfloat16", "float16", "float32")


def _fits(console: Console, table: Table) -> bool:
    """Whether every word of the table can stay whole."""
    return Measurement.get(console, console.options.update_width(ENDLESS), table).minimum <= console.width


# Checks ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Row:
    """The verdicts of one operator on one backend in one mode by one implementation."""

    op: str
    backend: str
    mode: str
    implementation: str
    verdicts: list[Verdict]

    def cell(self, check: str) -> Text:
        """Passed and judged. A verdict without checks, of a case that gave no answer, counts in bits, as not passed."""
        states = [verdict.checks[check].state for verdict in self.verdicts if verdict.checks]
        lacking = [verdict for verdict in self.verdicts if not verdict.checks and verdict.status != NOT_OFFERED]
        unanswered = len(lacking) if check == "bits" else 0
        passed = states.count("pass")
        judged = passed + states.count("fail") + unanswered
        if not judged:
            return Text("-", style="dim")
        return Text(f"{passed}/{judged}", style="green" if passed == judged else "bold red")

    def ulps(self) -> tuple[str, str] | None:
        """The largest and the mean error."""
        pooled = _pooled(verdict.accuracy for verdict in self.verdicts)
        return None if pooled is None else (short(pooled[0]), short(pooled[1]))


def _rows(verdicts: Sequence[Verdict]) -> list[_Row]:
    groups: dict[tuple[str, str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        key = (verdict.op, verdict.backend, verdict.mode, verdict.implementation)
        groups.setdefault(key, []).append(verdict)
    rows = [_Row(*key, group) for key, group in groups.items()]
    return sorted(rows, key=lambda row: OPS.index(row.op))


def print_checks(console: Console, verdicts: Sequence[Verdict]) -> bool:
    """One row for each operator, backend, mode and implementation. Whether it is the widest form, on a line a row."""
    rows = _rows(verdicts)
    for wide in (True, False) if console.width >= WIDE else (False,):
        table = _table(rows, wide=wide)
        if _fits(console, table):
            console.print(table)
            return wide
    _print_blocks(console, rows)
    return False


def _table(rows: list[_Row], *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 1), header_style="bold", pad_edge=False)
    table.add_column("backend, mode", overflow="fold")
    if wide:
        table.add_column("runs", overflow="fold", min_width=8)
    for check in CHECKS:
        table.add_column(check if wide else SHORT[check], justify="right", no_wrap=True)
    if wide:
        table.add_column("ULP max", justify="right", no_wrap=True)
        table.add_column("mean", justify="right", no_wrap=True)
    op = None
    for row in rows:
        if row.op != op:
            op = row.op
            table.add_row(Text(f"{op}", style="bold cyan"))
        cells = [row.cell(check) for check in CHECKS]
        ulps = row.ulps()
        if wide:
            table.add_row(f" {row.backend} {row.mode}", row.implementation, *cells, *(ulps or ("-", "-")))
        else:
            table.add_row(f" {row.backend} {row.mode}", *cells)
            errors = ("ULP", ulps[0], f"~{ulps[1]}") if ulps else ("", "", "")
            below = [f"   runs {row.implementation}", *[""] * (len(CHECKS) - len(errors)), *errors]
            table.add_row(*(Text(text, style="dim") for text in below))
    return table


def _print_blocks(console: Console, rows: list[_Row]) -> None:
    """Each row as a heading and as many cells a line as there is room for, each with its check's full name."""
    op = None
    for row in rows:
        if row.op != op:
            op = row.op
            console.print(Text(op, style="bold cyan"))
        console.print(Text.assemble(f" {row.backend} {row.mode}", (f", runs {row.implementation}", "dim")))
        cells = [Text.assemble(f"{check} ", row.cell(check)) for check in CHECKS]
        ulps = row.ulps()
        cells.append(Text(f"ULP {ulps[0]} ~{ulps[1]}" if ulps else "ULP -"))
        console.print(Padding(Columns(cells, equal=True), (0, 0, 0, 2), expand=False))


# Accuracy ----------------------------------------------------------------------------------------------
def print_accuracy(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Rows of one operator and number of digits; one row where all backends have the same errors."""
    rows = _accuracy_rows(verdicts)
    if not rows:
        return
    console.print(Text(ACCURACY, style="bold"))
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="bold", pad_edge=False)
    table.add_column("op, digits", overflow="fold")
    for i, dtype in enumerate(OUT_DTYPES):
        width = max(len(cells[i]) for _, cells in rows if cells)
        table.add_column(f"{dtype} out", justify="right", no_wrap=True, min_width=max(width, len(f"{dtype} out")))
    for label, cells in rows:
        table.add_row(label, *cells)
    if _fits(console, table):
        console.print(table)
        return
    for label, cells in rows:
        console.print(Text(label))
        for dtype, cell in zip(OUT_DTYPES, cells, strict=False):  # a heading has no cells
            if cell != "-":
                console.print(Text(f"    {dtype} out {cell}"))


def _accuracy_rows(verdicts: Sequence[Verdict]) -> list[tuple[str, tuple[str, ...]]]:
    """(what, one cell a dtype); no cells in the heading of backends that differ."""
    rows: list[tuple[str, tuple[str, ...]]] = []
    for (op, digits), cells in _accuracies(verdicts).items():
        distinct: dict[tuple[str, ...], list[str]] = {}
        for who, values in cells.items():
            distinct.setdefault(values, []).append(who)
        rows.append((f"{op}, {digits}", next(iter(distinct)) if len(distinct) == 1 else ()))
        if len(distinct) > 1:
            rows += [("  " + ", ".join(names), values) for values, names in distinct.items()]
    return rows


def _accuracies(verdicts: Sequence[Verdict]) -> dict[tuple[str, str], dict[str, tuple[str, ...]]]:
    """{(op, digits): {"backend mode": one cell a dtype}}."""
    found: dict[tuple[str, str], dict[str, dict[str, list[Accuracy]]]] = {}
    for verdict in verdicts:
        if verdict.accuracy is not None:
            key = (verdict.op, verdict.digits)
            dtypes = found.setdefault(key, {}).setdefault(f"{verdict.backend} {verdict.mode}", {})
            dtypes.setdefault(verdict.dtype, []).append(verdict.accuracy)
    return {
        key: {who: tuple(_accuracy_cell(of.get(dtype, [])) for dtype in OUT_DTYPES) for who, of in cells.items()}
        for key, cells in sorted(found.items())
    }


def _accuracy_cell(accuracies: list[Accuracy]) -> str:
    pooled = _pooled(accuracies)
    if pooled is None:
        return "-"
    relative = max(accuracy.max_relative for accuracy in accuracies)
    return f"{short(pooled[0])} {short(pooled[1])} {_power(relative)}"


def _pooled(accuracies: Iterable[Accuracy | None]) -> tuple[float, float] | None:
    """The largest and the mean ULP error over all samples."""
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    if not known:
        return None
    samples = sum(accuracy.samples for accuracy in known)
    return max(a.max_ulp for a in known), sum(a.mean_ulp * a.samples for a in known) / samples


def short(value: float) -> str:
    """A number of ULPs.

    Example:
        >>> short(0.5), short(212345.0)
        ('0.50', '2e5')
    """
    if math.isinf(value):
        return "inf"
    return f"{value:.2f}" if value < 1000 else _power(value)


def _power(value: float) -> str:
    """One digit and a power of ten: 2e-3, 3e5, 1, 0."""
    return f"{value:.0e}".replace("e+00", "").replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
