"""Backends in NumPy that add the products of an LM head in a planted order."""

import numpy as np
import planted

from crosscheck.backends import NumpyAdapter
from crosscheck.registry import Backend


class InOrder(NumpyAdapter):
    """Float32 sums of float32 products, one after another."""

    def implementation(self, op, inputs=None, digits=None):
        return "planted"

    def run(self, op, inputs, digits, mode):
        hidden, weight = (inputs[name].astype(np.float32) for name in ("hidden", "weight"))
        return self.added(hidden[:, None, :] * weight[None]).astype(inputs["hidden"].dtype)

    def added(self, products):
        return in_sequence(products)


class PairwiseFromFiveRowsOn(InOrder):
    def added(self, products):
        return in_sequence(products) if len(products) < 5 else pairwise(products)


class PairwiseInTheLastColumn(InOrder):
    def added(self, products):
        return np.concatenate([in_sequence(products[:, :-1]), pairwise(products[:, -1:])], axis=1)


class Kahan(InOrder):
    def added(self, products):
        return kahan(products)


def in_sequence(products):
    total = products[..., 0]
    for k in range(1, products.shape[-1]):
        total = total + products[..., k]
    return total


def pairwise(products):
    while products.shape[-1] > 1:
        products = products[..., ::2] + products[..., 1::2]
    return products[..., 0]


def kahan(products):
    """Sums in sequence, each with what the last one lost."""
    total = lost = np.zeros_like(products[..., 0])
    for k in range(products.shape[-1]):
        term = products[..., k] - lost
        larger = total + term
        lost, total = (larger - total) - term, larger
    return total


def _backend(adapter):
    return Backend(adapter.__name__, f"planted_orders:{adapter.__name__}", "cpu", ("eager",))


ORDERS = (InOrder, PairwiseFromFiveRowsOn, PairwiseInTheLastColumn, Kahan)
REGISTRY = {**planted.REGISTRY, **{adapter.__name__: _backend(adapter) for adapter in ORDERS}}
