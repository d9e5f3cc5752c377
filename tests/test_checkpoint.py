"""Tables come out of safetensors files with the bits they have there; every fault of a file is one sentence."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bit_arrays import BFLOAT16, random_bits
from numpy.typing import NDArray
from real_model import MiniLM
from safetensors.numpy import save_file

from crosscheck.bits import assert_bits_equal
from crosscheck.checkpoint import CheckpointError, load_tensor

KEY = "model.embed_tokens.weight"
TABLES = {dtype.name: random_bits(dtype, (5, 6)) for dtype in (BFLOAT16, np.dtype("f2"), np.dtype("f4"))}


def saved(path: Path, tensors: dict[str, NDArray[Any]]) -> Path:
    save_file(tensors, path)
    return path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A checkpoint of two shards and its index, as Hugging Face writes it."""
    shards = {"model-00001-of-00002.safetensors": {KEY: TABLES["bfloat16"]}}
    shards["model-00002-of-00002.safetensors"] = {
        "lm_head.weight": TABLES["float32"],
        "norm.weight": np.ones((1, 6), "f4"),
    }
    for name, tensors in shards.items():
        save_file(tensors, tmp_path / name)
    weight_map = {key: name for name, tensors in shards.items() for key in tensors}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))
    return index


def refusal(path: Path, key: str = KEY) -> str:
    with pytest.raises(CheckpointError) as error:
        load_tensor(path, key)
    return str(error.value)


# What is read -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", TABLES)
def test_a_table_keeps_its_bits(tmp_path, dtype):
    path = saved(tmp_path / "x.safetensors", {"other": np.zeros(1, "f4"), KEY: TABLES[dtype]})
    assert_bits_equal(load_tensor(path, KEY), TABLES[dtype])


def test_a_table_saved_by_torch_keeps_its_bits(tmp_path):
    from safetensors.torch import save_file as save_torch

    table = torch.from_numpy(TABLES["bfloat16"].view(np.int16).copy()).view(torch.bfloat16)
    save_torch({KEY: table}, tmp_path / "x.safetensors")
    assert_bits_equal(load_tensor(tmp_path / "x.safetensors", KEY), table)


@pytest.mark.parametrize(("key", "dtype"), [(KEY, "bfloat16"), ("lm_head.weight", "float32")])
@pytest.mark.parametrize("by", ["index", "folder"])
def test_a_sharded_checkpoint_is_read_through_its_index(sharded, by, key, dtype):
    assert_bits_equal(load_tensor(sharded if by == "index" else sharded.parent, key), TABLES[dtype])


def test_a_folder_with_one_file_is_read(tmp_path):
    saved(tmp_path / "model.safetensors", {KEY: TABLES["float16"]})
    assert_bits_equal(load_tensor(str(tmp_path), KEY), TABLES["float16"])


def test_a_tensor_of_any_shape_is_read_where_the_caller_says_so(tmp_path):
    path = saved(tmp_path / "x.safetensors", {"bias": np.ones(3, "f4")})
    assert_bits_equal(load_tensor(path, "bias", ndim=None), np.ones(3, "f4"))


def test_only_the_asked_shard_is_needed(sharded):
    (sharded.parent / "model-00002-of-00002.safetensors").unlink()
    assert_bits_equal(load_tensor(sharded, KEY), TABLES["bfloat16"])


def test_only_the_asked_tensor_is_read(tmp_path):
    """A table of 1 TiB beside it, in a sparse file, does not matter."""
    path = tmp_path / "x.safetensors"
    table = TABLES["float32"]
    header: dict[str, Any] = {KEY: {"dtype": "F32", "shape": [5, 6], "data_offsets": [0, table.nbytes]}}
    end = table.nbytes + 2**40
    header["huge"] = {"dtype": "F32", "shape": [2**20, 2**18], "data_offsets": [table.nbytes, end]}
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded + table.tobytes())
        file.truncate(8 + len(encoded) + end)
    assert_bits_equal(load_tensor(path, KEY), table)


def test_a_header_length_that_looks_like_a_pickle_is_none(tmp_path):
    """The length's first byte is 0x80, as in a pickle, for headers of 128, 384, ... bytes."""
    header = json.dumps({KEY: {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}).encode().ljust(128)
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + np.float32(7).tobytes())
    assert_bits_equal(load_tensor(path, KEY), np.array([[7]], "f4"))


def test_the_table_of_a_real_model_is_read(minilm: MiniLM):
    table = load_tensor(minilm.table, minilm.key)
    assert (table.shape, table.dtype) == ((30522, 384), np.dtype(np.float32))


def test_real_text_becomes_ids_of_the_real_table(minilm: MiniLM):
    ids = minilm.token_ids("The first and the last layer.")
    assert ids.tolist() == [101, 1996, 2034, 1998, 1996, 2197, 6741, 1012, 102]


