"""Cases on real tables: a checkpoint's embedding and LM head, real token ids, real hidden states.

`real_cases` checks everything that can be wrong with the files before any work starts. The cases it gives name
files, not arrays: each process reads the tables that it needs.
"""

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crosscheck.cases import DTYPES, OPS, Inputs, seed_of
from crosscheck.checkpoint import CheckpointError, load_array, load_tensor
from crosscheck.gradients import part_of

__all__ = ["RealCase", "RealInput", "real_cases"]

Array = NDArray[Any]


@dataclass(frozen=True)
class RealInput:
    """What to read.

    Arguments:
        checkpoint: a safetensors file, an index, or a folder with one of them.
        embedding_key, lm_head_key: tensors [V, H] and [V, K].
        token_ids: a .npy file of ids.
        hidden: hidden states [..., K]; None takes the embedding rows of the ids.
        dtype: bf16, fp16 or fp32 to round everything to; None leaves it as it is stored.
        max_rows: ids and hidden rows beyond these are left out.
    """

    checkpoint: str
    embedding_key: str
    lm_head_key: str
    token_ids: str
    hidden: str | None
    dtype: str | None
    max_rows: int

    def table(self) -> Array:
        return _tensor(self.checkpoint, self.embedding_key, self.dtype)

    def head(self) -> Array:
        return _tensor(self.checkpoint, self.lm_head_key, self.dtype)

    def ids(self) -> Array:
        ids = load_array(self.token_ids, "token_ids")
        return ids if ids.size <= self.max_rows else ids.reshape(-1)[: self.max_rows]

    def targets(self, rows: int, vocab: int) -> Array:
        """For each row the id that follows, the first one after the last; within the vocab of the LM head."""
        ids = self.ids().reshape(-1)
        following = np.resize(np.roll(ids, -1), rows)
        return (following.astype(np.uint64) % np.uint64(vocab)).astype(ids.dtype)

    def states(self) -> Array:
        """[rows, K]."""
        if self.hidden is None:
            return self.table()[self.ids().reshape(-1).astype(np.int64)]
        hidden = load_array(self.hidden, "hidden")
        rows = hidden.reshape(int(np.prod(hidden.shape[:-1])), hidden.shape[-1])
        return _as_dtype(rows[: self.max_rows], self.dtype)


@dataclass(frozen=True)
class RealCase:
    """One operator on real input; `id` names the sizes and the dtype."""

    id: str
    op: str
    source: RealInput
    digits: None = None
    thorough: bool = True
    divided: bool = False

    shared_out: ClassVar[bool] = False

    @property
    def seed(self) -> int:
        return seed_of(self.id)

    def inputs(self) -> Inputs:
        if self.op.startswith("embedding"):
            return {"token_ids": self.source.ids(), "weight": self.source.table()}
        states, head = self.source.states(), self.source.head()
        if self.op == "linear_logprob":
            return {"hidden": states, "weight": head, "target_ids": self.source.targets(len(states), len(head))}
        return {"hidden": states, "weight": head}

    def to_json(self) -> dict[str, Any]:
        return {"kind": "checkpoint", "id": self.id, "op": self.op, "source": asdict(self.source)}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> "RealCase":
        return RealCase(fields["id"], fields["op"], RealInput(**fields["source"]))


@functools.lru_cache(maxsize=2)
def _tensor(checkpoint: str, key: str, dtype: str | None) -> Array:
    tensor = _as_dtype(load_tensor(checkpoint, key), dtype)
    tensor.flags.writeable = False  # shared by the cases of this process
    return tensor


def _as_dtype(x: Array, dtype: str | None) -> Array:
    if dtype is None or x.dtype == DTYPES[dtype]:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(DTYPES[dtype])


def real_cases(source: RealInput, ops: Sequence[str] = OPS) -> tuple[list[RealCase], list[str]]:
    """The cases of the named operators, and notes on what was taken for what.

    Raises:
        CheckpointError: a file, a key, an id or a shape that cannot be used, in one sentence.
    """
    notes = []
    table, ids = source.table(), load_array(source.token_ids, "token_ids")
    _check_ids(ids, len(table), source)
    cases = [_case(op, source.ids(), table, source) for op in ops if op.startswith("embedding")]
    if ids.size > source.max_rows:
        first = "first" if source.max_rows == 1 else f"first {source.max_rows}"
        notes.append(f"the {first} of {ids.size} ids {'is' if source.max_rows == 1 else 'are'} used (--max-rows)")
    of_states = [op for op in ops if op.startswith("lm_head") or op == "linear_logprob"]
    if of_states:
        head, states = source.head(), source.states()
        _check_states(states, head, source)
        cases += [_case(op, states, head, source) for op in of_states]
        if "linear_logprob" in ops:
            notes.append(_targets_note(ids, len(head), source))
        if source.hidden is None:
            notes.append("no --hidden: the embedding rows of the ids serve as hidden states")
        if source.lm_head_key == source.embedding_key:
            notes.append(f"the LM head is the embedding table {source.embedding_key}, as in tied models")
    if source.dtype is not None:
        notes.append(f"tables and hidden states are rounded to {source.dtype} (--dtype)")
    parts = dict.fromkeys(part_of(case.inputs())[1] for case in cases)
    notes += [f"gradients are judged with {part}" for part in parts if part]
    return cases, notes


def _targets_note(ids: Array, vocab: int, source: RealInput) -> str:
    note = "linear_logprob is that of the id that follows in --token-ids, and in the last row of the first id"
    if not (ids.reshape(-1)[: source.max_rows] < vocab).all():
        beyond = f"ids from {vocab} on, which {source.lm_head_key} has not"
        note += f"; of {beyond}, their remainders modulo {vocab} are taken"
    return note


def _case(op: str, rows: Array, weight: Array, source: RealInput) -> RealCase:
    dtype = {dtype: name for name, dtype in DTYPES.items()}
    count = rows.size if op.startswith("embedding") else len(rows)
    kind = dtype[weight.dtype] if rows.dtype not in dtype else dtype[rows.dtype]
    if rows.dtype in dtype and rows.dtype != weight.dtype:
        kind += f"x{dtype[weight.dtype]}"
    width = "H" if op.startswith("embedding") else "K"
    return RealCase(f"{op}-{kind}-N{count}-{width}{weight.shape[1]}-V{weight.shape[0]}-checkpoint", op, source)


def _check_ids(ids: Array, vocab: int, source: RealInput) -> None:
    if not ids.size:
        raise CheckpointError(f"{source.token_ids} holds no ids: nothing compared")
    bad = (ids < 0) | (ids >= vocab)
    if bad.any():
        at = [int(i) for i in np.argwhere(bad)[0]]
        raise CheckpointError(
            f"{source.token_ids}: token_ids{at} is {ids[tuple(at)]}; expected 0 <= id < {vocab}, the vocab of "
            f"{source.embedding_key}: were the ids made with this model's tokenizer?"
        )


def _check_states(states: Array, head: Array, source: RealInput) -> None:
    if not len(states):
        raise CheckpointError(f"{source.hidden} holds no rows: nothing compared")
    if states.shape[1] != head.shape[1]:
        origin = source.hidden or f"the embedding {source.embedding_key}"
        raise CheckpointError(
            f"the hidden states of {origin} have width {states.shape[1]}, and {source.lm_head_key} has shape "
            f"{head.shape}; expected [..., K] and [V, K] with one K"
        )
