"""Which elements of transformed results are held against which of the untransformed one, as rows and columns.

A transform says so by functions that pick and join parts of arrays. Run on arrays of numbers, one for each place, they
tell the places.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.cases import Inputs
from crosscheck.invariance import Trial
from crosscheck.operators import result_shape, wanted

__all__ = ["Matched", "Places", "matched"]

Array = NDArray[Any]
_FIRST = 2**40  # of the numbers of the second array; above those of the first


@dataclass(frozen=True)
class Places:
    """Rows and columns of an array [R, W]; of a vector its elements are the rows, and there is one column."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    shape: tuple[int, int]


@dataclass(frozen=True)
class Matched:
    """The places of a result of the transformed call with this number, and those of the untransformed one."""

    call: int
    actual: Places
    expected: Places


def matched(trial: Trial[Any], inputs: Inputs, argument: str = "") -> Iterator[Matched]:
    """
    Arguments:
        inputs: of the untransformed call.
        argument: the one whose gradient is compared; none where results are.

    Raises:
        ValueError: what is compared is not some rows and some columns of a result.
    """
    numbered = [_numbered(call, i, bool(argument)) for i, call in enumerate([inputs, *trial.calls])]
    joined, expected = trial.join(numbered[1:]), trial.expected(numbered[0])
    if argument:
        joined, expected = joined[argument], expected[argument]
    joined, expected = (x.reshape(len(x), -1) for x in (joined, expected))
    shapes = [_shape(call, argument) for call in (inputs, *trial.calls)]
    for i in range(len(trial.calls)):
        here = joined // _FIRST == i + 1
        rows, columns = here.any(1), here.any(0)
        if not (here == rows[:, None] & columns).all():
            raise ValueError(f"{trial.name} compares what is no rows and columns of a result")
        if rows.any():
            actual = joined[rows][:, columns] - _FIRST * (i + 1)
            yield Matched(i, _places(actual, shapes[i + 1]), _places(expected[rows][:, columns], shapes[0]))


def _shape(inputs: Inputs, argument: str) -> tuple[int, int]:
    shape = inputs[argument].shape if argument else result_shape(inputs)
    if argument == "bias" or (not argument and "target_ids" in inputs):
        return int(np.prod(shape)), 1
    return int(np.prod(shape[:-1])), int(shape[-1])


def _numbered(inputs: Inputs, number: int, gradients: bool) -> Any:
    """A number for each place of a result [rows, width], or of the gradients of a call."""

    def places(argument: str) -> Array:
        rows, width = _shape(inputs, argument)
        array = np.arange(number * _FIRST, number * _FIRST + rows * width)
        return array if argument == "bias" else array.reshape(rows, width)

    return {name: places(name) for name in wanted(inputs)} if gradients else places("")


def _places(numbers: Array, shape: tuple[int, int]) -> Places:
    rows, columns = numbers[:, 0] // shape[1], numbers[0] % shape[1]
    if not (numbers == rows[:, None] * shape[1] + columns).all():
        raise ValueError("what is compared is no rows and columns of a result")
    return Places(tuple(rows.tolist()), tuple(columns.tolist()), shape)
