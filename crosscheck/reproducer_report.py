"""What is said of failures that were shrunk."""

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from crosscheck.runner import Run
from crosscheck.verdict import counted

__all__ = ["Reproducer", "print_reproducers"]


@dataclass(frozen=True)
class Reproducer:
    """A failure that was shrunk, or that could not be: what a verdict and the JSON report have of it.

    Arguments:
        kind: of which one is made of each backend.
        failing: what fails, in words.
        shrunk: the sizes, in words; empty where it did not fail again.
        path: of the script; empty where there is none.
        fails: whether the script was seen to fail.
        note: what else there is to say.
        more: how many failures of the kind there are beside this one.
    """

    kind: str
    failing: str
    shrunk: str = ""
    path: str = ""
    fails: bool = False
    note: str = ""
    more: int = 0

    def sentence(self) -> str:
        """
        Example:
            >>> Reproducer("bits", "other bits", "2 rows, K 3, V 1", "repro/mine-bits/reproduce.py", True).sentence()
            'other bits: shrunk to 2 rows, K 3, V 1: repro/mine-bits/reproduce.py'
        """
        parts = [
            f"shrunk to {self.shrunk}: {self.path}" if self.path else "",
            self.note,
            f"{counted(self.more, 'more failure')} of this kind got no script" if self.more else "",
        ]
        return f"{self.failing}: {'; '.join(filter(None, parts))}"


def print_reproducers(console: Console, run: Run) -> None:
    """A line for each."""
    made = [(verdict, Reproducer(**said)) for verdict in run.verdicts for said in verdict.reproducers]
    if made:
        console.print(Text("Reproducers", style="bold"))
    for verdict, reproducer in made:
        console.print(Text(f"  {verdict.backend} {verdict.mode}, {reproducer.sentence()}"), soft_wrap=True)
