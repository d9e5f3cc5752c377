"""The order in which a sum adds its terms, found from its results alone.

After Xie et al., "Revealing Floating-Point Accumulation Orders in Software/Hardware Implementations" (FPRev, arXiv
2411.00442): masks tell for two products how many are lost before they meet (`crosscheck/order/masks.py`), and from
these numbers the tree is rebuilt. For a product i, those numbers for all others, in ascending order, are the sizes of
the sums that i is in, from the smallest to the whole; products with equal numbers join i's sum together, and are a tree
of their own. Where i is drawn at random, few products are asked for twice.

Nodes may add more than two terms. Either those are aligned to the largest, and lost with it (fused); then products of
several terms have the number of the whole node, among themselves, too. Or they are added exactly and rounded once; then
the numbers are smaller than the sums, and it takes masks with single units to tell *which* products are lost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from crosscheck.order.masks import Masks, NoTree, Sums, calibrated
from crosscheck.order.tree import ADD, EXACT, FUSED, Tree, bits_of

__all__ = ["reveal", "reveal_with"]

LIMIT = 1_000_000  # probes for one tree


def reveal(sums: Sums, width: int, dtype: str = "float32", *, limit: int = LIMIT, seed: int = 0) -> Tree:
    """The order of a sum.

    Arguments:
        sums: float64 rows of products [P, width], exact in `dtype`, to their sums [P].
        dtype: "bfloat16", "float16" or "float32", of the products' factors.
        limit: the most probes, rows of `sums`.
        seed: draws the products that are asked for first; the tree does not depend on it.

    Raises:
        NoTree: the answers contradict each other. A tree that is returned has not been checked against new masks.
        TooMany.

    Example:
        >>> import numpy as np
        >>> def backwards(rows):
        ...     return np.float32(rows[:, 2]) + np.float32(rows[:, 1]) + np.float32(rows[:, 0])
        >>> reveal(backwards, 3).nodes
        ((1, 2), (0, 3))
    """
    if width == 1:
        return Tree.of(1, [])
    return reveal_with(Masks(sums, width, calibrated(sums, width, dtype), limit), seed)


def reveal_with(masks: Masks, seed: int = 0) -> Tree:
    """`reveal`, of two products or more, with a scale that is known."""
    return _Builder(masks, np.random.default_rng(seed)).tree()


@dataclass
class _Node:
    """A node that is being made. A term is a product or a node."""

    terms: "list[int | _Node]" = field(default_factory=list)
    exact: bool = False


@dataclass(frozen=True)
class _Job:
    """Products that are one term of `node`, or where it is fused, several.

    Arguments:
        around: all products of `node`.
    """

    node: _Node
    leaves: list[int]
    around: list[int]


@dataclass(frozen=True)
class _Join:
    """Products that join the sum of another product together.

    Arguments:
        span: the products that were in the sum before, as bits.
        leaves: those that join it.
    """

    span: int
    leaves: list[int]


class _Builder:
    def __init__(self, masks: Masks, rng: np.random.Generator) -> None:
        self.masks, self.rng = masks, rng
        self.jobs: list[_Job] = []

    def tree(self) -> Tree:
        everything = list(range(self.masks.width))
        top = _Node()
        self.jobs.append(_Job(top, everything, everything))
        while self.jobs:
            self._do(self.jobs.pop())
        (root,) = top.terms
        return _flat(self.masks.width, root)

    def _do(self, job: _Job) -> None:
        """Split the products into those of one term, whose tree begins here, and those of other terms."""
        if len(job.leaves) == 1:
            job.node.terms.append(job.leaves[0])
            return
        i = int(self.rng.choice(job.leaves))
        others = [leaf for leaf in job.leaves if leaf != i]
        lost = dict(zip(others, self.masks.lost([(i, j) for j in others], job.around), strict=True))
        one_sum = len(job.leaves) == len(job.around)
        apart = [] if one_sum else [j for j in others if lost[j] == len(job.around)]
        if apart:
            self.jobs.append(_Job(job.node, apart, job.around))
        job.node.terms.append(self._rising(i, {j: lost[j] for j in others if j not in apart}))

    def _rising(self, i: int, lost: dict[int, int]) -> "int | _Node":
        """The tree of a product and others, from the product up to the sum of all."""
        sizes = sorted(set(lost.values()))
        groups = {size: [j for j in lost if lost[j] == size] for size in sizes}
        joins = self._joins_by_size(i, groups) or self._joins_by_span(i, groups, [i, *lost])
        term: int | _Node = i
        span = 1 << i
        while joins:
            here = [join for join in joins if join.span == span]
            joins = [join for join in joins if join.span != span]
            if not here:
                raise NoTree(f"the masks around product {i} contradict each other")
            term = _Node([term], exact=len(here) > 1)
            inside = span
            for join in here:
                inside |= _span(join.leaves)
            for join in here:
                self.jobs.append(_Job(term, join.leaves, list(bits_of(inside))))
            span = inside
        return term

    def _joins_by_size(self, i: int, groups: dict[int, list[int]]) -> list[_Join]:
        """Where the numbers are the sizes of sums; empty where they are not."""
        joins, span = [], 1 << i
        for size, group in groups.items():
            joins.append(_Join(span, group))
            span |= _span(group)
            if span.bit_count() != size:
                return []
        return joins

    def _joins_by_span(self, i: int, groups: dict[int, list[int]], among: list[int]) -> list[_Join]:
        """Where they are not, since terms are added exactly: by the products that are lost."""
        joins: list[_Join] = []
        known = 1 << i  # a sum that holds i, as large as is known
        for size, group in groups.items():
            left = _span(group)
            while left:
                j = next(bits_of(left))
                alone = size == known.bit_count() + 1  # then it is the sum so far, and j
                lost = known | 1 << j if alone else self.masks.lost_span(i, j, among)
                joining = lost & left
                joins.append(_Join(lost & ~joining, list(bits_of(joining))))
                left &= ~joining
                known = max(known, joins[-1].span, key=int.bit_count)
        return joins


def _span(leaves: Iterable[int]) -> int:
    return sum(1 << leaf for leaf in leaves)


def _flat(leaves: int, root: "int | _Node") -> Tree:
    """The tree of the nodes under a root, each after its terms."""
    order: list[_Node] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _Node):
            order.append(node)
            waiting += node.terms
    number = {id(node): leaves + k for k, node in enumerate(reversed(order))}
    nodes: Sequence[list[int]] = [
        [term if isinstance(term, int) else number[id(term)] for term in node.terms] for node in reversed(order)
    ]
    kinds = [EXACT if node.exact else ADD if len(node.terms) == 2 else FUSED for node in reversed(order)]
    return Tree.of(leaves, nodes, kinds)
