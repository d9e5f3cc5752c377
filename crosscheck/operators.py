"""What the operators of the contract take, by the names of their arguments.

A call has *rows*: those of hidden [..., K] or logits [..., V], or the single ids of token_ids [...]. Every argument
whose leading axes are those of the rows changes together with them.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BY_ROW",
    "CALLS",
    "IDS",
    "as_rows",
    "gradients_as_rows",
    "leading",
    "positional",
    "result_shape",
    "row_axes",
    "wanted",
]

Array = NDArray[Any]

IDS = ("token_ids", "target_ids")
CALLS = ({"token_ids", "weight"}, {"hidden", "weight"}, {"logits", "target_ids"}, {"hidden", "weight", "target_ids"})
BY_ROW = ("token_ids", "hidden", "logits", "target_ids", "grad")  # what has an entry for each row


def leading(inputs: Container[str]) -> str:
    """The argument that gives a call its rows.

    Example:
        >>> leading(("hidden", "weight", "target_ids"))
        'hidden'
    """
    return next(name for name in BY_ROW if name in inputs)


def positional(inputs: Container[str]) -> list[str]:
    """The arguments that a call must have, in their order; a bias comes after them.

    Example:
        >>> positional({"target_ids", "weight", "hidden", "bias"})
        ['hidden', 'weight', 'target_ids']
    """
    return [name for name in ("token_ids", "hidden", "logits", "weight", "target_ids") if name in inputs]


def wanted(inputs: Iterable[str]) -> list[str]:
    """The arguments that have a gradient, in their order: all but ids and the upstream gradient itself."""
    return [name for name in inputs if name not in (*IDS, "grad")]


def row_axes(name: str, inputs: Container[str]) -> int:
    """How many axes of an argument belong to one row."""
    return 0 if name in IDS or (name == "grad" and "target_ids" in inputs) else 1


def result_shape(inputs: Mapping[str, Array]) -> tuple[int, ...]:
    if "target_ids" in inputs:
        return inputs["target_ids"].shape
    if "token_ids" in inputs:
        return (*inputs["token_ids"].shape, inputs["weight"].shape[1])
    return (*inputs["hidden"].shape[:-1], inputs["weight"].shape[0])


def gradients_as_rows(found: Mapping[str, Array]) -> dict[str, Array]:
    """Gradients by name, those of hidden states and logits as [rows, K] and [rows, V]."""
    return {name: as_rows(array, ()) if name in BY_ROW else array for name, array in found.items()}


def as_rows(result: Array, inputs: Container[str]) -> Array:
    """The result of a call as [rows, width]; of log-probabilities [rows, 1]."""
    if "target_ids" in inputs:
        return result.reshape(result.size, 1)
    return result.reshape(int(np.prod(result.shape[:-1])), result.shape[-1])
