"""The built-in cases: a table of shapes and types with stable ids, and seeded inputs as NumPy arrays.

A case's inputs depend on its id alone (the seed is the SHA-256 of the id), so a case that fails on one
machine is drawn again, bit for bit, on another that has the same NumPy.

Values are those of a trained model (normal values, a few outlier columns) with the special ones mixed in:
a zero row, -0, subnormals, NaN and infinite rows; for tables NaN payloads; for ids duplicates and both ends.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from crosscheck import draws

__all__ = ["DTYPES", "ID_DTYPES", "OPS", "Case", "Inputs", "default_suite", "full_suite", "seed_of"]

Array = NDArray[Any]
Inputs = dict[str, Array]

OPS = ("embedding", "embedding_fp32", "lm_head", "lm_head_fp32", "selected_logprob", "linear_logprob")
DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16), "fp32": np.dtype(np.float32)}
ID_DTYPES = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
OTHER = {"bf16": "fp32", "fp16": "bf16", "fp32": "fp16"}  # the bias dtype of "another dtype"

# (rows, K, V)
_LM_HEAD_SHAPES = (
    (0, 128, 257), (1, 1, 1), (1, 4096, 257), (3, 127, 7), (3, 100, 33), (3, 3, 32768),
    (257, 128, 257), (257, 576, 128), (257, 4096, 100),
)  # fmt: skip
_LM_HEAD_FP32_SHAPES = ((3, 576, 513), (257, 128, 257))
# Each compilation costs some tenths of a second, and a thorough case needs five in place of one. One of linear_logprob
# costs seconds, and is one of lm_head_fp32 and selected_logprob.
_THOROUGH = frozenset([
    "embedding-bf16-N257-H576-V1000-int64", "embedding-fp16-N3-H1-V1-uint8", "embedding-fp32-N7-H100-V300-int16",
    "embedding_fp32-bf16-N2x3-H4096-V33-int32", "lm_head-bf16-N257-K576-V128-d3-bias_fp32",
    "lm_head-fp16-N3-K100-V33-d4-bias_bf16",
    "lm_head-fp32-N257-K128-V257-d4-bias", "lm_head_fp32-bf16-N3-K576-V513-dauto-nobias",
    "selected_logprob-fp32-N2x3-V300-int8",
])  # fmt: skip
# Of these the vocab and the hidden dimension are divided in all ways, of others in two.
_DIVIDED = frozenset([
    "embedding-fp32-N7-H100-V300-int16", "lm_head-fp16-N3-K100-V33-d4-bias_bf16",
    "selected_logprob-fp32-N2x3-V300-int8",
])  # fmt: skip
# (shape of the ids, H, V)
_EMBEDDING_SHAPES = (
    ((257,), 576, 1000), ((257,), 128, 32768), ((7,), 100, 300), ((2, 3), 4096, 33),
    ((3,), 1, 1), ((), 127, 300), ((0,), 128, 33), ((2, 0), 3, 7),
)  # fmt: skip
# (rows, V, dtypes of logits and targets)
_SELECTED_SHAPES: tuple[tuple[tuple[int, ...], int, str, str], ...] = (
    ((257,), 1000, "bf16", "int64"), ((2, 3), 300, "fp32", "int8"), ((3,), 32768, "fp16", "int32"),
    ((3,), 1, "fp32", "uint8"), ((), 257, "bf16", "uint64"), ((0,), 33, "fp16", "int16"),
)  # fmt: skip
# (rows, K, V, dtype, digits, bias, dtype of targets)
_LINEAR_SHAPES: tuple[tuple[tuple[int, ...], int, int, str, int | None, str | None, str], ...] = (
    ((5,), 100, 33, "bf16", 4, "bf16", "uint8"), ((257,), 128, 257, "fp16", 3, None, "int64"),
    ((2, 3), 576, 513, "fp32", None, "bf16", "int32"), ((3,), 1, 1, "bf16", 2, "fp32", "int8"),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One call of one operator.

    Arguments:
        op: one of OPS.
        dtype: of hidden and weight, of the table, or of logits: bf16, fp16 or fp32.
        rows: the leading shape, of hidden [*rows, K], of logits [*rows, V] or of the ids.
        width: K, or H; 0 where there is neither.
        vocab: V.
        digits: 2, 3 or 4; None leaves the choice to the operator.
        weight_dtype: of the LM head's weight, where it is not dtype.
        bias: the dtype of the LM head's bias; None for no bias.
        id_dtype: of the token ids, or of the targets.
    """

    op: str
    dtype: str
    rows: tuple[int, ...]
    width: int
    vocab: int
    digits: int | None = None
    weight_dtype: str | None = None
    bias: str | None = None
    id_dtype: str | None = None

    shared_out: ClassVar[bool] = True  # modes that compile may share out the gradients of such cases among them

    @property
    def id(self) -> str:
        rows = "x".join(map(str, self.rows)) or "scalar"
        if self.op.startswith("embedding"):
            return f"{self.op}-{self.dtype}-N{rows}-H{self.width}-V{self.vocab}-{self.id_dtype}"
        if self.op == "selected_logprob":
            return f"{self.op}-{self.dtype}-N{rows}-V{self.vocab}-{self.id_dtype}"
        dtype = self.dtype + (f"x{self.weight_dtype}" if self.weight_dtype else "")
        digits = "auto" if self.digits is None else self.digits
        bias = {None: "nobias", self.dtype: "bias"}.get(self.bias, f"bias_{self.bias}")
        targets = f"-{self.id_dtype}" if self.id_dtype else ""
        return f"{self.op}-{dtype}-N{rows}-K{self.width}-V{self.vocab}-d{digits}-{bias}{targets}"

    @property
    def thorough(self) -> bool:
        """Whether modes that compile, too, try the transforms that cost them another compilation."""
        return self.id in _THOROUGH

    @property
    def divided(self) -> bool:
        """Whether the vocab and the hidden dimension are divided into all numbers of shards, and not into two alone."""
        return self.id in _DIVIDED

    @property
    def seed(self) -> int:
        return seed_of(self.id)

    def inputs(self) -> Inputs:
        """The arguments of the call by name, drawn anew."""
        rng = np.random.default_rng(self.seed)
        if self.op.startswith("embedding"):
            assert self.id_dtype is not None
            ids = draws.token_ids(rng, self.rows, self.vocab, np.dtype(self.id_dtype))
            return {"token_ids": ids, "weight": draws.table(rng, self.vocab, self.width, DTYPES[self.dtype])}
        if self.op.endswith("logprob"):
            return self._logprob_inputs(rng)
        hidden = draws.hidden(rng, self.rows, self.width, DTYPES[self.dtype])
        weight = draws.weight(rng, self.vocab, self.width, DTYPES[self.weight_dtype or self.dtype])
        inputs = {"hidden": hidden, "weight": weight}
        if self.bias is not None:
            inputs["bias"] = draws.bias(rng, self.vocab, DTYPES[self.bias])
        return inputs

    def _logprob_inputs(self, rng: np.random.Generator) -> Inputs:
        """Non-finite hidden states in many rows alone: they take the whole gradient of the weight with them."""
        assert self.id_dtype is not None
        dtype = DTYPES[self.dtype]
        targets = draws.token_ids(rng, self.rows, self.vocab, np.dtype(self.id_dtype))
        if self.op == "selected_logprob":
            return {"logits": draws.logits(rng, self.rows, self.vocab, dtype), "target_ids": targets}
        finite = int(np.prod(self.rows)) < 100
        inputs = {
            "hidden": draws.hidden(rng, self.rows, self.width, dtype, finite=finite),
            "weight": draws.weight(rng, self.vocab, self.width, dtype, finite=True),
            "target_ids": targets,
        }
        return inputs if self.bias is None else {**inputs, "bias": draws.bias(rng, self.vocab, DTYPES[self.bias])}

    def to_json(self) -> dict[str, Any]:
        return {"kind": "case", **asdict(self)}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> "Case":
        names = {name: value for name, value in fields.items() if name != "kind"}
        return Case(**{**names, "rows": tuple(names["rows"])})


