"""Sums in NumPy whose order is known: a tree, evaluated with accumulators of a dtype."""

import math

import ml_dtypes
import numpy as np

from crosscheck.order.tree import EXACT, FUSED, Tree

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float64": np.float64}


def tree_of(nested, kind=FUSED):
    """The tree of nested lists: [[0, 1], 2] adds 0 and 1 first; lists of more than two are of `kind`."""
    nodes = []

    def number(term):
        if isinstance(term, int):
            return term
        terms = [number(child) for child in term]
        nodes.append(terms)
        return leaves + len(nodes) - 1

    leaves = len(str(nested).split(","))
    number(nested)
    return Tree.of(leaves, nodes, [kind] * len(nodes))


def sequential(leaves, first=0, step=1):
    nested = first
    for k in range(1, leaves):
        nested = [nested, first + k * step]
    return nested


def backwards(leaves):
    return sequential(leaves, leaves - 1, -1)


def pairwise(terms):
    terms = list(terms)
    if len(terms) == 1:
        return terms[0]
    return [pairwise(terms[: len(terms) // 2]), pairwise(terms[len(terms) // 2 :])]


def halves(terms):
    """i with i + n/2 first, as in a butterfly."""
    terms = list(terms)
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [[terms[k], terms[k + half]] for k in range(half)]
    return terms[0]


def in_turn(terms):
    nested, *rest = terms
    for term in rest:
        nested = [nested, term]
    return nested


def strided(leaves, lanes):
    return [sequential(leaves // lanes, lane, lanes) for lane in range(lanes)]


def blocks(leaves, size, inside=sequential):
    return [inside(size, first) for first in range(0, leaves, size)]


def groups(leaves, size):
    """`size` products at a time, fused with the sum so far."""
    nested = list(range(size))
    for first in range(size, leaves, size):
        nested = [nested, *range(first, first + size)]
    return nested


def _aligned(terms, bits):
    """The sum of terms [T, P], each without what is below the largest by `bits`."""
    largest = np.abs(terms).max(axis=0)
    unit = np.exp2(np.floor(np.log2(np.where(largest == 0, 1, largest))) - bits + 1)
    return (np.trunc(terms / unit)).sum(axis=0) * unit


def simulated(tree, accumulator="float32", result="float32", fused_bits=24):
    """The sum as a function of rows [P, K] in float64."""
    dtype = DTYPES[accumulator]

    @np.errstate(over="ignore", invalid="ignore")  # of float16, in which M may be infinite
    def sums(rows):
        terms = [rows[:, k] for k in range(tree.leaves)]
        for own, kind in zip(tree.nodes, tree.kinds, strict=True):
            parts = np.array([terms[term] for term in own])
            if kind == FUSED:
                total = _aligned(parts, fused_bits)
            elif kind == EXACT:
                total = np.array([math.fsum(column) if np.isfinite(column).all() else np.nan for column in parts.T])
            else:
                total = parts.sum(axis=0)  # of two: rounded once to float64, and then innocuously again
            terms.append(total.astype(dtype).astype(np.float64))
        return terms[-1].astype(DTYPES[result]).astype(np.float64)

    return sums
