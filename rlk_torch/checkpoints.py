"""Embedding and LM head from and to safetensors files, under the names of Hugging Face checkpoints.

Nothing is unpickled, and only the tensors that are asked for are read. The twin is rlk_jax/checkpoints.py.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rlk_torch.checks import FLOAT_DTYPES, check_floats
from rlk_torch.floats import bits_of, narrowed
from rlk_torch.modules import LMHead
from rlk_torch.tables import EmbeddingTable

EMBEDDING_KEY, HEAD_KEY = "model.embed_tokens.weight", "lm_head.weight"
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_STORED = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def load_embedding_and_head(
    source: str | Path | Mapping[str, Tensor],
    *,
    dtype: torch.dtype | None = None,
    tied: bool | None = None,
    embedding_key: str = EMBEDDING_KEY,
    head_key: str = HEAD_KEY,
    residency: str = "device",
    device: str | torch.device | None = None,
    scale: float | None = None,
    padding_idx: int | None = None,
    digits: int | None = None,
) -> tuple[EmbeddingTable, LMHead]:
    """The embedding table and the LM head of a checkpoint.

    Arguments:
        source: a .safetensors file, a model.safetensors.index.json, a folder that holds one of them, or arrays by name.
        dtype: of both weights and the bias; each element is rounded once, ties to even, a NaN becomes the quiet one.
            None leaves the bits as they are stored.
        tied: the head shares the table's weight. None means: where there is no head_key; `head.tied` says which.
            True refuses a head_key whose bits are not the table's.
        embedding_key: the name of the table [V, H].
        head_key: the name of the head's weight [V, H]. Its bias, if there is one, ends in "bias" where that ends in
            "weight".
        residency: of the table, as `EmbeddingTable` takes it, and so are the next three.
        device: of the rows of a table in host memory.
        scale: of the table's rows.
        padding_idx: of the table.
        digits: of the head.

    Returns:
        (table, head), on the CPU.

    Raises:
        TypeError: a tensor of another dtype.
        ValueError: no such file or name, a file that is no complete safetensors file, shapes that do not meet, or what
            `EmbeddingTable` and `LMHead` refuse.

    Example:
        >>> table, head = load_embedding_and_head({"model.embed_tokens.weight": torch.eye(3)})
        >>> head.tied, head.weight is table.weight
        (True, True)
    """
    names = set(source) if isinstance(source, Mapping) else _names(_locate(Path(source)))
    tied = head_key not in names if tied is None else tied

    def read(key: str) -> Tensor:
        return _as_dtype(_tensor(source, key), dtype)

    weight, bias_key = read(embedding_key), bias_name(head_key)
    bias = read(bias_key) if bias_key in names else None
    table = EmbeddingTable(weight, residency=residency, device=device, scale=scale, padding_idx=padding_idx)
    if not tied:
        return table, LMHead(read(head_key), bias, digits=digits)
    if head_key in names and not _same_bits(read(head_key), weight):
        raise ValueError(
            f"{head_key} has other bits than {embedding_key}; expected a tied head: use tied=None or False"
        )
    return table, LMHead(table, bias, digits=digits)


def save_embedding_and_head(
    path: str | Path,
    table: EmbeddingTable,
    head: LMHead,
    *,
    embedding_key: str = EMBEDDING_KEY,
    head_key: str = HEAD_KEY,
) -> None:
    """Write a table and a head to one safetensors file, which replaces one of that name.

    Arguments:
        path: of the file.
        table: with a weight of floats.
        head: with a weight of floats; where it is the table's own, it is not written again.
        embedding_key: the name of the table.
        head_key: the name of the head's weight, and with "bias" in place of "weight" that of its bias.

    Returns:
        Nothing. The bits are written as they are.

    Raises:
        TypeError: a weight that is an `Aligned` or a `QuantizedTable`.
        ValueError: two names that are the same.

    Example:
        >>> import tempfile
        >>> table = EmbeddingTable(torch.eye(3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_embedding_and_head(f"{folder}/model.safetensors", table, LMHead(table))
        ...     load_embedding_and_head(folder)[1].tied
        True
    """
    tensors = embedding_and_head_tensors(table, head, embedding_key=embedding_key, head_key=head_key)
    # Another file first: the old one may be what these tensors are mapped from.
    path = Path(path)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file({name: x.cpu().contiguous() for name, x in tensors.items()}, fresh, metadata={"format": "pt"})
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def embedding_and_head_tensors(
    table: EmbeddingTable, head: LMHead, *, embedding_key: str = EMBEDDING_KEY, head_key: str = HEAD_KEY
) -> dict[str, Tensor]:
    """The arrays of a table and a head by the names they have in files.

    Arguments:
        table: with a weight of floats.
        head: with a weight of floats; where it is the table's own, it is not there again.
        embedding_key: the name of the table.
        head_key: the name of the head's weight, and with "bias" in place of "weight" that of its bias.

    Returns:
        The arrays themselves, by name: what `load_embedding_and_head` takes.

    Raises:
        TypeError: a weight that is an `Aligned` or a `QuantizedTable`.
        ValueError: two names that are the same.

    Example:
        >>> table = EmbeddingTable(torch.eye(3))
        >>> list(embedding_and_head_tensors(table, LMHead(table)))
        ['model.embed_tokens.weight']
    """
    if embedding_key == head_key:
        raise ValueError(f"embedding_key and head_key are both {head_key!r}; expected two names")
    found: dict[str, Any] = {embedding_key: table.weight}
    if head.weight is not table.weight:
        found[head_key] = head.weight
    if head.bias is not None:
        found[bias_name(head_key)] = head.bias
    for name, x in found.items():
        check_floats(name, x, "[V, H]")
    return {name: x.detach() for name, x in found.items()}


def bias_name(head_key: str) -> str:
    """The name of the bias beside a weight."""
    return head_key.removesuffix("weight") + "bias" if head_key.endswith("weight") else f"{head_key}.bias"


def _tensor(source: Any, key: str) -> Tensor:
    """A tensor of a file or of arrays by name, with the bits it has there."""
    if isinstance(source, Mapping):
        if key not in source:
            raise _missing("source", key, source)
        check_floats(key, source[key], "[V, H]")
        return source[key]
    path = _locate(Path(source))
    if path.suffix == ".json":
        shards = _shards(path)
        if key not in shards:
            raise _missing(path, key, shards)
        path = path.parent / shards[key]
    with _opened(path) as file:
        if key not in file.keys():  # noqa: SIM118 (it is no mapping)
            raise _missing(path, key, file.keys())
        stored = file.get_slice(key).get_dtype()
        if stored not in _STORED:
            raise TypeError(f"{key} in {path} has dtype {stored}; expected BF16, F16 or F32: convert it first")
        return file.get_tensor(key)


def _locate(path: Path) -> Path:
    """The file that answers for a path: itself, or what a folder holds."""
    if not path.is_dir():
        return path
    for name in (_SINGLE, _INDEX):
        if (path / name).is_file():
            return path / name
    raise ValueError(f"{path} holds neither {_SINGLE} nor {_INDEX}; expected one of them: name a file of the folder")


def _names(path: Path) -> set[str]:
    if path.suffix == ".json":
        return set(_shards(path))
    with _opened(path) as file:
        return set(file.keys())


def _shards(index: Path) -> dict[str, str]:
    """The file of each tensor, by an index."""
    try:
        return {str(name): Path(str(file)).name for name, file in json.loads(index.read_text())["weight_map"].items()}
    except OSError as error:
        raise ValueError(f"{index} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'{index} is no checkpoint index: it has no "weight_map" of tensors to files') from error


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path} cannot be read: there is no such file")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(
            f"{path} is no complete safetensors file ({error}): it may be truncated, or pickled"
        ) from error


def _missing(where: Any, key: str, names: Any) -> ValueError:
    some = sorted(names)
    listed = ", ".join(some[:5]) + (", ..." if len(some) > 5 else "")
    return ValueError(f"{where} has no tensor {key!r} among its {len(some)}: {listed or 'it is empty'}")


def _as_dtype(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Rounded once, ties to even; the same dtype leaves the bits as they are."""
    if dtype is not None and dtype not in FLOAT_DTYPES:
        raise TypeError(f"dtype is {dtype}; expected bfloat16, float16 or float32")
    return x if dtype in (None, x.dtype) else narrowed(x.detach().float(), dtype)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool((bits_of(a) == bits_of(b)).all())
