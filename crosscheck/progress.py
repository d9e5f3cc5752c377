"""How far long work has come, on stderr: bars on a terminal, and elsewhere a line now and then.

There is one bar for each backend, and on a narrow terminal numbers without the bar. What is no terminal, such as the
log of a CI system, gets a line every EVERY seconds, so that work which takes longer is seen to go on.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from crosscheck import runner

__all__ = ["shown", "shown_cases"]

ROOM = 64  # columns: a bar, and beside it what the backend does
EVERY = 30.0  # seconds


@contextlib.contextmanager
def shown(totals: Mapping[str, int]) -> Iterator[runner.Progress]:
    """While the block runs; the callable that it gives takes what each backend does, "" when it is done."""
    console = Console(stderr=True)
    with _bars(console, totals) if console.is_terminal else _lines(totals) as heard:
        yield heard


@contextlib.contextmanager
def _bars(console: Console, totals: Mapping[str, int]) -> Iterator[runner.Progress]:
    bars = Progress(
        TextColumn("{task.fields[name]}"),
        *([BarColumn(bar_width=16)] if console.width >= ROOM else []),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", style="dim", table_column=Column(no_wrap=True, ratio=1)),
        console=console,
        transient=True,
        expand=True,
    )
    tasks = {name: bars.add_task("starting", name=name, total=total) for name, total in totals.items()}

    def heard(backend: str, doing: str) -> None:
        if doing:
            bars.update(tasks[backend], description=doing)
        else:
            bars.advance(tasks[backend])

    with bars:
        yield heard


@contextlib.contextmanager
def _lines(totals: Mapping[str, int]) -> Iterator[runner.Progress]:
    """By a thread of their own, since nothing may be heard for long."""
    done, doing = dict.fromkeys(totals, 0), dict.fromkeys(totals, "starting")
    ended, lock, began = threading.Event(), threading.Lock(), time.monotonic()

    def heard(backend: str, what: str) -> None:
        with lock:
            if what:
                doing[backend] = what
            else:
                done[backend] += 1

    def write() -> None:
        while not ended.wait(EVERY):
            with lock:
                parts = [
                    f"{name} {done[name]}/{total}" + (f" ({doing[name]})" if done[name] < total else "")
                    for name, total in totals.items()
                ]
            line = f"crosscheck: after {time.monotonic() - began:.0f} s: {'; '.join(parts)}"
            with contextlib.suppress(OSError):  # nobody reads it any more, which is no failure of the work
                print(line, file=sys.stderr, flush=True)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def shown_cases(name: str, total: int) -> Iterator[Callable[[str], None]]:
    """One for all the work; the callable that it gives is told which case begins."""
    with shown({name: total}) as bar:
        begun = False

        def heard(case_id: str) -> None:
            nonlocal begun
            if begun:
                bar(name, "")
            begun = True
            bar(name, case_id)

        yield heard