def seed_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


# Suites ----------------------------------------------------------------------------------------------
def default_suite() -> tuple[Case, ...]:
    """Each shape with each dtype; digits and bias turn, so that every triple (dtype, digits, bias) occurs."""
    return (*_default_embedding(), *_default_lm_head(), *_default_lm_head_fp32(), *_default_logprob())


def full_suite() -> tuple[Case, ...]:
    """The default suite and the whole product of shapes, dtypes, digits and biases."""
    every = {case.id: case for case in (*default_suite(), *_whole_product())}
    return tuple(sorted(every.values(), key=lambda case: OPS.index(case.op)))


def _biases(dtype: str) -> tuple[str | None, str, str]:
    return None, dtype, OTHER[dtype]


def _default_lm_head() -> Iterator[Case]:
    for (i, (rows, width, vocab)), (j, dtype) in product(enumerate(_LM_HEAD_SHAPES), enumerate(DTYPES)):
        digits = (2, 3, 4)[(i + j) % 3]
        bias = _biases(dtype)[(i // 3 + j) % 3]
        yield Case("lm_head", dtype, (rows,), width, vocab, digits, bias=bias)
    for dtype in DTYPES:  # mixed dtypes, leading axes, the operator's own choice of digits
        yield Case("lm_head", dtype, (2, 3), 100, 33, weight_dtype=OTHER[dtype], bias=dtype)


def _default_lm_head_fp32() -> Iterator[Case]:
    for (i, (rows, width, vocab)), (j, dtype) in product(enumerate(_LM_HEAD_FP32_SHAPES), enumerate(DTYPES)):
        yield Case("lm_head_fp32", dtype, (rows,), width, vocab, bias=_biases(dtype)[(i + j) % 3])


def _default_embedding() -> Iterator[Case]:
    dtypes = list(DTYPES)
    for i, (ids, width, vocab) in enumerate(_EMBEDDING_SHAPES):
        yield Case("embedding", dtypes[i % 3], ids, width, vocab, id_dtype=ID_DTYPES[i])
    for i, dtype in enumerate(dtypes):
        yield Case("embedding", dtype, (7,), 100, 300, id_dtype=ID_DTYPES[2 * i + 3])
    yield Case("embedding", "bf16", (2, 3), 4096, 33, id_dtype="int64")
    for i, (dtype, (ids, width, vocab)) in enumerate(product(dtypes, _EMBEDDING_SHAPES[2:4])):
        yield Case("embedding_fp32", dtype, ids, width, vocab, id_dtype=ID_DTYPES[i])


def _default_logprob() -> Iterator[Case]:
    for rows, vocab, dtype, id_dtype in _SELECTED_SHAPES:
        yield Case("selected_logprob", dtype, rows, 0, vocab, id_dtype=id_dtype)
    for rows, width, vocab, dtype, digits, bias, id_dtype in _LINEAR_SHAPES:
        yield Case("linear_logprob", dtype, rows, width, vocab, digits, bias=bias, id_dtype=id_dtype)


def _whole_product() -> Iterator[Case]:
    for (rows, width, vocab), dtype, digits in product(_LM_HEAD_SHAPES, DTYPES, (2, 3, 4, None)):
        for bias in _biases(dtype):
            plain = Case("lm_head", dtype, (rows,), width, vocab, digits, bias=bias)
            yield plain
            if digits in (4, None):
                yield replace(plain, op="lm_head_fp32")
            if rows == 3:
                yield from (replace(plain, weight_dtype=other) for other in DTYPES if other != dtype)
    for op, (ids, width, vocab), dtype, id_dtype in product(
        ("embedding", "embedding_fp32"), _EMBEDDING_SHAPES, DTYPES, ID_DTYPES
    ):
        yield Case(op, dtype, ids, width, vocab, id_dtype=id_dtype)
    for (leading, vocab, *_), dtype, id_dtype in product(_SELECTED_SHAPES, DTYPES, ID_DTYPES):
        yield Case("selected_logprob", dtype, leading, 0, vocab, id_dtype=id_dtype)
    for (leading, width, vocab, *_), dtype, digits in product(_LINEAR_SHAPES, DTYPES, (2, 3, 4, None)):
        for bias in _biases(dtype):
            yield Case("linear_logprob", dtype, leading, width, vocab, digits, bias=bias, id_dtype="int64")
