"""Shrink the inputs of a call that fails, as long as it fails: first their structure, then their values.

Of the structure, the bias goes, leading axes become one, and then rows, vocab and width lose parts: halves first, and
ever finer ones. Values become zeros, ones and powers of two, many at a time first. Both are done again until nothing
changes any more, or calls or time are spent. Nothing is drawn, so the same failure shrinks to the same inputs.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.bench import digest_of_inputs
from crosscheck.bits import to_bits
from crosscheck.calls import Call
from crosscheck.cases import Inputs
from crosscheck.verdict import counted

__all__ = ["MOST", "shrink", "sizes"]

Array = NDArray[Any]
MOST = 400  # calls
PARTS = 64  # at most, into which an axis or an array is divided
Part = Callable[[Inputs, Sequence[int]], Inputs]
_FRACTION = {"bfloat16": 7, "float16": 10, "float32": 23}


def shrink(
    inputs: Inputs,
    fails: Callable[[Inputs], bool],
    *,
    index: Sequence[int] = (),
    seconds: float = 60.0,
    most: int = MOST,
    heard: Callable[[str], None] = lambda doing: None,
    found: Callable[[Inputs], None] = lambda inputs: None,
) -> tuple[Inputs | None, int]:
    """The smallest inputs that were found to fail, and how many calls that took.

    Arguments:
        inputs: of the call; where gradients are what fails, with the upstream gradient, "grad".
        fails: whether a call with other inputs fails in the same way.
        index: of an element [row, column] that is wrong: where to look first.
        seconds, most: the time and the calls after which what was found must do; what was given is tried in any case.
        heard: told the sizes of the call that is about to be made.
        found: told each time when smaller inputs fail.

    Returns:
        No inputs where not even those that were given fail.
    """
    search = _Search(inputs, fails, time.monotonic() + seconds, most, heard, found)
    with contextlib.suppress(_Spent):
        search.run(index)
    return search.inputs if search.failed else None, search.calls


def sizes(inputs: Inputs) -> str:
    """
    Example:
        >>> sizes({"hidden": np.zeros((2, 3)), "weight": np.zeros((1, 3))})
        '2 rows, K 3, V 1'
    """
    vocab, rows = _vocab(inputs), _rows(inputs)
    if "token_ids" in inputs:
        return f"{counted(rows, 'id')}, H {_width(inputs)}, V {vocab}"
    width = f"K {_width(inputs)}, " if "weight" in inputs else ""
    return f"{counted(rows, 'row')}, {width}V {vocab}" + (", bias" if "bias" in inputs else "")


class _Spent(Exception):
    """No calls or no time is left."""


class _Search:
    """`inputs` are the smallest so far; `failed`: whether they are known to fail."""

    def __init__(
        self,
        inputs: Inputs,
        fails: Callable[[Inputs], bool],
        until: float,
        most: int,
        heard: Callable[[str], None],
        found: Callable[[Inputs], None],
    ) -> None:
        self.inputs, self.fails, self.until, self.most = inputs, fails, until, most
        self.heard, self.found = heard, found
        self.calls, self.failed = 0, False
        self.passed: set[str] = set()  # digests of inputs that do not fail

    def run(self, index: Sequence[int]) -> None:
        with contextlib.suppress(_Spent):
            self.guess(index)
        if not self.failed and not self.attempt(self.inputs, always=True):
            return
        before = -1
        while before != self.calls:
            before = self.calls
            self.structure()
            for name in ("bias", "hidden", "logits", "weight", "grad", "token_ids", "target_ids"):
                if name in self.inputs:
                    self.simplify(name)

    def attempt(self, inputs: Inputs, *, always: bool = False) -> bool:
        """Whether the inputs fail; if so they are the smallest from now on. `always`: also where nothing is left."""
        inputs = {name: np.array(x, order="C") for name, x in inputs.items()}  # also the strides of axes of length 1
        digest = digest_of_inputs(inputs)
        if digest in self.passed:
            return False
        if not always and self.calls and (self.calls >= self.most or time.monotonic() >= self.until):
            raise _Spent
        self.calls += 1
        self.heard(f"shrinking: {sizes(inputs)}")
        if not self.fails(inputs):
            self.passed.add(digest)
            return False
        self.inputs, self.failed = inputs, True
        self.found(inputs)
        return True

    # Structure -----------------------------------------------------------------------------------------
    def guess(self, index: Sequence[int]) -> None:
        """The row and the column where something is wrong, alone or with the first ones."""
        if len(index) != (1 if "target_ids" in self.inputs else 2):
            return
        for rows in dict.fromkeys([(index[0],), tuple(sorted({0, index[0]}))]):
            if rows[-1] < _rows(self.inputs) and self.attempt(_take_rows(self.inputs, rows)):
                break
        if len(index) == 2 and "hidden" in self.inputs and index[1] < _vocab(self.inputs):
            self.attempt(_take_vocab(self.inputs, index[1:]))

    def structure(self) -> None:
        if "bias" in self.inputs:
            self.attempt({name: x for name, x in self.inputs.items() if name != "bias"})
        if len(Call(self.inputs).shape) != 1:
            self.attempt(_take_rows(self.inputs, range(_rows(self.inputs))))
        axes: list[tuple[Callable[[Inputs], int], Part, int]] = [(_rows, _take_rows, 1)]
        if "weight" in self.inputs:
            axes.append((_width, _take_width, 1))
        axes.append((_spare, _take_spare, 0) if Call(self.inputs).ids else (_vocab, _take_vocab, 1))
        for length, take, least in sorted(axes, key=lambda axis: -axis[0](self.inputs)):
            self.narrow(length, take, least)

    def narrow(self, length: Callable[[Inputs], int], take: Part, least: int) -> None:
        """Leave out parts of an axis: halves, then ever smaller ones."""
        size = max(1, length(self.inputs) // 2) if least else length(self.inputs)
        while size and length(self.inputs) <= size * PARTS:
            start = 0
            while start < length(self.inputs) > least:
                kept = [*range(start), *range(start + size, length(self.inputs))]
                if len(kept) < least or not self.attempt(take(self.inputs, kept)):
                    start += size
            size //= 2

    # Values --------------------------------------------------------------------------------------------
    def simplify(self, name: str) -> None:
        """Make values of an argument zero, then one, then powers of two: all of them, then ever fewer at a time."""
        array = self.inputs[name]
        floats = array.dtype.name in _FRACTION
        for simpler in (_zero, _one, _power) if floats else (_zero,):
            for places in self.parts(name, simpler):
                flat = self.inputs[name].reshape(-1).copy()
                flat[places] = simpler(flat[places])
                self.attempt({**self.inputs, name: flat.reshape(array.shape)})

    def parts(self, name: str, simpler: Callable[[Array], Array]) -> Iterator[Array]:
        """The places, in all of an array and then in ever smaller parts, of elements that it would make simpler."""
        total = size = self.inputs[name].size
        while size and total <= size * PARTS:
            for start in range(0, total, size):
                part = self.inputs[name].reshape(-1)[start : start + size]
                places = np.flatnonzero(_differs(simpler(part), part) & _differs(_zero(part), part))
                if len(places):
                    yield start + places
            size //= 2


# Values ------------------------------------------------------------------------------------------------
def _zero(x: Array) -> Array:
    return np.zeros_like(x)


def _one(x: Array) -> Array:
    return np.ones_like(x)


def _power(x: Array) -> Array:
    """The powers of two next to zero of what is normal; the rest, also 1, as it is."""
    bits, fraction = to_bits(x), _FRACTION[x.dtype.name]
    top = 1 << (8 * x.itemsize - 1)
    exponents = (bits & (top - 1)) >> fraction
    normal = (exponents > 0) & (exponents < (top - 1) >> fraction)
    power: Array = np.where(normal, bits >> fraction << fraction, bits).astype(bits.dtype).view(x.dtype)
    return power


def _differs(x: Array, other: Array) -> Array:
    return np.asarray(to_bits(x) != to_bits(other))


# Structure ---------------------------------------------------------------------------------------------
def _rows(inputs: Inputs) -> int:
    return len(Call(inputs).rows)


def _vocab(inputs: Inputs) -> int:
    return Call(inputs).vocab


def _width(inputs: Inputs) -> int:
    return int(inputs["weight"].shape[1])


def _spare(inputs: Inputs) -> int:
    """The entries of the vocab that no id names."""
    return len(_unnamed(inputs))


def _unnamed(inputs: Inputs) -> Array:
    return np.setdiff1d(np.arange(_vocab(inputs)), inputs[str(Call(inputs).ids)])


def _take_rows(inputs: Inputs, kept: Sequence[int]) -> Inputs:
    """Some rows, with one leading axis."""
    return {**inputs, **Call(inputs).rows[list(kept)].arrays}


def _take_vocab(inputs: Inputs, kept: Sequence[int]) -> Inputs:
    return Call(inputs).with_vocab(list(kept))


def _take_spare(inputs: Inputs, kept: Sequence[int]) -> Inputs:
    """The part of the vocab that ids name, and of the rest some; ids are numbered anew."""
    name = str(Call(inputs).ids)
    ids = inputs[name]
    left = np.sort(np.concatenate([np.unique(ids).astype(np.int64), _unnamed(inputs)[list(kept)]]))
    some = {**inputs, "weight": inputs["weight"][left]} if name == "token_ids" else Call(inputs).with_vocab(left)
    return {**some, name: np.searchsorted(left, ids).astype(ids.dtype)}


def _take_width(inputs: Inputs, kept: Sequence[int]) -> Inputs:
    index = list(kept)
    names = ("weight", "grad") if "token_ids" in inputs else ("hidden", "weight")
    return {name: x[..., index] if name in names else x for name, x in inputs.items()}