# Faults -------------------------------------------------------------------------------------------------
def test_a_missing_key_lists_the_close_ones(minilm: MiniLM):
    assert refusal(minilm.table, "bert.embeddings.word_embedding.weight") == (
        f"{minilm.table} has no tensor 'bert.embeddings.word_embedding.weight' among its 104; the closest are "
        "embeddings.word_embeddings.weight, embeddings.LayerNorm.weight, embeddings.position_embeddings.weight, "
        "embeddings.token_type_embeddings.weight, embeddings.LayerNorm.bias"
    )


def test_a_key_in_another_case_is_close(tmp_path):
    path = saved(tmp_path / "x.safetensors", {KEY: TABLES["float32"]})
    assert refusal(path, "MODEL.EMBED") == f"{path} has no tensor 'MODEL.EMBED'; its only one is {KEY}"


def test_a_key_like_no_other_lists_the_first_ones(tmp_path):
    path = saved(tmp_path / "x.safetensors", {name: np.zeros((1, 1), "f4") for name in "fedcba"})
    assert refusal(path, "zzz") == f"{path} has no tensor 'zzz' among its 6; they begin with a, b, c, d, e"


def test_a_file_without_tensors_says_so(tmp_path):
    path = saved(tmp_path / "x.safetensors", {})
    assert refusal(path) == f"{path} has no tensor '{KEY}' among its 0"


def test_a_missing_key_of_an_index_lists_the_close_ones(sharded):
    assert refusal(sharded, "lm_head.weigth") == (
        f"{sharded} has no tensor 'lm_head.weigth' among its 3; the closest are lm_head.weight, norm.weight"
    )


def test_a_missing_shard_is_named(sharded):
    (sharded.parent / "model-00002-of-00002.safetensors").unlink()
    assert refusal(sharded, "lm_head.weight") == (
        f"{sharded} says that lm_head.weight is in model-00002-of-00002.safetensors, "
        "but there is no such file beside it"
    )


def test_a_shard_without_the_tensor_its_index_promises_is_named(sharded):
    shard = saved(sharded.parent / "model-00002-of-00002.safetensors", {"norm.weight": np.ones((1, 6), "f4")})
    assert refusal(sharded, "lm_head.weight").startswith(f"{shard} has no tensor 'lm_head.weight'; its only one is ")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": null}', "\0\xff"])
def test_a_file_that_is_no_index_is_refused(tmp_path, content):
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(content.encode("latin-1"))
    assert refusal(path) == f'{path} is no checkpoint index: it has no "weight_map" of tensors to files'


@pytest.mark.parametrize("name", ["x.safetensors", "x.index.json", "no/such/folder"])
def test_a_missing_file_is_named(tmp_path, name):
    assert refusal(tmp_path / name) == f"{tmp_path / name} cannot be read: No such file or directory"


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    assert refusal(tmp_path) == (
        f"{tmp_path} holds neither model.safetensors nor model.safetensors.index.json; "
        "it has no .safetensors file at all"
    )


def test_a_folder_with_other_names_lists_them(tmp_path):
    saved(tmp_path / "adapter.safetensors", {KEY: TABLES["float32"]})
    assert refusal(tmp_path).endswith("; name one of its files: adapter.safetensors")


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(tmp_path, kept):
    path = saved(tmp_path / "x.safetensors", {KEY: TABLES["float32"]})
    path.write_bytes(path.read_bytes()[:kept])
    message = refusal(path)
    assert message.startswith(f"{path} is no complete safetensors file (")
    assert message.endswith("): it may be truncated, or of another format")


class Trap:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("how", ["torch.save", "torch.save, old format", "pickle"])
def test_a_pickled_checkpoint_is_refused_and_not_unpickled(tmp_path, how):
    path, trap = tmp_path / "pytorch_model.bin", tmp_path / "sprung"
    if how == "pickle":
        path.write_bytes(pickle.dumps({KEY: Trap(trap)}))
    else:
        torch.save({KEY: Trap(trap)}, path, _use_new_zipfile_serialization=how == "torch.save")
    assert refusal(path) == (
        f"{path} is a pickled checkpoint, and nothing is unpickled here: save the tensors as safetensors first"
    )
    assert not trap.exists()


@pytest.mark.parametrize(
    ("tensor", "stored"),
    [
        (np.ones((2, 2), "f8"), "F64"),
        (np.ones((2, 2), "i1"), "I8"),
        (torch.ones(2, 2, dtype=torch.float8_e4m3fn), "F8_E4M3"),
    ],
    ids=["F64", "I8", "F8"],
)
def test_another_dtype_is_refused(tmp_path, tensor, stored):
    from safetensors.torch import save_file as save_torch

    path = tmp_path / "x.safetensors"
    save_torch({KEY: torch.as_tensor(tensor)}, path)
    assert refusal(path) == f"{KEY} in {path} has dtype {stored}; expected BF16, F16 or F32: convert it first"


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)], ids=str)
def test_another_shape_is_refused(tmp_path, shape):
    path = saved(tmp_path / "x.safetensors", {KEY: np.ones(shape, "f4")})
    assert refusal(path) == f"{KEY} in {path} has shape {shape}; expected [V, K], a table"
