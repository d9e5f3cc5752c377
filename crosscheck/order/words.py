"""What was found about orders, in sentences: what changes them, who shares them, and the outcome."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from crosscheck.order.run import OrderRun, Setting, label
from crosscheck.order.shapes import parting, products, shape
from crosscheck.order.survey import Order, Part
from crosscheck.order.tree import FUSED
from crosscheck.verdict import counted

__all__ = ["Names", "cells_text", "changes", "order_text", "setting_text", "shared", "singly", "summary", "widths_text"]

FORMATS = {8: "bfloat16", 11: "float16", 24: "float32", 53: "float64"}


class Names:
    """The letters of the orders in a run."""

    def __init__(self, run: OrderRun) -> None:
        self.orders = run.orders
        self._letters = {order: label(k) for k, order in enumerate(self.orders)}

    def __getitem__(self, order: Order | None) -> str:
        return "none" if order is None else self._letters[order]

    def of(self, parts: Sequence[Part]) -> str:
        """ "A", or "A in rows 0..255; B in row 256"."""
        if len(parts) == 1:
            return self[parts[0].order]
        return "; ".join(f"{self[part.order]} in {cells_text(part.cells)}" for part in parts)


def setting_text(setting: Setting) -> str:
    return f"{counted(setting.rows, 'row')}, vocab {setting.vocab}"


def cells_text(cells: NDArray[np.bool_]) -> str:
    """Which of [rows, vocab].

    Example:
        >>> cells = np.zeros((4, 2), bool)
        >>> cells[3] = True
        >>> cells_text(cells)
        'row 3'
        >>> cells[3, 0] = False
        >>> cells_text(cells)
        'row 3 of column 1'
    """
    rows, columns = (np.flatnonzero(cells.any(axis=axis)) for axis in (1, 0))
    if len(rows) * len(columns) != cells.sum():
        row, column = np.argwhere(cells)[0]
        return f"{cells.sum()} of {cells.size} results, the first in row {row} of column {column}"
    words = []
    for noun, found, size in (("row", rows, cells.shape[0]), ("column", columns, cells.shape[1])):
        if len(found) < size:
            numbers = products(sum(1 << int(k) for k in found))
            words.append(f"{noun}{'s' * (len(found) > 1)} {numbers}")
    return " of ".join(words) or "every row and column"


# One order ---------------------------------------------------------------------------------------------
def order_text(order: Order, before: Sequence[Order], names: Names) -> str:
    """Its shape, and how its sums are rounded.

    Arguments:
        before: the orders with earlier letters.
    """
    same = next((names[other] for other in before if other.tree == order.tree), None)
    return (shape(order.tree) if same is None else f"as {same}") + "; " + widths_text(order)


def widths_text(order: Order) -> str:
    """What the accumulators keep."""
    tree = order.tree
    known = sorted({width for width in order.widths if width is not None}, reverse=True)
    if tree.orderless and not known:
        return f"exact, for products up to 2^{order.reach} apart"
    if tree.orderless:
        return f"exact, but for products 2^{known[0]} times smaller than the largest, which are lost"
    if not known:
        return "accumulators not measured"
    bits = " and ".join(f"{width} bits" + (f" ({FORMATS[width]})" if width in FORMATS else "") for width in known)
    if FUSED in tree.kinds:
        return f"terms aligned to the largest, {bits} kept"
    return f"accumulators of {bits}"


# One candidate -----------------------------------------------------------------------------------------
def changes(run: OrderRun, name: str, names: Names) -> list[str]:
    """The first sentence says whether the order changes, the others how, or why there is none."""
    outcome = run.outcome_of(name)
    if outcome == "failed":
        return ["no result", *_reasons(run, name)]
    if outcome == "no tree":
        return ["not a sum in a fixed order", *_reasons(run, name)]
    settings = _settings_text(run)
    width = run.settings[0].width
    if outcome == "no order":
        return [f"no order: all products are added at once, {settings}, at every position"]
    if outcome == "one order":
        return [f"one order, {settings}, at every position", *_with_width(run, name, names, width)]
    how = [_along(run, name, names, "rows"), _along(run, name, names, "vocab"), _position(run, name, names)]
    causes = [cause for cause, _ in filter(None, how)]
    lines = [line for _, line in filter(None, how)]
    return [f"the order changes with the {_listed(causes)}", *lines, *_with_width(run, name, names, width)]


def _settings_text(run: OrderRun) -> str:
    rows = sorted({setting.rows for setting in run.settings})
    vocab = sorted({setting.vocab for setting in run.settings})
    return f"for {_listed(rows)} {'row' if rows == [1] else 'rows'} and a vocab of {_listed(vocab)}"


def _listed(words: Sequence[object]) -> str:
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


def _reasons(run: OrderRun, name: str) -> list[str]:
    """Each reason once, with where it was first."""
    reasons: dict[str, list[str]] = {}
    for setting in run.settings:
        where = f"K {setting.width}, {setting_text(setting)}"
        if setting in run.failures[name]:
            reasons.setdefault(run.failures[name][setting], []).append(where)
        for part in run.surveys[name][setting].parts if setting in run.surveys[name] else []:
            if part.order is None:
                beside = "" if part.cells.all() else f", {cells_text(part.cells)}"
                reasons.setdefault(part.reason, []).append(where + beside)
    return [f"{_first_of(places)}: {reason}" for reason, places in reasons.items()]


def _first_of(places: Sequence[str]) -> str:
    return places[0] + (f" (and at {counted(len(places) - 1, 'more setting')})" if places[1:] else "")


def _along(run: OrderRun, name: str, names: Names, axis: str) -> tuple[str, str] | None:
    """What changes, in a word, and the first two neighbours along an axis that have different orders."""
    other, main = "vocab" if axis == "rows" else "rows", run.settings[0].width
    surveys = run.surveys[name]
    for one, two in itertools.pairwise(
        sorted(surveys, key=lambda setting: (setting.width != main, setting.width, getattr(setting, other), setting))
    ):
        if (one.width, getattr(one, other)) != (two.width, getattr(two, other)):
            continue
        first, second = _whole(surveys[one].parts), _whole(surveys[two].parts)
        if first is None or second is None or first == second:
            continue
        if axis == "rows":
            what = f"between {one.rows} and {two.rows} rows (K {one.width}, vocab {one.vocab})"
        else:
            what = f"between a vocab of {one.vocab} and {two.vocab} (K {one.width}, {counted(one.rows, 'row')})"
        word = "number of rows" if axis == "rows" else "vocab"
        return word, f"{what}: {names[first]}, then {names[second]}; {_parting(first, second, names)}"
    return None


def _whole(parts: Sequence[Part]) -> Order | None:
    return parts[0].order if len(parts) == 1 else None


def _position(run: OrderRun, name: str, names: Names) -> tuple[str, str] | None:
    for setting in run.settings:
        parts = run.surveys[name][setting].parts
        if len(parts) > 1:
            first, second = parts[0].order, parts[1].order
            assert first is not None and second is not None
            where = f"within {setting_text(setting)} (K {setting.width})"
            return "position", f"{where}: {names.of(parts)}; {_parting(first, second, names)}"
    return None


def _parting(one: Order, two: Order, names: Names) -> str:
    if one.tree == two.tree:
        return "the same order, with other accumulators"
    return parting(one.tree, two.tree, (names[one], names[two]))


def _with_width(run: OrderRun, name: str, names: Names, width: int) -> list[str]:
    """For each other K, whether the first products keep their order."""
    lines = []
    for other in sorted({setting.width for setting in run.settings} - {width}):
        small, large = sorted((width, other))
        kept, first = 0, ""
        pairs = _of_widths(run, name, small, large)
        for setting, one, two in pairs:
            if two.tree.cut(small) == one.tree and _rounding(one) == _rounding(two):
                kept += 1
            else:
                first = first or f"; not at {setting_text(setting)}, {names[one]} and {names[two]}"
        if pairs:
            lines.append(
                f"K {small} and {large}: the first {small} products have the same order at {kept} of "
                f"{counted(len(pairs), 'setting')}" + (first or ": zeros that pad K change no bit")
            )
    return lines


def _rounding(order: Order) -> set[int | None]:
    return {width for width in order.widths if width is not None}


def _of_widths(run: OrderRun, name: str, small: int, large: int) -> list[tuple[Setting, Order, Order]]:
    """Settings at which all positions have one order, with both K."""
    found = []
    for setting in run.settings:
        if setting.width == small:
            surveys = run.surveys[name]
            one = _whole(surveys[setting].parts)
            two = _whole(surveys[Setting(large, setting.rows, setting.vocab)].parts)
            if one is not None and two is not None:
                found.append((setting, one, two))
    return found


# All candidates ----------------------------------------------------------------------------------------
def shared(run: OrderRun) -> list[str]:
    """Who has the same order, at every position: at every setting, at some, and at none.

    Those that have it at every setting are told together, and the first of them is compared with others.
    """
    alike = _alike(run)
    lines = [f"{_listed(names)} have the same order at every setting" for names in alike if len(names) > 1]
    pairs = [(one[0], two[0]) for one, two in itertools.combinations(alike, 2)]
    without = []
    for one, two in pairs:
        both = [setting for setting in run.settings if setting in run.surveys[one] and setting in run.surveys[two]]
        same, trees = (_in_common(run, one, two, both, what) for what in (_whole_order, _tree))
        at = f"at {same or trees} of {counted(len(both), 'setting')}"
        if same:
            more = counted(trees - same, "more setting")
            also = f", and at {more} but for the accumulators" if trees > same else ""
            lines.append(f"{one} and {two} have the same order {at}{also}")
        elif trees:
            lines.append(f"{one} and {two} have the same order, but for the accumulators, {at}")
        elif both:
            without.append(f"{one} and {two}")
    if len(without) == len(pairs) > 1:
        lines.append(f"no two of {_listed([names[0] for names in alike])} have the same order at any setting")
    else:
        lines += [f"{two} have the same order at no setting" for two in without]
    return lines


def _in_common(run: OrderRun, one: str, two: str, settings: Sequence[Setting], what: Callable[[Order], object]) -> int:
    places = ((_places(run, one, setting, what), _places(run, two, setting, what)) for setting in settings)
    return sum(first == second is not None for first, second in places)


def _alike(run: OrderRun) -> list[list[str]]:
    """Those that have the same order at every setting together, in the order of the report."""
    groups: dict[object, list[str]] = {}
    for name in run.surveys:
        places = [_places(run, name, setting) if setting in run.surveys[name] else None for setting in run.settings]
        known = tuple(None if place is None else frozenset(place) for place in places)
        groups.setdefault(name if None in known else known, []).append(name)
    return list(groups.values())


def _whole_order(order: Order) -> object:
    return order


def _tree(order: Order) -> object:
    return order.tree


def _places(
    run: OrderRun, name: str, setting: Setting, what: Callable[[Order], object] = _whole_order
) -> set[tuple[object, bytes]] | None:
    """Which order has which cells; None where some have none."""
    parts = run.surveys[name][setting].parts
    if any(part.order is None for part in parts):
        return None
    return {(what(part.order), part.cells.tobytes()) for part in parts if part.order is not None}


def singly(run: OrderRun, name: str) -> str:
    """Where masks did not share their calls, and why; empty where they all did."""
    reasons: dict[str, list[str]] = {}
    for setting, survey in sorted(run.surveys[name].items()):
        if survey.singly and any(part.order is not None for part in survey.parts):
            reasons.setdefault(survey.singly, []).append(f"K {setting.width}, {setting_text(setting)}")
    return "; ".join(f"{_first_of(places)}: one mask a call, since {reason}" for reason, places in reasons.items())


def summary(run: OrderRun) -> str:
    """The last line: the worst outcome, and that of each candidate."""
    said = {
        "failed": "gave no result", "no tree": "is not a sum in a fixed order", "changes": "changes its order",
        "one order": "has one order", "no order": "has no order, for its sums are exact",
    }  # fmt: skip
    each = "; ".join(f"{name} {said[run.outcome_of(name)]}" for name in run.surveys)
    return f"{run.outcome.upper()}: {each}"
