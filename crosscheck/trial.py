"""What a transform is: the calls that it makes, and what their results must equal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from crosscheck.cases import Inputs

__all__ = [
    "COLUMNS", "LARGE", "LAYOUTS", "PADDING", "SHARDS", "Attempt", "NotApplicable", "Parts", "Trial", "all_of", "first",
    "joined", "part", "pick",
]  # fmt: skip

Array = NDArray[Any]
Result = TypeVar("Result")

COLUMNS = ("population", "position", "neighbours", "padding", "chunking", "layout", "repeat")
LAYOUTS = ("transposed", "strided", "expanded", "unaligned")
LARGE = 256 * 2**20  # bytes; of a larger weight no transformed copy is made
PADDING = 2  # rows
SHARDS = (1, 2, 3, 4, 8)
Parts = tuple[str, int]


@dataclass(frozen=True)
class Trial(Generic[Result]):
    """One transform of one call, whose result is an array [rows, width] or, of a gradient, arrays by name.

    Arguments:
        column: one of COLUMNS, or "grad".
        name: what was done, in a few words.
        calls: the inputs of each call to make.
        join: the results to what is compared.
        expected: the untransformed result to what it must equal.
        layout: how to store the named inputs, of LAYOUTS.
        parts: "vocab" or "hidden" and a number, where the call is made from as many parts of its arguments.
    """

    column: str
    name: str
    calls: tuple[Inputs, ...]
    join: Callable[[list[Result]], Result]
    expected: Callable[[Result], Result]
    layout: dict[str, str] = field(default_factory=dict)
    parts: Parts | None = None

    def keeps_shapes(self, inputs: Inputs) -> bool:
        """Whether the calls have the shapes and the storage of the untransformed one: no new compilation."""
        return (
            not self.layout
            and self.parts is None
            and all(call[name].shape == array.shape for call in self.calls for name, array in inputs.items())
        )


@dataclass(frozen=True)
class NotApplicable:
    column: str
    name: str
    reason: str


Attempt = Trial[Array] | NotApplicable


def first(results: list[Array]) -> Array:
    return results[0]


def part(index: Any) -> Callable[[list[Array]], Array]:
    """Of the one result, a part."""
    return lambda results: results[0][index]


def pick(index: Any) -> Callable[[Array], Array]:
    """Of the untransformed result, a part."""
    return lambda result: result[index]


def all_of(result: Array) -> Array:
    return result


def joined(parts: Sequence[slice], axis: int) -> Callable[[list[Array]], Array]:
    """A part of each result, one after the other along an axis."""

    def join(results: list[Array]) -> Array:
        index = [(part,) if axis == 0 else (slice(None), part) for part in parts]
        return np.concatenate([result[at] for result, at in zip(results, index, strict=True)], axis)

    return join
