"""The order of a sum in words: common shapes by their names, and where two orders part.

A shape is found for a node and a sequence of *items*, terms below it that are seen as one each: at first the products,
then lanes or blocks of them.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence

from crosscheck.order.tree import EXACT, FUSED, Tree, bits_of

__all__ = ["IRREGULAR", "NO_ORDER", "parting", "products", "ranges", "runs", "shape"]

NO_ORDER = "all at once"
IRREGULAR = "no regular pattern"
SEQUENTIAL, BACKWARDS, PAIRWISE, ADDED = "sequential", "sequential from the last", "pairwise", "added"
DEEPEST = 4  # lanes of blocks of lanes of ...


def shape(tree: Tree) -> str:
    """
    Example:
        >>> shape(Tree.of(4, [[0, 1], [4, 2], [5, 3]]))
        'sequential'
        >>> shape(Tree.of(8, [[0, 4], [1, 5], [2, 6], [3, 7], [8, 9], [10, 11], [12, 13]]))
        '4 lanes strided by 4, each added; the lanes pairwise'
        >>> shape(Tree.of(6, [[0, 1, 2], [6, 3, 4, 5]]))
        '3 at a time onto the sum so far'
    """
    if tree.leaves == 1:
        return "one product"
    return _Shapes(tree).of(tree.root, list(range(tree.leaves)), 0) or IRREGULAR


class _Shapes:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.node_of = {span: node for node, span in enumerate(tree.spans)}

    def of(self, root: int, items: Sequence[int], depth: int) -> str | None:
        """The name of the order in which a node adds the items; "" for one, None where it has no name."""
        if len(items) < 3:
            return "" if len(items) < 2 else SEQUENTIAL if depth == 0 else ADDED
        places = {item: place for place, item in enumerate(items)}
        plain: tuple[Callable[[int, dict[int, int]], str | None], ...] = (self._once, self._chain, self._pairs)
        for look in plain:
            if found := look(root, places):
                return found
        if depth < DEEPEST:
            for split in (self._split, self._rest):
                if found := split(root, items, depth):
                    return found
        return None

    # Items alone -------------------------------------------------------------------------------------------
    def _once(self, root: int, places: dict[int, int]) -> str | None:
        return NO_ORDER if len(places) > 2 and all(term in places for term in self.tree.terms(root)) else None

    def _chain(self, root: int, places: dict[int, int]) -> str | None:
        """Items that join one sum, one or some at a time."""
        joins: list[list[int]] = []
        node = root
        while node not in places:
            inner = [term for term in self.tree.terms(node) if term not in places]
            if len(inner) > 1:
                return None
            joins.append(sorted(places[term] for term in self.tree.terms(node) if term in places))
            if not inner:
                break
            node = inner[0]
        joins.reverse()
        order = [place for join in joins for place in join]
        sizes = {len(join) for join in joins[1:]}
        if sizes <= {1} and len(joins[0]) == 2:
            if order == sorted(order):
                return SEQUENTIAL
            return BACKWARDS if order[2:] == sorted(order[2:], reverse=True) and order[0] > max(order[2:]) else None
        together = max(sizes, default=0)
        even = sizes <= {together} or (sizes <= {together, len(joins[-1])} and len(joins[-1]) < together)
        if together > 1 and order == sorted(order) and even and len(joins[0]) <= together + 1:
            return f"{together} at a time onto the sum so far"
        return None

    def _pairs(self, root: int, places: dict[int, int]) -> str | None:
        """A balanced tree: of neighbours, or of items that are half of the whole apart."""
        neighbours = apart = True
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if node in places:
                continue
            terms = self.tree.terms(node)
            if len(terms) != 2:
                return None
            one, other = (self._places_in(term, places) for term in terms)
            most, least = len(one), len(other)
            even = abs(most - least) <= 1 or (most > least and most & (most - 1) == 0)
            neighbours &= even and other[-1] - one[0] == most + least - 1 and one[-1] < other[0]
            steps = {right - left for part in (one, other) for left, right in itertools.pairwise(part)}
            between = other[0] - one[0]
            apart &= len(one) == len(other) and steps <= {2 * between}
            if not neighbours and not apart:
                return None
            waiting += terms
        if neighbours:
            return PAIRWISE
        return f"by halves, {len(places) // 2} apart first"

    def _places_in(self, node: int, places: dict[int, int]) -> list[int]:
        found, waiting = [], [node]
        while waiting:
            node = waiting.pop()
            if node in places:
                found.append(places[node])
            else:
                waiting += self.tree.terms(node)
        return sorted(found)

    # Items in parts ----------------------------------------------------------------------------------------
    def _split(self, root: int, items: Sequence[int], depth: int) -> str | None:
        """Lanes, of every n-th item, or blocks, of n in a row; of several the simplest, with simple parts."""
        found: list[tuple[int, bool, int, str]] = []
        for size in range(2, (len(items) + 1) // 2 + 1):
            lanes = [items[lane::size] for lane in range(size)]
            blocks = [items[first : first + size] for first in range(0, len(items), size)]
            for what, of, parts in (("lanes", f"strided by {size}", lanes), ("blocks", f"of {size}", blocks)):
                if names := self._parts(root, parts, depth):
                    each, between = (f"({name})" if ";" in name else name for name in names)
                    text = f"{len(parts)} {what} {of}, each {each}; the {what} {between}"
                    found.append((text.count(";"), ";" in each, len(text), text))
        return min(found)[-1] if found else None

    def _parts(self, root: int, parts: Sequence[Sequence[int]], depth: int) -> tuple[str, str] | None:
        """How each of several parts is added, and how their sums are; None where they are not sums of their own."""
        sums = []
        for part in parts:
            node = self.node_of.get(self._span(part))
            if node is None:
                return None
            sums.append(node)
        names = {self.of(node, part, depth + 1) for node, part in zip(sums, parts, strict=True) if len(part) > 2}
        if len(names) > 1:
            return None
        each, between = (names or {ADDED}).pop(), self.of(root, sums, depth + 1)
        return (each, between) if each and between else None

    def _rest(self, root: int, items: Sequence[int], depth: int) -> str | None:
        """A run of the items in a shape, and then those at the ends one by one; or several runs in a shape each."""
        node, first, last, places = root, 0, len(items), {item: place for place, item in enumerate(items)}
        joined: list[int] = []
        while node not in places and len(terms := self.tree.terms(node)) == 2 and last - first > 3:
            ends = [term for term in terms if term in (items[first], items[last - 1])]
            if len(ends) != 1:
                break
            joined.append(places[ends[0]])
            first, last = (first + 1, last) if ends[0] == items[first] else (first, last - 1)
            node = next(term for term in terms if term != ends[0])
        if joined:
            name = self.of(node, items[first:last], depth + 1)
            rest = ", ".join(runs(joined[::-1]))
            return f"{name}, for {first}..{last - 1}; then {rest}" if name else None
        return self._uneven(root, items, depth)

    def _uneven(self, root: int, items: Sequence[int], depth: int) -> str | None:
        """Blocks of several sizes, added in turn."""
        node, end, blocks = root, len(items), list[tuple[int, int, int]]()  # each with its first place and its end
        while end > 1 and len(terms := self.tree.terms(node)) == 2:
            first = sum(1 for item in items[:end] if self.tree.spans[item] & self.tree.spans[terms[0]])
            if self._span(items[:first]) != self.tree.spans[terms[0]] or end - first < 2 or first < 2:
                break
            blocks.append((terms[1], first, end))
            node, end = terms[0], first
        blocks.append((node, 0, end))
        names = [self.of(block, items[first:last], depth + 1) for block, first, last in blocks[::-1]]
        if len(blocks) < 2 or not all(names):
            return None
        where = [f"{first}..{last - 1}" for _, first, last in blocks[::-1]]
        if len(blocks) > 2 and len(set(names)) == 1:
            return f"blocks {', '.join(where)}, each {names[0]}; the blocks sequential"
        each = "; ".join(f"{name}, for {place}" for name, place in zip(names, where, strict=True))
        return each + ("; then their sum" if len(blocks) == 2 else "; the blocks sequential")

    def _span(self, items: Sequence[int]) -> int:
        span = 0
        for item in items:
            span |= self.tree.spans[item]
        return span


# Differences -------------------------------------------------------------------------------------------
def parting(one: Tree, other: Tree, names: tuple[str, str]) -> str:
    """Two products whose first common sum differs, in a sentence; the trees differ, and have the same leaves.

    Example:
        >>> parting(Tree.of(3, [[0, 1], [2, 3]]), Tree.of(3, [[1, 2], [0, 3]]), ("A", "B"))
        'products 0 and 1 first meet in the sum of 0..1 in A, and of 0..2 in B'
    """
    for j in range(1, one.leaves):
        for i in range(j):
            spans = [tree.spans[tree.meeting(i, j)[0]] for tree in (one, other)]
            if spans[0] != spans[1]:
                where = [f"of {products(span)} in {name}" for span, name in zip(spans, names, strict=True)]
                return f"products {i} and {j} first meet in the sum {where[0]}, and {where[1]}"
    how = {FUSED: "aligned to the largest", EXACT: "exactly"}  # with the same terms at every node
    a, b = next((a, b) for a, b in zip(one.kinds, other.kinds, strict=True) if a != b)
    return f"the same products are added at once, {how[a]} in {names[0]} and {how[b]} in {names[1]}"


def products(span: int) -> str:
    """Product numbers as runs: "0..7", "0, 8, .., 56", "0..3, 8 and 30 more".

    Example:
        >>> [products(sum(1 << k for k in some)) for some in ([3], [0, 1, 2], [0, 8, 16, 24], [0, 1, 2, 9])]
        ['3', '0..2', '0, 8, .., 24', '0..2, 9']
    """
    numbers = list(bits_of(span))
    steps = {right - left for left, right in itertools.pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]}, {numbers[1]}, .., {numbers[-1]}"
    found = ranges(numbers)
    words = [f"{first}..{last}" if last > first else str(first) for first, last in found]
    left = sum(last - first + 1 for first, last in found[4:])
    return ", ".join(words[:4]) + (f" and {left} more" if left else "")


def ranges(numbers: Iterable[int]) -> list[list[int]]:
    """The first and the last of numbers in a row.

    Example:
        >>> ranges([0, 1, 2, 9])
        [[0, 2], [9, 9]]
    """
    found: list[list[int]] = []
    for number in map(int, numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def runs(leaves: Sequence[int]) -> list[str]:
    """Products in their order, as runs with one step.

    Example:
        >>> runs([0, 1, 2, 3, 8, 16, 24, 7, 6])
        ['0..3', '8..24 by 8', '7..6']
    """
    words, k = [], 0
    while k < len(leaves):
        end = k
        if k + 1 < len(leaves):
            step = leaves[k + 1] - leaves[k]
            while end + 1 < len(leaves) and leaves[end + 1] - leaves[end] == step:
                end += 1
        if end - k >= 2 or (end > k and abs(leaves[end] - leaves[k]) == 1):
            by = "" if abs(leaves[k + 1] - leaves[k]) == 1 else f" by {abs(leaves[k + 1] - leaves[k])}"
            words.append(f"{leaves[k]}..{leaves[end]}{by}")
        else:
            end = k
            words.append(str(leaves[k]))
        k = end + 1
    return words
