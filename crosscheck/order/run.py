"""The orders of several candidates at several settings, each candidate in its own process."""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from crosscheck.order.bench import Bench
from crosscheck.order.masks import TooMany
from crosscheck.order.process import Calls, NoResult
from crosscheck.order.survey import MANY, Order, Survey, survey
from crosscheck.registry import Backend
from crosscheck.threads import fair_threads

__all__ = ["OUTCOMES", "OrderRun", "Setting", "label", "order_run"]

OUTCOMES = ("failed", "no tree", "changes", "one order", "no order")  # the worst first


@dataclass(frozen=True, order=True)
class Setting:
    width: int
    rows: int
    vocab: int


@dataclass
class OrderRun:
    """
    Arguments:
        environments: what each candidate said about itself, by name.
        surveys: by name, and by setting in the order of the report.
        failures: by name and setting: it raised, crashed, hung, gave another shape, or needs too many probes.
    """

    op: str
    dtype: str
    mode: str
    settings: list[Setting]
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    surveys: dict[str, dict[Setting, Survey]] = field(default_factory=dict)
    failures: dict[str, dict[Setting, str]] = field(default_factory=dict)

    @property
    def orders(self) -> list[Order]:
        """All orders, as the report meets them: `label` names them."""
        found: dict[Order, None] = {}
        for setting in self.settings:
            for surveys in self.surveys.values():
                parts = surveys[setting].parts if setting in surveys else []
                found.update((part.order, None) for part in parts if part.order is not None)
        return list(found)

    def outcome_of(self, name: str) -> str:
        """The worst over the settings. That another K has another order is no change."""
        if self.failures[name]:
            return "failed"
        surveys = self.surveys[name]
        if any(part.order is None and part.reason != MANY for survey in surveys.values() for part in survey.parts):
            return "no tree"
        if any(len(self.orders_of(name, width)) > 1 for width in {setting.width for setting in surveys}):
            return "changes"
        orders = [part.order for survey in surveys.values() for part in survey.parts]
        return "no order" if all(order and order.tree.orderless for order in orders) else "one order"

    def orders_of(self, name: str, width: int) -> set[Order]:
        return {
            part.order
            for setting, survey in self.surveys[name].items()
            for part in survey.parts
            if setting.width == width and part.order is not None
        }

    @property
    def outcome(self) -> str:
        return min((self.outcome_of(name) for name in self.surveys), key=OUTCOMES.index)


def label(number: int) -> str:
    """
    Example:
        >>> label(0), label(26)
        ('A', 'A1')
    """
    again, letter = divmod(number, 26)
    return string.ascii_uppercase[letter] + (str(again) if again else "")


def order_run(
    backends: Sequence[Backend],
    settings: Sequence[Setting],
    *,
    op: str,
    dtype: str,
    mode: str,
    timeout: float,
    progress: Callable[[str, str], None] = lambda name, doing: None,
) -> OrderRun:
    """Reveal the orders of each backend or candidate, one after the other.

    Arguments:
        dtype: of hidden and weight, NumPy's name.
        timeout: seconds for one call.
        progress: told what each does, and "" when a setting is done.

    Raises:
        BackendMissing: one cannot run here; nothing was revealed.
    """
    run = OrderRun(op, dtype, mode, list(settings))
    opened: list[Calls] = []
    try:
        for backend in backends:
            opened.append(Calls(backend, op, mode, threads=fair_threads(1), timeout=timeout))
            run.environments[backend.name] = opened[-1].greet()
        for calls in opened:
            _reveal(run, calls, progress)
            calls.close()
    finally:
        for calls in opened:
            calls.close()
    return run


def _reveal(run: OrderRun, calls: Calls, progress: Callable[[str, str], None]) -> None:
    """Large batches first: masks share their calls, and smaller ones have often the same order."""
    name = calls.backend.name
    found, failed = run.surveys.setdefault(name, {}), run.failures.setdefault(name, {})
    for setting in sorted(run.settings, key=lambda setting: (-max(setting.rows, setting.vocab), setting)):
        progress(name, f"K {setting.width}, rows {setting.rows}, vocab {setting.vocab}")
        bench = Bench(calls, setting.rows, setting.vocab, setting.width, run.dtype)
        try:
            found[setting] = survey(bench, [order for order in run.orders if order.tree.leaves == setting.width])
        except (NoResult, TooMany) as error:
            failed[setting] = str(error)
            if isinstance(error, NoResult) and error.ended:
                return
        progress(name, "")
