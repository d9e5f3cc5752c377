"""The report of `crosscheck order`: in the terminal, and as JSON, schema `crosscheck-order/1`.

schema          "crosscheck-order/1": fields are added within a version, never renamed or removed
crosscheck      the version of this program
command         what was typed, quoted for a shell
outcome         the worst of the candidates': "failed", "no tree", "changes", "one order" or "no order"
summary         the last line of the report
op, dtype, mode of all calls
environments    {name: what a candidate said about its device, versions and threads}
orders          {letter: {shape, expression, leaves, nodes, kinds, widths, replayed}}. nodes lists the additions in an
                order in which they can be done, each with the numbers of what it adds: below leaves, K, a product;
                K + n, the result of nodes[n]; the last is the sum. kinds, one for each node: "add", of two terms;
                of more, "fused", aligned to the largest, or "exact", rounded once. widths, likewise: the bits that
                the node's sum keeps, null where they were not measured or nothing is lost. replayed: whether random
                values that are added so have the candidate's bits; false where terms are aligned, and only what may
                change places was tried
candidates      {name: {outcome, sentences, settings}}; settings is a list of {width, rows, vocab, calls, singly,
                failure, parts}: singly says why masks did not share calls, "" where they did or none was needed;
                failure why there is no result, else null; parts lists {order, where, rows, columns, results,
                reason}: the letter, or null with the reason; where it is, in words, and which rows and columns
                have some of its results
"""

from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from crosscheck.order.drawing import LEGEND, drawn, expression
from crosscheck.order.run import OrderRun, Setting
from crosscheck.order.shapes import ranges, shape
from crosscheck.order.survey import Order, Part
from crosscheck.order.words import (
    Names,
    cells_text,
    changes,
    order_text,
    setting_text,
    shared,
    singly,
    summary,
    widths_text,
)
from crosscheck.report_json import program_version
from crosscheck.verdict import counted

__all__ = ["SCHEMA", "order_json", "print_order"]

SCHEMA = "crosscheck-order/1"
STYLES = {"one order": "bold green", "no order": "bold green", "changes": "bold yellow"}  # else bold red


def print_order(console: Console, run: OrderRun) -> None:
    names = Names(run)
    for name, said in run.environments.items():
        versions = ", ".join(f"{what} {version}" for what, version in said["versions"].items())
        runs = said["implementations"]["lm_head"]
        _line(console, f"{name}: {runs}; {said['device']}, {counted(said['threads'], 'thread')}; {versions}")
    _line(console, f"{run.op} in {run.dtype}, {run.mode}: in which order each sum over K adds its products", "bold")
    console.print(_table(run, names))
    if names.orders:
        console.print(Text(LEGEND, style="dim"))
        console.print(_orders(run, names))
    for name in run.surveys:
        first, *more = changes(run, name, names)
        _line(console, f"{name}: {first}", STYLES.get(run.outcome_of(name), "bold red"))
        for sentence in more:
            _line(console, f"  {sentence}")
        if how := singly(run, name):
            _line(console, f"  {how}", "dim")
    for sentence in shared(run):
        _line(console, sentence)
    _line(console, summary(run), STYLES.get(run.outcome, "bold red"))


def _orders(run: OrderRun, names: Names) -> Table:
    """Each letter with its shape; trees of the first K are drawn."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for k, order in enumerate(names.orders):
        before = names.orders[:k]
        text = f"K {order.tree.leaves}: {order_text(order, before, names)}"
        table.add_row(Text(names[order], style="bold cyan"), Text(text))
        if order.tree.leaves == run.settings[0].width and all(other.tree != order.tree for other in before):
            table.add_row("", drawn(order.tree))
    return table


def _line(console: Console, text: str, style: str = "") -> None:
    """A sentence: wrapped on a terminal, and whole in a file or a pipe."""
    if console.is_terminal:
        words = text.lstrip()
        console.print(Padding(Text(words, style=style), (0, 0, 0, len(text) - len(words)), expand=False))
    else:
        console.print(Text(text, style=style), soft_wrap=True)


def _table(run: OrderRun, names: Names) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    for name in run.surveys:
        table.add_column(name, overflow="fold")
    width = None
    for setting in run.settings:
        if setting.width != width:
            width = setting.width
            table.add_row(Text(f"K {width}", style="bold"))
        table.add_row(f"  {setting_text(setting)}", *(_cell(run, name, setting, names) for name in run.surveys))
    return table


def _cell(run: OrderRun, name: str, setting: Setting, names: Names) -> str:
    if setting in run.surveys[name]:
        return names.of(run.surveys[name][setting].parts)
    return "failed" if setting in run.failures[name] else "not run"


# JSON --------------------------------------------------------------------------------------------------
def order_json(run: OrderRun, command: str) -> dict[str, Any]:
    names = Names(run)
    return {
        "schema": SCHEMA,
        "crosscheck": program_version(),
        "command": command,
        "outcome": run.outcome,
        "summary": summary(run),
        "op": run.op,
        "dtype": run.dtype,
        "mode": run.mode,
        "environments": run.environments,
        "orders": {names[order]: _order(order) for order in names.orders},
        "candidates": {
            name: {
                "outcome": run.outcome_of(name),
                "sentences": changes(run, name, names),
                "settings": [_setting(run, name, setting, names) for setting in run.settings],
            }
            for name in run.surveys
        },
    }


def _order(order: Order) -> dict[str, Any]:
    tree = order.tree
    return {
        "shape": shape(tree),
        "accumulators": widths_text(order),
        "expression": expression(tree),
        "leaves": tree.leaves,
        "nodes": [list(terms) for terms in tree.nodes],
        "kinds": list(tree.kinds),
        "widths": list(order.widths),
        "replayed": order.rounding is not None,
    }


def _setting(run: OrderRun, name: str, setting: Setting, names: Names) -> dict[str, Any]:
    survey = run.surveys[name].get(setting)
    return {
        "width": setting.width,
        "rows": setting.rows,
        "vocab": setting.vocab,
        "calls": survey.calls if survey else 0,
        "singly": survey.singly if survey else "",
        "failure": run.failures[name].get(setting),
        "parts": [_part(part, names) for part in survey.parts] if survey else [],
    }


def _part(part: Part, names: Names) -> dict[str, Any]:
    return {
        "order": None if part.order is None else names[part.order],
        "where": cells_text(part.cells),
        "rows": ranges(np.flatnonzero(part.cells.any(axis=1))),
        "columns": ranges(np.flatnonzero(part.cells.any(axis=0))),
        "results": int(part.cells.sum()),
        "reason": part.reason or None,
    }
