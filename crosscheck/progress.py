"""Progress bars, one for each backend, on stderr and on a terminal only; on a narrow one numbers without the bar."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from crosscheck import runner

__all__ = ["shown", "shown_cases"]

ROOM = 64  # columns: a bar, and beside it what the backend does


@contextmanager
def shown(totals: Mapping[str, int]) -> Iterator[runner.Progress]:
    """Bars while the block runs; the callable that it gives takes what each backend does, "" when it is done."""
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.fields[name]}"),
        *([BarColumn(bar_width=16)] if console.width >= ROOM else []),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", style="dim", table_column=Column(no_wrap=True, ratio=1)),
        console=console,
        transient=True,
        expand=True,
        disable=not console.is_terminal,
    )
    tasks = {name: bars.add_task("starting", name=name, total=total) for name, total in totals.items()}

    def heard(backend: str, doing: str) -> None:
        if doing:
            bars.update(tasks[backend], description=doing)
        else:
            bars.advance(tasks[backend])

    with bars:
        yield heard


@contextmanager
def shown_cases(name: str, total: int) -> Iterator[Callable[[str], None]]:
    """One bar; the callable that it gives is told which case begins."""
    with shown({name: total}) as bar:
        begun = False

        def heard(case_id: str) -> None:
            nonlocal begun
            if begun:
                bar(name, "")
            begun = True
            bar(name, case_id)

        yield heard
