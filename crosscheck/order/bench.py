"""A function with an LM head's signature as sums of rows of products, at one number of rows, vocab and width.

Either every row of hidden is the same, and the weight all ones: one call asks for the sums of all rows and columns. Or
each row, or each row of the weight, has products of its own: one call asks for many sums, each at another position.
Products that float16 has not are made of two factors, which takes the first way.
"""

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from crosscheck.order.masks import Sums

__all__ = ["Bench", "Call"]

Array = NDArray[Any]
Call = Callable[[Array, Array, int, int], Array]  # see Bench
AT_ONCE = 2**20  # results, or factors, of the calls that are made in one go
FIRST = 16
LARGEST = {"bfloat16": 2.0**126, "float16": 2.0**15, "float32": 2.0**126}  # a power of two


class Bench:
    """A function at one setting.

    Arguments:
        call: hidden [C, 1 or rows, K] and weight [C or 1, 1 or vocab, K], rows and vocab, to C results
            [C, rows, vocab]; an axis of 1 stands for equal rows.
        dtype: of hidden and weight.
    """

    def __init__(self, call: Call, rows: int, vocab: int, width: int, dtype: str) -> None:
        self.call, self.rows, self.vocab, self.width, self.dtype = call, rows, vocab, width, dtype
        self.calls = 0
        self.result = dtype  # of the results, once there are some

    def everywhere(self, products: Array) -> Iterator[Array]:
        """The sums [C, rows, vocab] of products [C, K], some at a time; the first are few, for who gives up early."""
        some, k = max(1, AT_ONCE // max(self.rows * self.vocab, self.width)), 0
        while k < len(products):
            end = k + (some if k else min(some, FIRST))
            yield self._called(*_factors(products[k:end, None, :], LARGEST[self.dtype]))
            k = end

    def at(self, row: int, column: int) -> Sums:
        """One sum: a call for each row of products."""
        return lambda products: np.concatenate([sums[:, row, column] for sums in self.everywhere(products)])

    def spread(self) -> Sums:
        """As many sums a call as there are rows or columns."""
        along_rows = self.rows >= self.vocab
        places = max(self.rows, self.vocab)
        some = places * max(1, AT_ONCE // (places * max(self.width, min(self.rows, self.vocab))))

        def sums(products: Array) -> Array:
            found = []
            for k in range(0, len(products), some):
                part = products[k : k + some]
                padded = np.concatenate([part, np.zeros((-len(part) % places, self.width))])
                masks, ones = padded.reshape(-1, places, self.width), np.ones((1, 1, self.width))
                if along_rows:
                    result = self._called(masks, ones)[:, :, 0]
                else:
                    result = self._called(np.broadcast_to(ones, (len(masks), 1, self.width)), masks)[:, 0, :]
                found.append(result.reshape(-1)[: len(part)])
            return np.concatenate(found)

        return sums

    def _called(self, hidden: Array, weight: Array) -> Array:
        stored = ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype
        found = self.call(hidden.astype(stored), weight.astype(stored), self.rows, self.vocab)
        self.calls += len(hidden)
        self.result = found.dtype.name
        return found.astype(np.float64)

    def agrees(
        self, products: Array, expected: Array, read: Callable[[Array], Array] = lambda sums: sums
    ) -> NDArray[np.bool_]:
        """Which of [rows, vocab] have the expected sums [C], or what is read of them."""
        grid, k = np.ones((self.rows, self.vocab), bool), 0
        for sums in self.everywhere(products):
            grid &= (read(sums) == expected[k : k + len(sums), None, None]).all(axis=0)
            k += len(sums)
            if not grid.any():
                break
        return grid

    def same(self, products: Array, others: Array) -> NDArray[np.bool_]:
        """Which of [rows, vocab] have the same sums of both."""
        grid = np.ones((self.rows, self.vocab), bool)
        for sums, again in zip(self.everywhere(products), self.everywhere(others), strict=True):
            grid &= (sums == again).all(axis=0)
        return grid


def _factors(products: Array, largest: float) -> tuple[Array, Array]:
    """Hidden and weight with these products; the weight is all ones where the products are no larger than this."""
    large = np.abs(products) > largest
    if not large.any():
        return products, np.ones((1, *products.shape[1:]))
    weight = np.where(large, largest, 1.0)
    return products / weight, weight
