"""The inputs of a call with its rows in one axis, and the ways in which transforms change them.

The *rows* of a call are the rows of hidden [..., K] or logits [..., V], or the single ids of token_ids [...];
`crosscheck.operators` says what else has an entry for each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck import contract
from crosscheck.cases import Inputs
from crosscheck.operators import BY_ROW, IDS, leading, row_axes

__all__ = ["Call", "Rows", "contract_result", "named_digits"]

Array = NDArray[Any]


def named_digits(digits: int | None) -> dict[str, int]:
    """The argument `digits` of an operator; None leaves the choice to it."""
    return {} if digits is None else {"digits": digits}


def contract_result(op: str, inputs: Inputs, digits: int | None) -> Array:
    """What the contract gives for a call."""
    result: Array = getattr(contract, op)(**inputs, **named_digits(digits))
    return result


@dataclass(frozen=True)
class Rows:
    """Rows of a call: of each argument that has an entry for each row, an array [rows, ...]."""

    arrays: Inputs

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, index: Any) -> "Rows":
        return self._each(lambda name, x: x[index])

    def then(self, more: "Rows") -> "Rows":
        """These rows, and others after them."""
        return self._each(lambda name, x: np.concatenate([x, more.arrays[name]]))

    def where(self, keep: Array | slice, others: "Rows") -> "Rows":
        """Some of these rows, and in the places of the rest those of as many others."""

        def mixed(name: str, x: Array) -> Array:
            new = others.arrays[name].copy()
            new[keep] = x[keep]
            return new

        return self._each(mixed)

    def but(self, **arrays: Array) -> "Rows":
        """With other arrays for some arguments."""
        return Rows({**self.arrays, **arrays})

    def _each(self, change: Callable[[str, Array], Array]) -> "Rows":
        return Rows({name: change(name, x) for name, x in self.arrays.items()})


@dataclass(frozen=True)
class Call:
    """Inputs, and the generator that draws what replaces them, where something does. Changes give new inputs."""

    inputs: Inputs
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def axis(self) -> str:
        return leading(self.inputs)

    @property
    def vocab(self) -> int:
        return self.inputs["logits"].shape[-1] if "logits" in self.inputs else len(self.inputs["weight"])

    @property
    def large(self) -> Array:
        """The argument that the vocab makes large."""
        return self.inputs["logits" if "logits" in self.inputs else "weight"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading axes."""
        x = self.inputs[self.axis]
        return x.shape[: x.ndim - row_axes(self.axis, self.inputs)]

    @property
    def rows(self) -> Rows:
        count = int(np.prod(self.shape))
        return Rows({name: x.reshape(count, *self._own(name, x)) for name, x in self.inputs.items() if name in BY_ROW})

    def _own(self, name: str, x: Array) -> tuple[int, ...]:
        """The axes of one row."""
        return x.shape[x.ndim - row_axes(name, self.inputs) :]

    @property
    def ids(self) -> str | None:
        """The name of the argument that has ids in the vocab."""
        return next((name for name in IDS if name in self.inputs), None)

    def with_rows(self, rows: Rows, **others: Array) -> Inputs:
        """The call with other rows, in the leading shape of the original where their number is the same."""
        leading_shape = self.shape if len(rows) == int(np.prod(self.shape)) else (len(rows),)
        shaped = {name: x.reshape((*leading_shape, *x.shape[1:])) for name, x in rows.arrays.items()}
        return {**self.inputs, **shaped, **others}

    def in_shape(self, shape: Sequence[int]) -> Inputs:
        """The same call with other leading axes."""
        return {**self.inputs, **{name: x.reshape((*shape, *x.shape[1:])) for name, x in self.rows.arrays.items()}}

    def with_bad_id(self, bad: int) -> Inputs:
        """The call with another last id."""
        name = self.ids
        assert name is not None
        ids = self.inputs[name].reshape(-1).copy()
        ids[-1] = bad
        return {**self.inputs, name: ids.reshape(self.shape)}

    def with_vocab(self, index: Any) -> Inputs:
        """The LM head of a part of the vocab, or of a permuted one; the logits, too, and upstream gradients of them."""
        part = dict(self.inputs)
        for name in ("weight", "bias"):
            if name in part:
                part[name] = part[name][index]
        for name in ("logits", "grad"):
            if name in part and (name == "logits" or "target_ids" not in part):
                part[name] = part[name][..., index]
        return part

    def permuted(self, *, reverse: bool = False) -> tuple[Array, Inputs]:
        """An order of the vocab, and the call with it; what the dtype of the ids cannot name stays in its place.

        Ids that are not in the vocab are not there in any order.
        """
        count = self.vocab
        moved = self._named(self.inputs["target_ids"]) if "target_ids" in self.inputs else count
        first = np.arange(moved)[::-1] if reverse else self.rng.permutation(moved)
        order = np.concatenate([first, np.arange(moved, count)])
        changed = self.with_vocab(order)
        if "target_ids" in self.inputs:
            targets = self.inputs["target_ids"]
            places = np.argsort(order)[np.where(self.good_ids, targets, 0).astype(np.int64)]
            changed["target_ids"] = np.where(self.good_ids, places, targets).astype(targets.dtype)
        return order, changed

    @property
    def good_ids(self) -> Array:
        """Which ids are in the vocab."""
        ids = self.inputs[str(self.ids)]
        return np.asarray((ids >= 0) & (ids < self.vocab))

    def _named(self, ids: Array) -> int:
        """How many ids of the vocab the dtype holds."""
        return min(self.vocab, int(np.iinfo(ids.dtype).max) + 1)

    def garbage(self, count: int, *, finite: bool) -> Rows:
        """Rows that a careless kernel would notice: huge and of both signs, or NaN and infinite; any valid ids."""
        return Rows({name: self._garbage(x, count, finite) for name, x in self.rows.arrays.items() if name != "grad"})

    def _garbage(self, rows: Array, count: int, finite: bool) -> Array:
        if rows.dtype.kind in "iu":
            return self.rng.integers(0, self._named(rows), count).astype(rows.dtype)
        values = self.rng.standard_normal((count, rows.shape[1])) * 1e4
        if not finite:
            values[:, ::2], values[:, 1::3] = np.nan, np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(rows.dtype)

    def same(self, count: int, token: int = 0) -> Rows:
        """Rows of zeros, or of one token."""
        return Rows(
            {
                name: np.full((count, *x.shape[1:]), token if name == "token_ids" else 0, x.dtype)
                for name, x in self.rows.arrays.items()
            }
        )
