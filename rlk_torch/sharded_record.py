"""Before ranks exchange what they hold, they compare what they were called with.

Ranks that disagree would wait for each other, or add up what does not belong together. JAX has no twin of this: the
devices of one program cannot disagree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor

from rlk_torch.checks import FLOAT_DTYPES, INTEGER_DTYPES, as_int64
from rlk_torch.floats import bits_of
from rlk_torch.sharded import Ranks

OPERATORS = (
    "sharded_embedding", "sharded_embedding_fp32", "sharded_lm_head", "sharded_lm_head_fp32", "row_parallel_lm_head",
    "row_parallel_lm_head_fp32", "sharded_selected_logprob", "sharded_linear_logprob",
)  # fmt: skip
_SIZE = 48  # of a record, the same for all operators
_SIZES = 8  # of a shape, the last ones
_DTYPES = (*FLOAT_DTYPES, *INTEGER_DTYPES)
_NONE = -1
_BLOCK = 2**20  # elements whose checksum is made at a time
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_T = TypeVar("_T")


@dataclass(frozen=True)
class Fact:
    """Something that has to be the same on every rank.

    Arguments:
        label: what it is, for sentences: "digits".
        value: a shape, a dtype or None, an integer, or bits.
        kind: "operator", "shape", "dtype", "integer" or "bits": every rank's for a label, whatever the value.
    """

    label: str
    value: Any
    kind: str = "integer"

    @property
    def integers(self) -> list[int]:
        """The value as integers, of one number for each kind."""
        if self.kind == "shape":
            sizes = list(self.value)[-_SIZES:]
            return [len(self.value), prod(self.value), *sizes, *[_NONE] * (_SIZES - len(sizes))]
        if self.kind == "operator":
            return [OPERATORS.index(self.value)]
        if self.kind == "dtype":
            return [_NONE if self.value is None else _DTYPES.index(self.value)]
        return [_NONE if self.value is None else int(self.value)]

    def shown(self, integers: list[int]) -> str:
        """Another rank's value of this fact."""
        if self.kind == "shape":
            return f"{tuple(integers[2 : 2 + min(integers[0], _SIZES)])}"
        if self.kind == "operator":
            return OPERATORS[integers[0]]
        if self.kind == "bits":
            return f"{integers[0] & 0xFFFFFFFFFFFFFFFF:#018x}"
        if integers[0] == _NONE:
            return "None"
        return str(_DTYPES[integers[0]]).removeprefix("torch.") if self.kind == "dtype" else str(integers[0])


def agreed(name: str, ranks: Ranks, check_shapes: bool, prepare: Callable[[], tuple[_T, list[Fact]]]) -> _T:
    """What `prepare` makes of this rank's arguments, once every rank has made its own and the facts are the same.

    A rank that refuses its arguments says so to the others before it raises, so that they do not wait for it.
    """
    if not check_shapes:
        return prepare()[0]
    try:
        call, facts = prepare()
    except Exception:  # also what a conversion of somebody's object raises
        ranks.all_records(_record(name, True, []))
        raise
    records = ranks.all_records(_record(name, False, facts))
    refused = [rank for rank, record in enumerate(records) if record[1]]
    if refused:
        raise ValueError(
            f"{_ranks(refused)} refused the arguments of {name} with an error there; expected a call that every rank "
            "accepts: see that error"
        )
    differences = _differences([Fact("the operator", name, "operator")], records, 0)
    if not differences:
        differences = _differences(facts, records, 2)
    if differences:
        raise ValueError(
            f"the ranks of a group differ in their calls: {'; '.join(differences)}; expected one call on all ranks: "
            "pass the same everywhere"
        )
    return call


def of_hidden(hidden: Tensor, weight: Any, bias: Tensor | None, digits: int, *, sharded: bool) -> list[Fact]:
    """Facts of an LM head, whose hidden is whole on every rank or sharded along its last dimension."""
    shape = ("hidden's leading shape", hidden.shape[:-1]) if sharded else ("hidden's shape", hidden.shape)
    facts = [
        Fact(*shape, "shape"),
        Fact("hidden's dtype", hidden.dtype, "dtype"),
        Fact("weight's dtype (None: an Aligned)", getattr(weight, "dtype", None), "dtype"),
        Fact("bias' dtype", None if bias is None else bias.dtype, "dtype"),
        Fact("digits", digits),
        Fact("hidden asks for a gradient (1: yes)", torch.is_grad_enabled() and hidden.requires_grad),
    ]
    if sharded:
        return [*facts, Fact("bias' checksum", 0 if bias is None else checksum(bias), "bits")]
    return [*facts, Fact("hidden's checksum", checksum(hidden), "bits")]


def checksum(x: Tensor) -> int:
    """Of the bits of an array and of their places: the sum of a mixture of the two, modulo 2^64.

    What mixes them is the finaliser of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", 2014): sums of bits with weights would be equal for many arrays that people do mistake.
    """
    x = x.detach()
    bits = (bits_of(x) if x.is_floating_point() else as_int64(x)).reshape(-1)
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    for start in range(0, len(bits), _BLOCK):
        some = bits[start : start + _BLOCK].long()
        mixed = some + torch.arange(start + 1, start + 1 + len(some), device=x.device) * _GOLDEN
        for shift, factor in _MIX:
            mixed = (mixed ^ (mixed >> shift)) * factor
        total += (mixed ^ (mixed >> 31)).sum()
    return int(total)


def _record(name: str, refused: bool, facts: list[Fact]) -> list[int]:
    record = [OPERATORS.index(name), int(refused), *(integer for fact in facts for integer in fact.integers)]
    return record + [_NONE] * (_SIZE - len(record))


def _differences(facts: list[Fact], records: list[list[int]], at: int) -> list[str]:
    """Who has which value, of the facts in which ranks differ; they begin at a place of the records."""
    differences = []
    for fact in facts:
        end = at + len(fact.integers)
        held: dict[tuple[int, ...], list[int]] = {}
        for rank, record in enumerate(records):
            held.setdefault(tuple(record[at:end]), []).append(rank)
        if len(held) > 1:
            who = [f"{fact.shown(list(value))} on {_ranks(ranks)}" for value, ranks in held.items()]
            differences.append(f"{fact.label} is {', '.join(who)}")
        at = end
    return differences


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
