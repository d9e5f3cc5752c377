"""HTML reports of runs with planted faults, opened in a browser: fixtures, which conftest.py has for all tests."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import reported
from browser import Browser, Page

from crosscheck.report_html import page
from crosscheck.report_json import write_text

SIGNS = {"equal": "=", "different": "≠", "failed": "!", "incomplete": "…", "not offered": "–"}
MADE = 4  # verdicts of the interrupted run
REPORTS: dict[str, Callable[[], dict[str, Any]]] = {
    "planted": reported.planted_report,
    "equal": reported.equal_report,
    "candidates": reported.candidates_report,
    "interrupted": lambda: reported.interrupted_report(MADE),
    "nothing": lambda: reported.interrupted_report(0),
    "hostile": lambda: reported.renamed(reported.planted_report(), "FlipsBits", reported.HOSTILE),
}
CASE = reported.CASES[0].id
OPEN_ALL = "document.querySelectorAll('details').forEach(place => place.open = true)"
Opened = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture(scope="session")
def reports() -> dict[str, dict[str, Any]]:
    return {name: make() for name, make in REPORTS.items()}


@pytest.fixture(scope="session")
def opened(browser: Browser, reports: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Opened:
    folder: Path = tmp_path_factory.mktemp("pages")
    for name, report in reports.items():
        write_text(folder / f"{name}.html", page(report))
    return lambda name, **options: browser.page(folder / f"{name}.html", **options)


@pytest.fixture(scope="session")
def seen(opened: Opened) -> Opened:
    """Pages that are looked at only, each opened once."""
    return cache(opened)


def texts(shown: Page, selector: str) -> list[str]:
    found = shown.evaluate(f"[...document.querySelectorAll({selector!r})].map(x => x.textContent.trim())")
    return [" ".join(text.split()) for text in found]


def type_words(shown: Page, words: str, *, only: bool = False) -> None:
    """Filter, and wait until it has been done."""
    shown.evaluate(
        f"new Promise(done => {{ const words = document.getElementById('words'); words.value = {words!r};"
        f" document.getElementById('only').checked = {str(only).lower()}; words.dispatchEvent(new Event('input'));"
        " requestAnimationFrame(() => requestAnimationFrame(done)) })"
    )


def visible(shown: Page, selector: str) -> list[str]:
    return shown.evaluate(
        f"[...document.querySelectorAll({selector!r})].filter(x => x.checkVisibility()).map(x => x.dataset.case)"
    )
