"""Real tables and real inputs from files: safetensors checkpoints and .npy arrays, bit for bit.

Only the tensor that is asked for is read, and nothing is ever unpickled. Every fault of a file is a
`CheckpointError` whose one sentence a command line can print as it is.
"""

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

Array = NDArray[Any]
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_DTYPES = {"BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16), "F32": np.dtype(np.float32)}
_PICKLE_MAGIC = (b"PK\x03\x04", b"\x80")  # torch.save as a zip file, and a bare pickle of protocol 2 and later


class CheckpointError(ValueError):
    """A file that cannot be used; the text says which, why, and what to do."""


# Checkpoints -------------------------------------------------------------------------------------------
def load_tensor(path: str | Path, key: str, *, ndim: int | None = 2) -> Array:
    """One tensor of a Hugging Face checkpoint, with the dtype and the bits it has there.

    Arguments:
        path: a .safetensors file, a model.safetensors.index.json, or a folder that holds one of them.
        key: the tensor's name, for example "model.embed_tokens.weight".
        ndim: the dimensions it must have, [V, K] for a table; None accepts any.

    Returns:
        bfloat16 (ml_dtypes), float16 or float32.

    Raises:
        CheckpointError: no such file or key, a truncated or pickled file, another dtype or shape.
    """
    found = _locate(Path(path))
    return _read(_shard_of(found, key) if found.suffix == ".json" else found, key, ndim)


def _locate(path: Path) -> Path:
    """The file that answers for path: itself, or what a folder holds."""
    if not path.is_dir():
        return path
    for name in (SINGLE_NAME, INDEX_NAME):
        if (path / name).is_file():
            return path / name
    others = sorted(file.name for file in path.glob("*.safetensors"))
    raise CheckpointError(
        f"{path} holds neither {SINGLE_NAME} nor {INDEX_NAME}; "
        + (f"name one of its files: {_listed(others)}" if others else "it has no .safetensors file at all")
    )


def _shard_of(index: Path, key: str) -> Path:
    """The shard that an index file's weight_map gives for key."""
    content = _open_bytes(index)
    try:
        shards = {str(name): str(shard) for name, shard in json.loads(content)["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f'{index} is no checkpoint index: it has no "weight_map" of tensors to files') from error
    if key not in shards:
        raise _missing_key(index, key, shards)
    if Path(shards[key]).name != shards[key]:
        raise CheckpointError(f"{index} says that {key} is in {shards[key]}; expected the name of a file beside it")
    shard = index.parent / shards[key]
    if not shard.is_file():
        raise CheckpointError(f"{index} says that {key} is in {shards[key]}, but there is no such file beside it")
    return shard


def _read(path: Path, key: str, ndim: int | None) -> Array:
    _check_not_pickled(path)
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            if key not in names:
                raise _missing_key(path, key, names)
            stored = file.get_slice(key)
            _check_stored(path, key, stored.get_dtype(), stored.get_shape(), ndim)
            return np.asarray(file.get_tensor(key))
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} is no complete safetensors file ({error}): it may be truncated, or of another format"
        ) from error


def _check_not_pickled(path: Path) -> None:
    start = _open_bytes(path, 9)
    # A safetensors file may start with the same bytes, its header's length; there a brace follows in the ninth.
    if start.startswith(_PICKLE_MAGIC) and start[8:] != b"{":
        raise CheckpointError(
            f"{path} is a pickled checkpoint, and nothing is unpickled here: save the tensors as safetensors first"
        )


def _open_bytes(path: Path, size: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _check_stored(path: Path, key: str, dtype: str, shape: Iterable[int], ndim: int | None) -> None:
    if dtype not in _DTYPES:
        raise CheckpointError(f"{key} in {path} has dtype {dtype}; expected BF16, F16 or F32: convert it first")
    shape = tuple(shape)
    if ndim is not None and len(shape) != ndim:
        expected = "[V, K], a table" if ndim == 2 else f"{ndim} dimensions"
        raise CheckpointError(f"{key} in {path} has shape {shape}; expected {expected}")


def _missing_key(path: Path, key: str, names: Iterable[str]) -> CheckpointError:
    names = sorted(names)
    lowered = {name.lower(): name for name in names}
    close = [lowered[name] for name in difflib.get_close_matches(key.lower(), lowered, n=5, cutoff=0.5)]
    hint = f"the closest are {_listed(close)}" if close else f"they begin with {_listed(names[:5])}" if names else ""
    if len(names) == 1:
        return CheckpointError(f"{path} has no tensor {key!r}; its only one is {names[0]}")
    return CheckpointError(f"{path} has no tensor {key!r} among its {len(names)}" + (f"; {hint}" if hint else ""))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


# Inputs ------------------------------------------------------------------------------------------------
def load_array(path: str | Path, what: Literal["token_ids", "hidden"]) -> Array:
    """Token ids or hidden states from a file.

    Arguments:
        path: a .npy file. Hidden states may also be `FILE.safetensors:KEY`, or, as NumPy's own format knows no
            bfloat16, uint16 bit patterns in a file named *.bf16.npy.
        what: "token_ids", any shape and integer dtype, or "hidden", [..., K] bfloat16, float16 or float32.

    Raises:
        CheckpointError: no such file, not an array, or an array of another kind.
    """
    if what not in ("token_ids", "hidden"):
        raise ValueError(f"what is {what!r}; expected 'token_ids' or 'hidden'")
    file, colon, key = str(path).rpartition(".safetensors:")
    if colon and what == "hidden":
        return _with_width(path, load_tensor(f"{file}.safetensors", key, ndim=None))
    if colon or str(path).endswith(".safetensors"):
        use = "FILE.safetensors:KEY" if what == "hidden" else "a .npy file"
        raise CheckpointError(f"{what} cannot be taken from {path}: name {use}")
    array = _load_npy(Path(path))
    return _as_token_ids(path, array) if what == "token_ids" else _with_width(path, _as_hidden(path, array))


def _load_npy(path: Path) -> Array:
    if _open_bytes(path, 6) != b"\x93NUMPY":
        raise CheckpointError(f"{path} is no .npy file: save one array with np.save")
    try:
        # Mapped first, so that a header which claims more than the file holds allocates nothing.
        array = np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError, OSError) as error:
        raise CheckpointError(f"{path} is no usable .npy file, and nothing is unpickled here: {error}") from error
    return array if array.dtype.isnative else array.byteswap().view(array.dtype.newbyteorder("="))


def _as_token_ids(path: str | Path, array: Array) -> Array:
    if array.dtype.kind not in "iu":
        raise CheckpointError(f"token_ids in {path} have dtype {array.dtype}; expected an integer dtype")
    return array


def _as_hidden(path: str | Path, array: Array) -> Array:
    if array.dtype == np.uint16 and str(path).endswith(".bf16.npy"):
        return array.view(_DTYPES["BF16"])
    if array.dtype in (np.float16, np.float32):
        return array
    if array.dtype in (np.uint16, np.dtype("V2")):
        raise CheckpointError(
            f"hidden in {path} has dtype {array.dtype.str}, two bytes without a type: if they are bfloat16, store "
            "them in a safetensors file, or x.view(np.uint16) in a file named *.bf16.npy"
        )
    raise CheckpointError(f"hidden in {path} has dtype {array.dtype}; expected bfloat16, float16 or float32")


def _with_width(path: str | Path, hidden: Array) -> Array:
    if hidden.ndim == 0:
        raise CheckpointError(f"hidden in {path} has shape (); expected [..., K]")
    return hidden
