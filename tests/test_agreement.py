"""Who has the same bits is told of many candidates, too, on any terminal: groups, a matrix of them, and classes."""

import re
from io import StringIO

import pytest
from rich.console import Console

from crosscheck.agreement import agreement, print_agreement
from crosscheck.verdict import Verdict


def test_classes_and_pairs_of_candidates():
    def verdict(name, case, digest, contract=""):
        return Verdict(case, "lm_head", name, "eager", "x", digest=digest, contract_digest=contract)

    found = agreement([
        verdict("a", "one", "p", "p"), verdict("b", "one", "q", "p"), verdict("c", "one", "q", "p"),
        verdict("a", "two", "r", "r"), verdict("b", "two", "r", "r"),
    ])  # fmt: skip
    assert found.members == ["contract", "a eager", "b eager", "c eager"]
    assert found.pairs["a eager", "b eager"] == (1, 2)
    assert found.pairs["b eager", "c eager"] == (1, 1)
    assert (found.classes, found.cases) == ([["contract", "a eager"], ["b eager", "c eager"]], 1)


def verdicts_of(**digests: str) -> list[Verdict]:
    """Of each candidate and of the contract, a result for each case; "." is none."""
    return [
        Verdict(
            str(i), "lm_head", name, mode, "x", digest=digest, contract_digest=digests["contract"][i]
        )
        for name, of_each in digests.items() if name != "contract"
        for mode in ("eager", "compile")
        for i, digest in enumerate(of_each) if digest != "."
    ]  # fmt: skip


def test_members_are_one_group_where_all_numbers_are_the_same():
    found = agreement(verdicts_of(contract="ppp", a="ppp", b="pqr", c="pqr", d="pp.", e="qqr"))
    assert found.groups == [
        ["contract", "a eager", "a compile"],
        ["b eager", "b compile", "c eager", "c compile"],
        ["d eager", "d compile"],
        ["e eager", "e compile"],
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("candidates", [1, 2, 8, 20])
def test_the_matrix_of_many_candidates_fits_the_terminal_and_has_every_number(width, candidates):
    digests = {f"candidate_number_{i}": "p" * i + chr(200 + i) * (40 - i) for i in range(candidates)}
    found = agreement(verdicts_of(contract="p" * 40, **digests))
    groups = found.groups
    console = Console(file=StringIO(), width=width)
    print_agreement(console, found)
    text = console.file.getvalue()
    _, *lines = text[: text.index("  equal in the ")].splitlines()
    assert max(map(len, lines)) <= width
    assert re.findall(r"\d+/40", "\n".join(lines)).count("3/40") == sum(
        found.pair(one[0], two[0]) == (3, 40) for one in groups for two in groups if one is not two
    )
    headings = [number for line in lines if re.fullmatch(r"[\s\d]+", line) for number in line.split()]
    assert headings == [str(i + 1) for i in range(len(groups))] and len(groups) == candidates + 1
    assert text.count("  equal in the 40 cases that all have judged: ") == candidates


def test_who_is_equal_to_no_other_is_said_in_one_line():
    console = Console(file=StringIO(), width=200)
    digests = [Verdict("one", "lm_head", name, "eager", "x", digest=name, contract_digest="p") for name in "pqr"]
    print_agreement(console, agreement(digests))
    assert console.file.getvalue().splitlines()[-2:] == [
        "  equal in the 1 case that all have judged: contract, p eager",
        "  equal to no other in the 1 case that all have judged: q eager, r eager",
    ]


def test_what_no_member_shares_has_no_classes():
    one = Verdict("one", "lm_head", "a", "eager", "x", digest="p")
    two = Verdict("two", "lm_head", "b", "eager", "x", digest="p")
    assert (agreement([one, two]).classes, agreement([one, two]).cases) == ([], 0)
