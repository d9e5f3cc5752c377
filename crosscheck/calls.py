"""The inputs of a call with its rows in one axis, and the ways in which transforms change them.

The *rows* of a call are the rows of hidden [..., K], or the single ids of token_ids [...].
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck import contract
from crosscheck.cases import Inputs

__all__ = ["Call", "contract_result", "named_digits"]

Array = NDArray[Any]


def named_digits(digits: int | None) -> dict[str, int]:
    """The argument `digits` of an operator; None leaves the choice to it."""
    return {} if digits is None else {"digits": digits}


def contract_result(op: str, inputs: Inputs, digits: int | None) -> Array:
    """What the contract gives for a call."""
    result: Array = getattr(contract, op)(**inputs, **named_digits(digits))
    return result


@dataclass(frozen=True)
class Call:
    """Inputs, and the generator that draws what replaces them. Changes give new inputs."""

    inputs: Inputs
    rng: np.random.Generator

    @property
    def axis(self) -> str:
        return "token_ids" if "token_ids" in self.inputs else "hidden"

    @property
    def weight(self) -> Array:
        return self.inputs["weight"]

    @property
    def rows(self) -> Array:
        x = self.inputs[self.axis]
        return x.reshape(-1) if self.axis == "token_ids" else x.reshape(-1, x.shape[-1])

    def with_rows(self, rows: Array, **others: Array) -> Inputs:
        """The call with other rows, in the leading shape of the original where their number is the same."""
        if len(rows) == len(self.rows):
            rows = rows.reshape(self.inputs[self.axis].shape)
        return {**self.inputs, self.axis: rows, **others}

    def with_vocab(self, index: Any) -> Inputs:
        """The LM head of a part of the vocab, or of a permuted one."""
        part = dict(self.inputs)
        for name in ("weight", "bias"):
            if name in part:
                part[name] = part[name][index]
        return part

    def garbage(self, count: int, *, finite: bool) -> Array:
        """Rows that a careless kernel would notice: huge and of both signs, or NaN and infinite; any valid ids."""
        if self.axis == "token_ids":
            top = min(len(self.weight), int(np.iinfo(self.rows.dtype).max) + 1)
            return self.rng.integers(0, top, count).astype(self.rows.dtype)
        values = self.rng.standard_normal((count, self.rows.shape[1])) * 1e4
        if not finite:
            values[:, ::2], values[:, 1::3] = np.nan, np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(self.rows.dtype)
