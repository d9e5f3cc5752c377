"""Whether a tree explains a sum: what it predicts for new masks, and for random values.

Masks tell only what is lost beside a huge value. A compensated sum loses the same and is no sum of rounded additions.
So random values, which cancel to little more than their rounding errors, are added in the tree's order in integers,
each sum rounded to as many bits as its accumulator was measured to have, and the results have to be the candidate's.
Aligned terms (fused nodes) are rounded in ways of the hardware's own; there, what may change places in the tree must
not change a bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.order.masks import Scale, Sums, mask_rows
from crosscheck.order.tree import FUSED, Tree, bits_of

__all__ = [
    "mask_trials",
    "measured_widths",
    "random_rows",
    "replayed_rows",
    "roundings",
    "swapped",
    "totals",
    "width_trials",
]

Array = NDArray[Any]
PER_NODE, AT_RANDOM = 3, 32
VALUE_BITS = 8  # of a random value: exact in bfloat16
SPREADS = (24, 80)  # by how many bits random values differ, at most
ROWS = 9  # random rows of each spread


# Masks -------------------------------------------------------------------------------------------------
def mask_trials(tree: Tree, scale: Scale, rng: np.random.Generator) -> tuple[Array, Array]:
    """New masks [P, K], some at every node and some anywhere, and the sums [P] that the tree predicts."""
    pairs: list[tuple[int, int]] = []
    for node in range(tree.leaves, tree.root + 1):
        for _ in range(PER_NODE):
            one, other = (tree.spans[term] for term in rng.permutation(tree.terms(node))[:2])
            pairs.append((_any(one, rng), _any(other, rng)))
    if tree.leaves > 1:
        for _ in range(AT_RANDOM):
            i, j = rng.choice(tree.leaves, 2, replace=False)
            pairs.append((int(i), int(j)))
    units, expected = [], []
    pairs = [pairs[k] for k in rng.permutation(len(pairs))]
    for i, j in pairs:
        lost, free = tree.lost(i, j), ~(1 << i | 1 << j)
        everything = (1 << tree.leaves) - 1
        inside = _some(lost & free, scale.capacity // 2, rng)
        outside = _some(everything & ~lost, scale.capacity // 2, rng)
        units.append(inside | outside)
        expected.append(outside.bit_count() * scale.unit)
    return mask_rows(tree.leaves, pairs, units, scale), np.array(expected)


def _any(span: int, rng: np.random.Generator) -> int:
    return int(rng.choice(list(bits_of(span))))


def _some(span: int, most: int, rng: np.random.Generator) -> int:
    """Each bit or not, and no more than that."""
    chosen = [bit for bit in bits_of(span) if rng.random() < 0.5]
    return sum(1 << int(bit) for bit in rng.permutation(chosen)[:most])


# Widths ------------------------------------------------------------------------------------------------
def measured_widths(sums: Sums, tree: Tree, scale: Scale) -> list[int | None]:
    """For each node the bits that its sum keeps: the smallest a for which one unit is not whole beside 2^a.

    None where nothing is swallowed up to `scale.huge`, or where that cannot be asked: at the top of two terms.
    """
    top = int(np.log2(scale.huge / scale.unit))
    asked = {node: three for node in range(tree.leaves, tree.root + 1) if (three := _three(tree, node))}
    low = dict.fromkeys(asked, 0)  # 2^low does not swallow a unit
    high = dict.fromkeys(asked, top + 1)  # 2^high does, or is more than there is
    while undecided := [node for node in asked if high[node] - low[node] > 1]:
        rows = np.zeros((len(undecided), tree.leaves))
        middle = {node: (low[node] + high[node]) // 2 for node in undecided}
        for row, node in zip(rows, undecided, strict=True):
            _swallow(row, asked[node], middle[node], scale)
        for node, total in zip(undecided, sums(rows), strict=True):
            (low if total == scale.unit else high)[node] = middle[node]
    return [high[node] if high.get(node, top + 1) <= top else None for node in range(tree.leaves, tree.root + 1)]


def width_trials(tree: Tree, widths: Sequence[int | None], scale: Scale) -> tuple[Array, Array]:
    """Rows [P, K] that show the widths again, and for each whether the sum is expected to be the unit."""
    top = int(np.log2(scale.huge / scale.unit))
    rows, kept = [], []
    for node, width in enumerate(widths, tree.leaves):
        three = _three(tree, node)
        if three is None:
            continue
        for power in {top if width is None else width, (width or 1) - 1}:
            rows.append(_swallow(np.zeros(tree.leaves), three, power, scale))
            kept.append(width is None or power < width)
    return np.array(rows).reshape(-1, tree.leaves), np.array(kept, bool)


def _swallow(row: Array, three: tuple[int, int, int], power: int, scale: Scale) -> Array:
    """2^power, its negative and a unit in their places."""
    i, j, k = three
    row[i], row[j], row[k] = 2.0**power * scale.unit, -(2.0**power) * scale.unit, scale.unit
    return row


def _three(tree: Tree, node: int) -> tuple[int, int, int] | None:
    """A product for M, one for -M that meets it above the node if it can, and one for the unit that meets M there."""
    one, other, *more = (next(bits_of(tree.spans[term])) for term in tree.terms(node))
    above = tree.above[node]
    if above >= 0:
        beside = next(term for term in tree.terms(above) if term != node)
        return one, next(bits_of(tree.spans[beside])), other
    return (one, more[0], other) if more else None


# Random values -----------------------------------------------------------------------------------------
def random_rows(
    width: int, scale: Scale, rng: np.random.Generator, spreads: Sequence[int] = SPREADS
) -> list[list[int]]:
    """Rows of values in units, of VALUE_BITS bits each and of mixed magnitude.

    All but a few small ones cancel, so that also a result of few bits shows what was lost. In a third of the rows they
    do not, where float16, which has no room for that, is not the result's dtype.
    """
    room = int(np.log2(scale.huge / scale.unit)) - VALUE_BITS - width.bit_length()
    few = max(1, width // 8)
    narrow = scale.huge <= 2.0**30
    drawn = (_in_pairs, _in_all) if narrow else (_in_pairs, _in_all, _at_random)
    rows = []
    for spread in sorted({min(spread, room) for spread in spreads}):
        for k in range(ROWS):
            large = drawn[k % len(drawn)](width - few, spread, rng)
            if narrow and abs(sum(large)) * scale.unit >= 2.0**15:
                large = _in_pairs(width - few, spread, rng)
            values = large + [_value(0, rng) for _ in range(width - len(large))]
            rows.append([values[k] for k in rng.permutation(width)])
    return rows


def _value(spread: int, rng: np.random.Generator) -> int:
    return int(rng.integers(1, 2**VALUE_BITS)) << int(rng.integers(0, spread + 1))


def _at_random(count: int, spread: int, rng: np.random.Generator) -> list[int]:
    return [_value(spread, rng) * int(rng.choice([-1, 1])) for _ in range(count)]


def _in_pairs(count: int, spread: int, rng: np.random.Generator) -> list[int]:
    """As many values, or one fewer, of which two or three cancel."""
    values: list[int] = []
    while (left := count - len(values)) > 1:
        value = _value(spread, rng)
        values += [value, -value // 2, -value // 2] if left > 2 and value % 2 == 0 else [value, -value]
    return values


def _in_all(count: int, spread: int, rng: np.random.Generator) -> list[int]:
    """Values of any sign, and others that take away their sum, from its highest bits on, as far as half of all can."""
    values = _at_random(count - count // 2, spread, rng)
    total = sum(values)
    while total and len(values) < count:
        drop = max(0, abs(total).bit_length() - VALUE_BITS)
        part = (abs(total) >> drop << drop) * (1 if total > 0 else -1)
        values.append(-part)
        total -= part
    return values


def replayed_rows(tree: Tree, widths: Sequence[int | None], scale: Scale) -> list[list[int]]:
    """Random rows whose sums follow from the tree and its widths; none where they do not.

    Where all products are added at once, they are near enough to each other that none is lost. Where only some are,
    hardware has ways of its own to align them.
    """
    spreads: Sequence[int] = SPREADS
    if tree.orderless:
        reach = VALUE_BITS + tree.leaves.bit_length()
        spreads = [width - reach for width in widths if width is not None] or SPREADS
    elif FUSED in tree.kinds or None in widths[:-1]:
        return []
    return random_rows(tree.leaves, scale, np.random.default_rng(3), spreads) if min(spreads) >= 0 else []


def totals(
    tree: Tree, rows: Sequence[Sequence[int]], widths: Sequence[int | None], rounding: tuple[int, int], result: int
) -> list[int]:
    """The sums in the tree's order, in units.

    Arguments:
        widths: of each node but the last, in bits.
        rounding: in bits, what each sum is rounded to before its own width, and the width of the whole sum; both to
            nearest even.
        result: the bits of the result.
    """
    through, last = rounding
    found = []
    for row in rows:
        terms = list(row)
        for own, width in zip(tree.nodes, (*widths[:-1], last), strict=True):
            terms.append(_rounded(_rounded(sum(terms[term] for term in own), through), width or last))
        found.append(_rounded(terms[-1], result))
    return found


def _rounded(value: int, bits: int) -> int:
    """To nearest, ties to even.

    Example:
        >>> [_rounded(value, 3) for value in (7, 9, 11, -13)]
        [7, 8, 12, -12]
    """
    size = abs(value)
    drop = size.bit_length() - bits
    if drop <= 0:
        return value
    kept, rest = size >> drop, size & (1 << drop) - 1
    half = 1 << drop - 1
    kept += rest > half or (rest == half and kept & 1)
    return (kept if value > 0 else -kept) << drop


def roundings(tree: Tree, widths: Sequence[int | None], result: int) -> list[tuple[int, int]]:
    """What masks do not tell, and `totals` needs: likely ones first.

    bfloat16 is often added in float32, and fused terms in float64, and the whole sum may have any width that a result
    of `result` bits hides.
    """
    known = [] if tree.orderless else sorted({width for width in widths[:-1] if width is not None}, reverse=True)
    lasts = dict.fromkeys([*known, 24, 53, result, 11, 8])
    return [(max(*known[:1], through, last), last) for through in (0, 24, 53) for last in lasts]


def swapped(tree: Tree, widths: Sequence[int | None], rng: np.random.Generator) -> list[int]:
    """For each product the place that it may take, with all others, without a change of the order: terms of a node
    change places, and so do the products in sums that have the same shape and widths.
    """
    shapes: dict[tuple[object, ...], int] = {}
    shape = [0] * tree.leaves
    for terms, kind, width in zip(tree.nodes, tree.kinds, widths, strict=True):
        key = (kind, width, *sorted(shape[term] for term in terms))
        shape.append(shapes.setdefault(key, len(shapes) + 1))
    place = list(range(tree.leaves))
    waiting = [(tree.root, tree.root)]
    while waiting:
        node, becomes = waiting.pop()
        if node < tree.leaves:
            place[node] = becomes
            continue
        targets = [int(term) for term in rng.permutation(tree.terms(becomes))]
        for term in tree.terms(node):
            target = next(other for other in targets if shape[other] == shape[term])
            targets.remove(target)
            waiting.append((term, target))
    return place
