"""Goldens: folders of inputs and outputs that no framework owns. docs/goldens.md has the format, field by field.

Everything that is read is checked before it is used: the manifest field by field, each file against the manifest,
each array against its digest. Every fault is a `GoldenError` whose one sentence a command line can print as it is.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from crosscheck.golden_arrays import Blocks, Whole, block_rows, rows_and_width

__all__ = ["MANIFEST", "SCHEMA", "Golden", "GoldenCase", "GoldenError", "Stored", "open_golden"]

Array = NDArray[Any]
SCHEMA = "crosscheck-golden/1"
MANIFEST = "manifest.json"
DTYPES = {
    "bool": "BOOL", "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64",
    **{f"int{width}": f"I{width}" for width in (8, 16, 32, 64)},
    **{f"uint{width}": f"U{width}" for width in (8, 16, 32, 64)},
}  # fmt: skip


class GoldenError(ValueError):
    """A golden that cannot be used; the text says which file or array, why, and what to do."""


@dataclass(frozen=True)
class Stored:
    """What the manifest says of an array.

    Arguments:
        sha256: over dtype, shape and little-endian bits, as `crosscheck.digest` has it.
        sampled_rows: None where the array is stored whole.
        blocks_sha256, sampled_sha256: of the two arrays that stand for one that is not stored whole.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    sampled_rows: tuple[int, ...] | None = None
    blocks_sha256: str = ""
    sampled_sha256: str = ""

    def tensors(self, name: str) -> dict[str, tuple[str, tuple[int, ...], str]]:
        """The tensors of the file that are this array: dtype, shape and digest of each."""
        if self.sampled_rows is None:
            return {name: (self.dtype, self.shape, self.sha256)}
        rows, width = rows_and_width(self.shape)
        blocks = ("uint8", (-(-rows // block_rows(self.shape)), 32), self.blocks_sha256)
        sampled = (self.dtype, (len(self.sampled_rows), width), self.sampled_sha256)
        return {f"{name}.blocks": blocks, f"{name}.sampled": sampled}


@dataclass(frozen=True)
class GoldenCase:
    """One call.

    Arguments:
        case: what its inputs were drawn from.
        arrays: by the names inputs.NAME and outputs.NAME; gradients by inputs.grad and outputs.grad.NAME.
        gradients: in words, which part of the inputs they are of, or why there are none; "" where none were asked for.
        untold: why a candidate could not be told the digits; else "".
    """

    id: str
    op: str
    digits: int | None
    file: str
    implementation: str
    case: Mapping[str, Any]
    arrays: Mapping[str, Stored] = field(default_factory=dict)
    gradients: str = ""
    untold: str = ""

    def named(self, kind: str) -> dict[str, Stored]:
        """The arrays of a kind, "inputs" or "outputs", without it in their names."""
        return {name.partition(".")[2]: x for name, x in self.arrays.items() if name.startswith(f"{kind}.")}

    @property
    def has_gradients(self) -> bool:
        return any(map(_of_gradients, self.arrays))

    def without_gradients(self) -> "GoldenCase":
        return replace(self, arrays={name: x for name, x in self.arrays.items() if not _of_gradients(name)})


def _of_gradients(name: str) -> bool:
    return name == "inputs.grad" or name.startswith("outputs.grad.")


@dataclass(frozen=True)
class Golden:
    """A folder whose manifest has been read and checked; arrays are read, and checked, when they are asked for.

    Arguments:
        not_offered: the cases that a candidate has no answer to, {id: reason}.
    """

    folder: Path
    contract: str
    crosscheck: str
    made_by: Mapping[str, Any]
    cases: Mapping[str, GoldenCase]
    not_offered: Mapping[str, str] = field(default_factory=dict)

    def array(self, case_id: str, name: str) -> Array:
        """An array that is stored whole, for example "inputs.hidden"; bfloat16 is ml_dtypes'."""
        stored = self.load(case_id, name)
        if isinstance(stored, Blocks):
            raise GoldenError(f"{name} of {case_id} in {self.folder} is stored as digests and sampled rows only")
        return stored.array()

    def load(self, case_id: str, name: str) -> Whole | Blocks:
        """An array in the form it is stored in, after its digest has been found right."""
        case = self.cases[case_id]
        stored = case.arrays[name]
        tensors = {tensor: self._tensor(case, tensor, *said) for tensor, said in stored.tensors(name).items()}
        if stored.sampled_rows is None:
            return tensors[name]
        digests, sampled = tensors[f"{name}.blocks"].array(), tensors[f"{name}.sampled"].array()
        blocks = Blocks(stored.dtype, stored.shape, stored.sha256, digests, stored.sampled_rows, sampled)
        if (row := blocks.contradiction()) is not None:
            raise GoldenError(
                f"{self.folder / case.file}: row {row} of {name} has another digest than {name}.blocks says: the file "
                "has changed since it was written"
            )
        return blocks

    def check_files(self) -> None:
        """Every file has the tensors that the manifest names, and no other file lies beside them."""
        files = {case.file for case in self.cases.values()}
        extra = sorted(path.name for path in self.folder.glob("*.safetensors") if path.name not in files)
        if extra:
            raise GoldenError(f"{self.folder} holds {extra[0]}, which its manifest does not name")
        for case in self.cases.values():
            named = {tensor for name, stored in case.arrays.items() for tensor in stored.tensors(name)}
            held = _with_file(self.folder / case.file, lambda file: set(file.keys()))
            for tensors, what in ((named - held, "is missing from"), (held - named, "is in no manifest, but is in")):
                if tensors:
                    raise GoldenError(f"{min(tensors)} {what} {self.folder / case.file}")

    def _tensor(self, case: GoldenCase, name: str, dtype: str, shape: tuple[int, ...], sha256: str) -> Whole:
        path = self.folder / case.file
        _with_file(path, lambda file: _check_header(path, file, name, dtype, shape))
        tensor = Whole(dtype, shape, lambda start, stop: _rows_of_file(path, name, shape, start, stop))
        if tensor.sha256 != sha256:
            raise GoldenError(
                f"{path}: {name} has other bits than the manifest's digest says: the file or the manifest has changed "
                "since they were written"
            )
        return tensor


# Files -------------------------------------------------------------------------------------------------
def _with_file(path: Path, use: Callable[[Any], Any]) -> Any:
    """`use` on the opened file. It is mapped while it is open only, so what has been read costs no memory."""
    if not path.is_file():
        raise GoldenError(f"{path} is missing: the manifest names it")
    try:
        with safe_open(path, framework="numpy") as file:
            return use(file)
    except (SafetensorError, OSError) as error:
        raise GoldenError(
            f"{path} is no complete safetensors file ({error}): it may be truncated, or of another format; nothing is "
            "unpickled here"
        ) from error


def _check_header(path: Path, file: Any, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    if name not in file.keys():  # noqa: SIM118 (the file is no mapping)
        raise GoldenError(f"{name} is missing from {path}")
    held = file.get_slice(name)
    found = held.get_dtype(), tuple(held.get_shape())
    if found != (DTYPES[dtype], shape):
        raise GoldenError(f"{path}: {name} is {found[0]} {found[1]}; expected {DTYPES[dtype]} {shape}, by the manifest")


def _rows_of_file(path: Path, name: str, shape: tuple[int, ...], start: int, stop: int) -> Array:
    """Rows [start:stop] of a tensor seen as [rows, width]."""
    rows, width = rows_and_width(shape)

    def read(file: Any) -> Array:
        if (start, stop) == (0, rows):
            return np.asarray(file.get_tensor(name)).reshape(rows, width)
        if len(shape) <= 2:
            return np.asarray(file.get_slice(name)[start:stop]).reshape(stop - start, width)
        lead = rows // shape[0]  # of the first axis, what holds the rows; then the rows among them
        outer = slice(start // lead, -(-stop // lead))
        part = np.asarray(file.get_slice(name)[outer]).reshape(-1, width)
        return part[start - outer.start * lead : stop - outer.start * lead]

    array: Array = _with_file(path, read)
    return array


# Manifest ----------------------------------------------------------------------------------------------
def open_golden(folder: str | Path) -> Golden:
    """The golden in a folder: its manifest, read and checked.

    Raises:
        GoldenError: no golden, or one of another schema, or a manifest that is damaged.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise GoldenError(f"{folder} is no golden: {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise GoldenError(f"{path} is no JSON, and nothing else is read: it may be truncated") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        schema = manifest.get("schema") if isinstance(manifest, dict) else None
        raise GoldenError(
            f"{path} has schema {schema!r}; expected {SCHEMA!r}: make both goldens with the same version of crosscheck"
        )
    try:
        cases = {case_id: _case(case_id, fields) for case_id, fields in _typed(manifest, "cases", dict).items()}
        return Golden(
            folder,
            _typed(manifest, "contract", str),
            _typed(manifest, "crosscheck", str),
            _typed(manifest, "made_by", dict),
            cases,
            _words(manifest.get("not_offered", {})),
        )
    except _Malformed as error:
        raise GoldenError(f"{path} is damaged: {error}") from error


class _Malformed(Exception):
    """What is wrong with a manifest."""


def _typed(fields: Any, name: str, kind: Any) -> Any:
    if not isinstance(fields, dict) or name not in fields or not isinstance(fields[name], kind):
        raise _Malformed(f"{name} is missing, or of another type than it should be")
    return fields[name]


def _words(fields: Any) -> dict[str, str]:
    """Fields that a manifest may have, all of them text."""
    if not isinstance(fields, dict):
        raise _Malformed("not_offered is of another type than it should be")
    return {name: _typed(fields, name, str) for name in fields}


def _case(case_id: str, fields: Any) -> GoldenCase:
    try:
        file, digits = _typed(fields, "file", str), _typed(fields, "digits", int | None)
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise _Malformed(f"file is {file!r}; expected the name of a safetensors file beside the manifest")
        arrays = {name: _stored(name, said) for name, said in _typed(fields, "arrays", dict).items()}
        op, implementation = _typed(fields, "op", str), _typed(fields, "implementation", str)
        said = _words({name: fields[name] for name in ("gradients", "untold") if name in fields})
        return GoldenCase(case_id, op, digits, file, implementation, _typed(fields, "case", dict), arrays, **said)
    except _Malformed as error:
        raise _Malformed(f"case {case_id}: {error}") from error


def _stored(name: str, fields: Any) -> Stored:
    if not name.startswith(("inputs.", "outputs.")):
        raise _Malformed(f"an array is named {name}; expected inputs.NAME or outputs.NAME")
    dtype, shape = _typed(fields, "dtype", str), tuple(_integers(name, _typed(fields, "shape", list)))
    if dtype not in DTYPES:
        raise _Malformed(f"{name} has dtype {dtype}; expected one of {', '.join(DTYPES)}")
    whole = Stored(dtype, shape, _typed(fields, "sha256", str))
    if _typed(fields, "stored", str) == "whole":
        return whole
    sampled = tuple(_integers(name, _typed(fields, "sampled_rows", list)))
    rows = rows_and_width(shape)[0]
    if list(sampled) != sorted({row for row in sampled if row < rows}):
        raise _Malformed(f"{name} has sampled_rows {list(sampled)}; expected rows below {rows}, ascending")
    if fields.get("block_rows") != block_rows(shape):
        raise _Malformed(f"{name} has block_rows {fields.get('block_rows')}; expected {block_rows(shape)}")
    digests = _typed(fields, "blocks_sha256", str), _typed(fields, "sampled_sha256", str)
    return Stored(dtype, shape, whole.sha256, sampled, *digests)


def _integers(name: str, values: list[Any]) -> Iterator[int]:
    for value in values:
        if type(value) is not int or not 0 <= value < 2**48:
            raise _Malformed(f"{name} has {value!r} among its sizes; expected integers from 0")
        yield value
