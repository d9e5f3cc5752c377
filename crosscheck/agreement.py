"""Who has the same bits: candidates and backends in their modes, and the contract, by the digests of their results."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from crosscheck.candidates import CONTRACT
from crosscheck.verdict import Verdict, counted

__all__ = ["Agreement", "agreement", "print_agreement"]


@dataclass(frozen=True)
class Agreement:
    """Backends in their modes, and the contract, by the digests of their results.

    Arguments:
        members: "name mode", and the contract.
        pairs: for two members, in how many cases they agree, of how many that both have.
        classes: members with equal bits in all the cases that all have; no classes where there are no such cases.
        cases: how many those are.
    """

    members: list[str]
    pairs: dict[tuple[str, str], tuple[int, int]]
    classes: list[list[str]]
    cases: int

    def to_json(self) -> dict[str, Any]:
        pairs = [{"a": a, "b": b, "equal": n, "cases": of} for (a, b), (n, of) in self.pairs.items()]
        return {"members": self.members, "pairs": pairs, "classes": self.classes, "cases": self.cases}

    def pair(self, a: str, b: str) -> tuple[int, int]:
        return self.pairs[a, b] if (a, b) in self.pairs else self.pairs[b, a]

    @property
    def groups(self) -> list[list[str]]:
        """Members that are equal to each other wherever both have judged, and have the same numbers with all others."""
        found: list[list[str]] = []
        for name in self.members:
            group = next((group for group in found if self._alike(group[0], name)), None)
            if group is None:
                found.append(group := [])
            group.append(name)
        return found

    def _alike(self, a: str, b: str) -> bool:
        equal, both = self.pair(a, b)
        others = (name for name in self.members if name not in (a, b))
        return 0 < equal == both and all(self.pair(a, name) == self.pair(b, name) for name in others)


def agreement(verdicts: Sequence[Verdict]) -> Agreement:
    results: dict[str, dict[str, str]] = {CONTRACT: {}}
    for verdict in verdicts:
        if verdict.digest:
            results.setdefault(f"{verdict.backend} {verdict.mode}", {})[verdict.case] = verdict.digest
        if verdict.contract_digest:
            results[CONTRACT][verdict.case] = verdict.contract_digest
    results = {name: found for name, found in results.items() if found}
    members = list(results)
    pairs = {}
    for i, a in enumerate(members):
        for b in members[i + 1 :]:
            both = results[a].keys() & results[b].keys()
            pairs[a, b] = sum(results[a][case] == results[b][case] for case in both), len(both)
    common = sorted(set.intersection(*(set(found) for found in results.values()))) if results else []
    classes: dict[tuple[str, ...], list[str]] = {}
    for name, found in results.items():
        classes.setdefault(tuple(found[case] for case in common), []).append(name)
    return Agreement(members, pairs, list(classes.values()) if common else [], len(common))


# Report ------------------------------------------------------------------------------------------------
def print_agreement(console: Console, found: Agreement) -> None:
    """The matrix, with numbers in place of names above the columns, then the classes.

    A group of members has one row and one column; of more columns than there is room for, some come further below.
    """
    if len(found.members) < 2:
        return
    console.print(Text("Who has the same bits: cases equal/judged by both", style="bold"))
    groups = found.groups
    if len(groups) > 1:
        for table in _tables(console.width, found, groups):
            console.print(table)
    cases = f"{counted(found.cases, 'case')} that all have judged"
    if not found.classes:
        console.print(Text("  no case was judged by all of them"))
    for members in found.classes:
        if len(members) > 1:
            console.print(Text(f"  equal in the {cases}: {', '.join(members)}"), soft_wrap=True)
    if alone := [members[0] for members in found.classes if len(members) == 1]:
        console.print(Text(f"  equal to no other in the {cases}: {', '.join(alone)}"), soft_wrap=True)


def _tables(width: int, found: Agreement, groups: Sequence[Sequence[str]]) -> Iterator[Table]:
    labels, number = [_named(group) for group in groups], 2 + len(str(len(groups)))
    cells = [[_cell(found, one, two) for two in groups] for one in groups]
    cell = 1 + max(len(text) for row in cells for text in row)
    longest = min(max(map(len, labels)), max(20, width // 3))
    blocks = math.ceil(len(groups) / max(1, (width - number - 1 - longest) // cell))
    some = math.ceil(len(groups) / blocks)
    for start in range(0, len(groups), some):
        columns = range(start, min(start + some, len(groups)))
        table = Table(box=None, padding=(0, 0, 0, 1), header_style="bold", pad_edge=False)
        table.add_column("", justify="right", no_wrap=True, width=number)
        table.add_column("", overflow="fold", width=longest)
        for i in columns:
            table.add_column(str(i + 1), justify="right", no_wrap=True, width=cell - 1)
        for i, (label, row) in enumerate(zip(labels, cells, strict=True)):
            table.add_row(str(i + 1), label, *(row[k] for k in columns))
        yield table


def _named(group: Sequence[str]) -> str:
    """
    Example:
        >>> _named(["contract", "mine eager", "mine compile", "port eager"])
        'contract; mine eager, compile; port eager'
    """
    names: dict[str, list[str]] = {}
    for member in group:
        name, _, mode = member.partition(" ")
        names.setdefault(name, []).append(mode)
    return "; ".join(f"{name} {', '.join(modes)}".strip() for name, modes in names.items())


def _cell(found: Agreement, one: Sequence[str], two: Sequence[str]) -> Text:
    if one is two:
        return Text("=", style="dim")
    equal, both = found.pair(one[0], two[0])
    if not both:
        return Text("-", style="dim")
    return Text(f"{equal}/{both}", style="green" if equal == both else "red")
