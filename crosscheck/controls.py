"""Negative controls: two backends with a planted fault each, which every run with candidates must find.

A judge that finds nothing wrong with a candidate is to be believed where, in the same run, it finds what is wrong
with these. They are the contract in NumPy, spoiled.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import NDArray

from crosscheck.backends import Call, NumpyAdapter
from crosscheck.bits import to_bits
from crosscheck.cases import Case
from crosscheck.judge_candidate import BATCH
from crosscheck.operators import as_rows
from crosscheck.registry import Backend
from crosscheck.verdict import Verdict

__all__ = ["CONTROLS", "Caught", "Control", "control_cases", "looked_at"]

Array = NDArray[Any]


class _Spoiled(NumpyAdapter):
    def run(self, op: str, inputs: Call, digits: int | None, mode: str) -> Any:
        result = super().run(op, inputs, digits, mode).copy()
        rows = as_rows(result, inputs)
        if self.spoils(len(rows)):
            to_bits(rows)[0, 0] ^= 1
        return rows.reshape(result.shape)

    def spoils(self, rows: int) -> bool:
        raise NotImplementedError

    def implementation(self, op: str, inputs: Call | None = None, digits: int | None = None) -> str:
        return "planted"


class BatchVariant(_Spoiled):
    """A row has another bit where it is alone."""

    def spoils(self, rows: int) -> bool:
        return rows == 1


class FlippedBit(_Spoiled):
    """One bit of one element is wrong, in every batch."""

    def spoils(self, rows: int) -> bool:
        return rows > 0


def _batch(verdict: Verdict) -> bool:
    return any(verdict.checks[column].failed for column in BATCH)


def _one_element(verdict: Verdict) -> bool:
    differences = [failure.difference for failure in verdict.checks["bits"].failed]
    return [difference and difference["count"] for difference in differences] == [1]


@dataclass(frozen=True)
class Control:
    """A planted fault, and whether a verdict names it."""

    what: str
    backend: Backend
    names_it: Callable[[Verdict], bool]


CONTROLS = (
    Control(
        "a batch-variant backend",
        Backend("control-batch", "crosscheck.controls:BatchVariant", "cpu", ("eager",)),
        lambda verdict: _batch(verdict) and not verdict.checks["bits"].failed,
    ),
    Control(
        "a backend with one flipped bit",
        Backend("control-bit", "crosscheck.controls:FlippedBit", "cpu", ("eager",)),
        _one_element,
    ),
)


def control_cases(op: str) -> list[Case]:
    """One cheap case of the operator."""
    width = 0 if op == "selected_logprob" else 16
    return [Case(op, "bf16", (3,), width, 9, id_dtype=None if op.startswith("lm_head") else "int32")]


@dataclass(frozen=True)
class Caught:
    """Whether a control was caught, on every case."""

    name: str
    what: str
    caught: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def looked_at(verdicts: Sequence[Verdict]) -> list[Caught]:
    found = []
    for control in CONTROLS:
        own = [verdict for verdict in verdicts if verdict.backend == control.backend.name]
        caught = bool(own) and all(verdict.status == "judged" and control.names_it(verdict) for verdict in own)
        found.append(Caught(control.backend.name, control.what, caught))
    return found
