"""Orders are named for what they are, and drawn so that the drawing is the order."""

import random
from io import StringIO

import pytest
import simulated_sums as sums
from rich.console import Console

from crosscheck.order.drawing import drawn, expression
from crosscheck.order.shapes import IRREGULAR, parting, shape
from crosscheck.order.tree import EXACT, Tree


def lanes_of(first, last, count):
    """Lanes over products first to last, and the lanes by halves."""
    return sums.halves([sums.in_turn(list(range(first + lane, last + 1, count))) for lane in range(count)])


NAMED = {
    "sequential": sums.sequential(32),
    "sequential from the last": sums.backwards(32),
    "pairwise": sums.pairwise(range(32)),
    "by halves, 16 apart first": sums.halves(range(32)),
    "all at once": list(range(32)),
    "8 at a time onto the sum so far": sums.groups(32, 8),
    "8 lanes strided by 8, each sequential; the lanes pairwise": sums.pairwise(sums.strided(32, 8)),
    "8 lanes strided by 8, each sequential; the lanes by halves, 4 apart first": sums.halves(sums.strided(32, 8)),
    "4 lanes strided by 4, each sequential; the lanes sequential": sums.in_turn(sums.strided(32, 4)),
    "2 blocks of 16, each sequential; the blocks added": sums.in_turn(sums.blocks(32, 16)),
    "8 blocks of 4, each sequential from the last; the blocks pairwise": sums.pairwise(
        [sums.sequential(4, first + 3, -1) for first in range(0, 32, 4)]
    ),
    "4 blocks of 8, each (4 lanes strided by 4, each added; the lanes sequential); the blocks sequential": sums.in_turn(
        [sums.in_turn([[first + lane, first + lane + 4] for lane in range(4)]) for first in range(0, 32, 8)]
    ),
    "4 lanes strided by 4, each sequential; the lanes by halves, 2 apart first, for 0..29; then 30..31": sums.in_turn(
        [lanes_of(0, 29, 4), 30, 31]
    ),
    "4 lanes strided by 4, each sequential; the lanes by halves, 2 apart first, for 1..31; then 0": [
        0,
        lanes_of(1, 31, 4),
    ],
    "blocks 0..5, 6..20, 21..31, each sequential; the blocks sequential": sums.in_turn(
        [sums.sequential(6), sums.sequential(15, 6), sums.sequential(11, 21)]
    ),
    "sequential, for 0..19; pairwise, for 20..31; then their sum": [sums.sequential(20), sums.pairwise(range(20, 32))],
}


@pytest.mark.parametrize("name", NAMED)
def test_the_shape_is_named(name):
    assert shape(sums.tree_of(NAMED[name])) == name


def any_tree(seed, leaves):
    rng = random.Random(seed)
    terms = list(range(leaves))
    while len(terms) > 1:
        rng.shuffle(terms)
        several = min(len(terms), rng.choice([2, 2, 3]))
        terms = [terms[:several], *terms[several:]]
    return sums.tree_of(terms[0])


@pytest.mark.parametrize("seed", range(5))
def test_an_irregular_tree_gets_no_name(seed):
    assert shape(any_tree(seed, 40)) == IRREGULAR


# Drawings ----------------------------------------------------------------------------------------------
class _Reader:
    """Reads an expression without "..", back into nested lists."""

    def __init__(self, text):
        self.text, self.place = text, 0

    def sum(self):
        total = self.term()
        while True:
            if self.take(" + "):
                term = self.term()
                for one in term if isinstance(term, _Run) else [term]:
                    total = self.added(total, one)
            elif self.take(" -> "):
                total = [*([sums.in_turn(total)] if isinstance(total, _Run) else [total]), *self.listed()]
            else:
                return sums.in_turn(total) if isinstance(total, _Run) else total

    def added(self, total, one):
        return [sums.in_turn(total) if isinstance(total, _Run) else total, one]

    def term(self):
        if self.take("("):
            inside = self.sum()
            assert self.take(")")
            return inside
        if self.text[self.place] == "{":
            return self.listed()
        return self.run()

    def listed(self):
        assert self.take("{")
        found = []
        while not self.take("}"):
            term = self.term()
            found += term if isinstance(term, _Run) else [term]
            self.take(", ")
        return found

    def run(self):
        first = self.number()
        if not self.take(".."):
            return first
        last = self.number()
        step = self.number() if self.take(" by ") else 1
        return _Run(range(first, last + 1, step) if last > first else range(first, last - 1, -step))

    def number(self):
        end = self.place
        while end < len(self.text) and self.text[end].isdigit():
            end += 1
        found, self.place = int(self.text[self.place : end]), end
        return found

    def take(self, word):
        if self.text.startswith(word, self.place):
            self.place += len(word)
            return True
        return False


class _Run(list):
    """Products that are added one after another, or are terms of their own in braces."""


@pytest.mark.parametrize("seed", range(60))
def test_an_expression_is_the_order(seed):
    tree = any_tree(seed, 3 + seed % 8)
    assert sums.tree_of(_Reader(expression(tree)).sum()) == tree


@pytest.mark.parametrize(
    ("nested", "text"),
    [
        (sums.sequential(64), "0..63"),
        (sums.backwards(64), "63..0"),
        (sums.pairwise(sums.blocks(32, 8)), "((0..7) + (8..15)) + ((16..23) + (24..31))"),
        (sums.in_turn(sums.blocks(64, 8)), "(0..7) + (8..15) + .. + (56..63)"),
        (sums.in_turn(sums.strided(64, 16)), "(0..48 by 16) + (1..49 by 16) + .. + (15..63 by 16)"),
        (sums.groups(64, 8), "{0..7} -> {8..15} -> .. -> {56..63}"),
        (list(range(64)), "{0..63}"),
    ],
)
def test_runs_are_collapsed(nested, text):
    tree = sums.tree_of(nested)
    assert expression(tree) == text and str(drawn(tree)) == text


def lines(tree, width):
    console = Console(file=StringIO(), width=width)
    console.print(drawn(tree))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_what_repeats_is_drawn_once():
    assert lines(sums.tree_of(sums.halves(sums.strided(64, 16))), 80) == [
        "sum of 64",
        "├── sum of 32",
        "│   ├── sum of 16",
        "│   │   ├── (0..48 by 16) + (8..56 by 16)",
        "│   │   └── the same with all products + 4",
        "│   └── the same with all products + 2",
        "└── the same with all products + 1",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_drawing_fits_and_is_short(width):
    found = lines(any_tree(1, 400), width)
    assert max(map(len, found)) <= width and len(found) < 100
    assert "... and more" in " ".join(found)


def test_wide_sums_are_drawn_too():
    tree = sums.tree_of(sums.halves([sums.in_turn(list(range(lane, 3000, 8))) for lane in range(8)]))
    assert shape(tree) == "8 lanes strided by 8, each sequential; the lanes by halves, 4 apart first"
    assert "0..2992 by 8" in lines(tree, 80)[2]


def test_two_orders_part_where_products_meet():
    one, other = sums.tree_of(sums.sequential(8)), sums.tree_of(sums.pairwise(range(8)))
    assert parting(one, other, ("A", "B")) == "products 0 and 2 first meet in the sum of 0..2 in A, and of 0..3 in B"
    exact = Tree.of(8, [list(range(8))], [EXACT])
    assert parting(exact, sums.tree_of(list(range(8))), ("A", "B")) == (
        "the same products are added at once, exactly in A and aligned to the largest in B"
    )
