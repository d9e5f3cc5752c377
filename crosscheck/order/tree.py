"""The order of a sum as a tree: its leaves are the products, each node is one addition of two or more terms."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

__all__ = ["ADD", "EXACT", "FUSED", "Tree", "bits_of"]

ADD, FUSED, EXACT = "add", "fused", "exact"


@dataclass(frozen=True)
class Tree:
    """In which order `leaves` products are added. Equal trees are equal objects: make them with `Tree.of`.

    Arguments:
        leaves: K, the number of products; product k is hidden[k] * weight[k].
        nodes: for each addition, in an order in which they can be done, what it adds: a number below `leaves` is that
            product, `leaves + n` the result of nodes[n]. The last is the whole sum.
        kinds: of each node: "add", of two terms; "fused", of more, aligned to the largest, so that what is far
            smaller is lost; "exact", of more, rounded once after they have all been added.
    """

    leaves: int
    nodes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, leaves: int, nodes: Sequence[Sequence[int]], kinds: Sequence[str] | None = None) -> "Tree":
        """The tree in its one form: terms by their first product, nodes in the order in which the terms need them.

        Example:
            >>> Tree.of(3, [[2, 1], [3, 0]]).nodes
            ((1, 2), (0, 3))
            >>> Tree.of(4, [[3, 2], [0, 1], [4, 5]]) == Tree.of(4, [[1, 0], [2, 3], [5, 4]])
            True
        """
        of_more = kinds or [FUSED] * len(nodes)
        named = [ADD if len(terms) == 2 else kind for terms, kind in zip(nodes, of_more, strict=True)]
        first = list(range(leaves))
        for terms in nodes:
            first.append(min(first[term] for term in terms))
        sorted_terms = [sorted(terms, key=first.__getitem__) for terms in nodes]
        order: list[int] = []  # nodes, each before its terms
        waiting = [leaves + len(nodes) - 1] if nodes else []
        while waiting:
            node = waiting.pop() - leaves
            order.append(node)
            waiting += [term for term in sorted_terms[node] if term >= leaves]
        place = {leaves + node: leaves + k for k, node in enumerate(reversed(order))}
        placed = tuple(tuple(place.get(term, term) for term in sorted_terms[node]) for node in reversed(order))
        return cls(leaves, placed, tuple(named[node] for node in reversed(order)))

    @cached_property
    def spans(self) -> tuple[int, ...]:
        """The products in each term, leaves first, as the bits of an integer."""
        spans = [1 << leaf for leaf in range(self.leaves)]
        for terms in self.nodes:
            spans.append(sum(spans[term] for term in terms))
        return tuple(spans)

    @cached_property
    def above(self) -> tuple[int, ...]:
        """The node that adds each term, leaves first; -1 for the whole sum."""
        above = [-1] * (self.leaves + len(self.nodes))
        for node, terms in enumerate(self.nodes, self.leaves):
            for term in terms:
                above[term] = node
        return tuple(above)

    @property
    def root(self) -> int:
        return self.leaves + len(self.nodes) - 1

    @property
    def orderless(self) -> bool:
        """Whether all products are added at once."""
        return len(self.nodes) == 1 and self.leaves > 2

    def terms(self, node: int) -> tuple[int, ...]:
        """What a node adds; nothing for a leaf."""
        return self.nodes[node - self.leaves] if node >= self.leaves else ()

    def kind(self, node: int) -> str:
        return self.kinds[node - self.leaves]

    def meeting(self, i: int, j: int) -> tuple[int, int, int]:
        """The node whose sum is the first to hold both products, and those of its terms that hold i and j."""
        of_i, node = i, self.above[i]
        while not self.spans[node] >> j & 1:
            of_i, node = node, self.above[node]
        (of_j,) = (term for term in self.terms(node) if self.spans[term] >> j & 1)
        return node, of_i, of_j

    def lost(self, i: int, j: int) -> int:
        """The products that a huge value at i and its negative at j swallow, as bits: those added to one of the two
        before they meet, and where terms are aligned, those added with them. Both i and j are among them.
        """
        node, of_i, of_j = self.meeting(i, j)
        return self.spans[of_i] | self.spans[of_j] if self.kind(node) == EXACT else self.spans[node]

    def cut(self, width: int) -> "Tree":
        """The order of the first `width` products, where the others are zeros."""
        kept: dict[int, int] = {leaf: leaf for leaf in range(width)}
        nodes: list[list[int]] = []
        kinds: list[str] = []
        for node, (terms, kind) in enumerate(zip(self.nodes, self.kinds, strict=True), self.leaves):
            own = [kept[term] for term in terms if term in kept]
            if len(own) == 1:
                kept[node] = own[0]
            elif own:
                kept[node] = width + len(nodes)
                nodes.append(own)
                kinds.append(kind)
        return Tree.of(width, nodes, kinds)


def bits_of(span: int) -> Iterator[int]:
    """The numbers of the bits that are set, in ascending order."""
    while span:
        lowest = span & -span
        yield lowest.bit_length() - 1
        span ^= lowest
