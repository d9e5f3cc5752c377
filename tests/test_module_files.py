"""An LM head and its table in files: tied or not, the bits and the names stay what they are."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from bit_arrays import random_bits
from frameworks import BFLOAT16, FLOATS, JAX, TORCH, Framework, both
from gradients import normal
from safetensors import safe_open
from safetensors.numpy import save_file

from crosscheck.bits import as_numpy, assert_bits_equal

EMBEDDING, HEAD, BIAS = "model.embed_tokens.weight", "lm_head.weight", "lm_head.bias"


def stored(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)


def tensors(dtype: Any = BFLOAT16, vocab: int = 5, width: int = 4) -> dict[str, Any]:
    return {name: random_bits(np.dtype(dtype), (vocab, width), seed) for seed, name in enumerate((EMBEDDING, HEAD))}


def dtype_of(framework: Framework, dtype: Any) -> Any:
    return getattr(torch if framework is TORCH else jnp, np.dtype(dtype).name)


@pytest.mark.parametrize("form", ["file", "folder", "shards", "index", "arrays"])
@both
def test_every_form_of_a_checkpoint_is_read_bit_for_bit(framework, form, tmp_path):
    content = {**tensors(), BIAS: random_bits(BFLOAT16, (5,), 2)}
    source: Any = tmp_path
    if form in ("file", "folder"):
        save_file({**content, "model.norm.weight": np.zeros(3, np.float64)}, tmp_path / "model.safetensors")
        source = tmp_path / "model.safetensors" if form == "file" else tmp_path
    elif form == "arrays":
        source = {name: framework.array(x) for name, x in content.items()}
    else:
        names = {EMBEDDING: "one.safetensors", HEAD: "two.safetensors", BIAS: "two.safetensors"}
        for file in set(names.values()):
            save_file({name: content[name] for name in content if names[name] == file}, tmp_path / file)
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": names}))
        source = index if form == "index" else tmp_path
    table, head = framework.package.load_embedding_and_head(source, scale=2, padding_idx=1, digits=2)
    found = (table.weight, head.weight, head.bias)
    for actual, name in zip(found, (EMBEDDING, HEAD, BIAS), strict=True):
        assert_bits_equal(actual.detach() if framework is TORCH else actual, content[name], context=name)
    assert (table.scale, table.padding_idx, head.digits, head.tied) == (2, 1, 2, False)


@both
def test_without_a_head_it_is_tied(framework, tmp_path):
    save_file({EMBEDDING: tensors()[EMBEDDING]}, tmp_path / "model.safetensors")
    table, head = framework.package.load_embedding_and_head(tmp_path)
    assert head.tied and head.weight is table.weight and head.bias is None
    with pytest.raises(ValueError, match=r"has no tensor 'lm_head.weight' among its 1: model.embed_tokens.weight$"):
        framework.package.load_embedding_and_head(tmp_path, tied=False)


@both
def test_a_head_of_other_bits_is_not_tied_away(framework):
    content = {name: framework.array(x) for name, x in tensors().items()}
    assert not framework.package.load_embedding_and_head(content)[1].tied
    with pytest.raises(ValueError, match=r"^lm_head.weight has other bits than model.embed_tokens.weight; expected"):
        framework.package.load_embedding_and_head(content, tied=True)
    content[HEAD] = framework.array(as_numpy(content[EMBEDDING]))
    assert framework.package.load_embedding_and_head(content, tied=True)[1].tied


@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
@both
def test_another_dtype_is_rounded_once_to_nearest_even(framework, source, target, tmp_path):
    content = {EMBEDDING: random_bits(source, (200, 50))}
    save_file(content, tmp_path / "model.safetensors")
    table, _ = framework.package.load_embedding_and_head(tmp_path, dtype=dtype_of(framework, target))
    with np.errstate(all="ignore"):
        wide = content[EMBEDDING].astype(np.float32)
        expected = wide.astype(target)
    quiet = {2: 0x7FC0 if target == ml_dtypes.bfloat16 else 0x7E00, 4: 0x7FC00000}[target.itemsize]
    expected.view(f"uint{8 * target.itemsize}")[np.isnan(wide)] = quiet
    if source == target:
        expected = content[EMBEDDING]
    assert_bits_equal(table.weight.detach() if framework is TORCH else table.weight, expected)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_file_of_one_package_is_the_file_of_the_other(dtype, tied, tmp_path):
    content, files = tensors(dtype), []
    for framework in (TORCH, JAX):
        package = framework.package
        table = package.EmbeddingTable(framework.array(content[EMBEDDING]))
        bias = framework.array(random_bits(dtype, (5,)))
        head = package.LMHead(table if tied else framework.array(content[HEAD]), bias)
        files.append(tmp_path / f"{framework.name}.safetensors")
        package.save_embedding_and_head(files[-1], table, head)
        again = package.load_embedding_and_head(files[-1])
        assert sorted(stored(files[-1])) == sorted([EMBEDDING, BIAS, *([] if tied else [HEAD])])
        assert again[1].tied == tied
        assert_bits_equal(as_numpy(package.embedding_and_head_tensors(*again)[BIAS]), random_bits(dtype, (5,)))
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(x.name for x in tmp_path.iterdir()) == ["jax.safetensors", "torch.safetensors"]


@both
def test_a_file_may_be_written_over_the_one_it_was_read_from(framework, tmp_path):
    path, content = tmp_path / "model.safetensors", tensors(vocab=1000, width=64)
    save_file(content, path)
    table, head = framework.package.load_embedding_and_head(path)
    framework.package.save_embedding_and_head(path, table, head)
    for name, x in stored(path).items():
        assert_bits_equal(x, content[name], context=name)


@both
def test_names_of_ones_own(framework, tmp_path):
    keys, names = {"embedding_key": "wte.weight", "head_key": "out.weight"}, ["out.bias", "out.weight", "wte.weight"]
    table = framework.package.EmbeddingTable(framework.array(normal(5, 4)))
    head = framework.package.LMHead(framework.array(normal(5, 4, seed=1)), framework.array(normal(5)))
    framework.package.save_embedding_and_head(tmp_path / "x.safetensors", table, head, **keys)
    assert sorted(stored(tmp_path / "x.safetensors")) == names
    again = framework.package.load_embedding_and_head(tmp_path / "x.safetensors", **keys)
    assert sorted(framework.package.embedding_and_head_tensors(*again, **keys)) == names
    with pytest.raises(ValueError, match=r"^embedding_key and head_key are both 'a'; expected two names$"):
        framework.package.embedding_and_head_tensors(table, head, embedding_key="a", head_key="a")


@both
def test_only_floats_are_saved(framework, tmp_path):
    table = framework.package.EmbeddingTable(framework.array(normal(5, 4)))
    with pytest.raises(TypeError, match=r"^lm_head.weight is of type Aligned; expected an array of shape \[V, H\]"):
        framework.package.save_embedding_and_head(tmp_path / "x", table, framework.package.LMHead(table).aligned())
    assert list(tmp_path.iterdir()) == []


@both
def test_the_table_of_a_checkpoint_may_stay_in_host_memory(framework, tmp_path):
    content = tensors()
    save_file(content, tmp_path / "model.safetensors")
    table, _ = framework.package.load_embedding_and_head(tmp_path, residency="host")
    assert_bits_equal(table([3, 0]), content[EMBEDDING][[3, 0]])


def faulty(tmp_path: Path, fault: str) -> Path:
    path = tmp_path / "model.safetensors"
    if fault == "truncated":
        save_file(tensors(), path)
        path.write_bytes(path.read_bytes()[:-3])
    elif fault == "pickled":
        torch.save({EMBEDDING: torch.ones(2, 2)}, path)
    elif fault == "no index":
        path = tmp_path / "model.safetensors.index.json"
        path.write_text("[]")
    elif fault == "a dtype":
        save_file({EMBEDDING: np.ones((2, 2))}, path)
    return path


FAULTS = {
    "truncated": (ValueError, "): it may be truncated, or pickled"),
    "pickled": (ValueError, "): it may be truncated, or pickled"),
    "no index": (ValueError, 'is no checkpoint index: it has no "weight_map" of tensors to files'),
    "a dtype": (TypeError, "has dtype F64; expected BF16, F16 or F32: convert it first"),
    "missing": (ValueError, "cannot be read: there is no such file"),
}


@pytest.mark.parametrize("fault", FAULTS)
@both
def test_a_faulty_file_is_refused(framework, fault, tmp_path):
    error, text = FAULTS[fault]
    path = faulty(tmp_path, fault)
    with pytest.raises(error) as raised:
        framework.package.load_embedding_and_head(path)
    assert str(raised.value).endswith(text) and str(path) in str(raised.value)


@both
def test_an_empty_folder_is_refused(framework, tmp_path):
    with pytest.raises(ValueError) as raised:
        framework.package.load_embedding_and_head(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path} holds neither model.safetensors nor model.safetensors.index.json; expected one of them: name a "
        "file of the folder"
    )
