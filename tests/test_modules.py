"""An LM head and its table as modules and in files: tied or not, the bits and the names stay what they are."""

import copy
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from bit_arrays import random_bits
from frameworks import BFLOAT16, FLOATS, JAX, TORCH, Framework, both
from gradients import normal, value_and_gradients
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import save_model

from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

EMBEDDING, HEAD, BIAS = "model.embed_tokens.weight", "lm_head.weight", "lm_head.bias"


def stored(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)


def tensors(dtype: Any = BFLOAT16, vocab: int = 5, width: int = 4) -> dict[str, Any]:
    return {name: random_bits(np.dtype(dtype), (vocab, width), seed) for seed, name in enumerate((EMBEDDING, HEAD))}


def dtype_of(framework: Framework, dtype: Any) -> Any:
    return getattr(torch if framework is TORCH else jnp, np.dtype(dtype).name)


# The head ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("digits", [None, 2])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@both
def test_a_head_is_its_functions(framework, dtype, digits):
    hidden, weight, bias = (normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(((3, 6), (9, 6), (9,))))
    head = framework.package.LMHead(framework.array(weight), framework.array(bias), digits=digits)
    x = framework.array(hidden)
    assert_bits_equal(head(x), contract.lm_head(hidden, weight, bias, digits=digits))
    assert_bits_equal(head.fp32(x), contract.lm_head_fp32(hidden, weight, bias, digits=digits or 4))
    assert (head.shape, head.tied, head.digits) == ((9, 6), False, digits)


@pytest.mark.parametrize(("dtype", "digits"), [(BFLOAT16, 3), (np.dtype(np.float32), 4)], ids=str)
@both
def test_an_aligned_head_is_the_same_head(framework, dtype, digits):
    hidden, weight, bias = (normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(((3, 6), (9, 6), (9,))))
    head = framework.package.LMHead(framework.array(weight), framework.array(bias)).aligned()
    assert (head.digits, head.weight.digits, head.aligned(digits).weight.digits) == (digits, digits, digits)
    assert_bits_equal(head(framework.array(hidden)), contract.lm_head(hidden, weight, bias))
    with pytest.raises(ValueError, match=r"^weight is aligned with \d digits and the head uses 2; expected one number"):
        head.aligned(2)


@both
def test_a_tied_head_shares_the_weight_and_not_the_scale(framework):
    weight, hidden = normal(9, 6), normal(3, 6, seed=1)
    table = framework.package.EmbeddingTable(framework.array(weight), scale=64)
    head = framework.package.LMHead(table)
    assert head.tied and head.weight is table.weight
    assert_bits_equal(head(framework.array(hidden)), contract.lm_head(hidden, weight))


@both
def test_a_head_on_a_quantized_table(framework):
    weight, hidden = normal(9, 6), normal(3, 6, seed=1)
    table = framework.package.quantize(framework.array(weight))
    expected = contract.lm_head(hidden, as_numpy(table.dequantized()))
    for head in (framework.package.LMHead(table), framework.package.LMHead(framework.package.EmbeddingTable(table))):
        assert_bits_equal(head(framework.array(hidden)), expected)
    assert_bits_equal(head.aligned(4)(framework.array(hidden)), expected)


MISTAKES = {
    "a table in host memory": (
        lambda p, a: p.LMHead(p.EmbeddingTable(a(np.ones((2, 3), np.float32)), residency="host")), ValueError,
        "weight is a table in host memory; expected one on a device: an LM head reads all rows in each call",
    ),
    "a bias of another length": (
        lambda p, a: p.LMHead(a(np.ones((2, 3), np.float32)), a(np.ones(3, np.float32))), ValueError,
        "bias has shape (3,); expected (2,), one value a row of weight",
    ),
    "other digits than those of the weight": (
        lambda p, a: p.LMHead(p.align(a(np.ones((2, 3), np.float32)), 3), digits=4), ValueError,
        "weight is aligned with 3 digits and the head uses 4; expected one number: align(weight, 4), or digits=3",
    ),
    "five digits": (
        lambda p, a: p.LMHead(a(np.ones((2, 3), np.float32)), digits=5), ValueError,
        "digits is 5; expected 2 (coarse), 3 (the default) or 4 (ground truth)",
    ),
    "integers": (
        lambda p, a: p.LMHead(a(np.ones((2, 3), np.int8))), TypeError,
        "weight has dtype int8; expected bfloat16, float16 or float32: convert it first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
@both
def test_the_error_says_what_is_wrong(framework, name):
    call, error, text = MISTAKES[name]
    with pytest.raises(error) as raised:
        call(framework.package, framework.array)
    assert str(raised.value) == text


# Modules of torch --------------------------------------------------------------------------------------
class Model(torch.nn.Module):
    """A model of nothing else."""

    def __init__(self, tied: bool, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        one, other = (torch.randn(5, 4, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(2))
        self.embed_tokens = TORCH.package.EmbeddingTable(one)
        self.lm_head = TORCH.package.LMHead(self.embed_tokens if tied else other)

    def forward(self, token_ids: Any) -> torch.Tensor:
        return self.lm_head(self.embed_tokens(token_ids))


@pytest.mark.parametrize("tied", [False, True])
def test_the_state_of_a_model_comes_back(tied):
    model, other = Model(tied), Model(tied)
    with torch.no_grad():
        other.embed_tokens.weight.zero_()
    other.load_state_dict(model.state_dict())
    assert (other.lm_head.weight is other.embed_tokens.weight) == tied
    assert len(list(other.parameters())) == (1 if tied else 2)
    assert sorted(other.state_dict()) == ["embed_tokens.weight", "lm_head.weight"]
    assert_bits_equal(other([1, 4]), model([1, 4]))


def test_tying_by_torch_is_one_parameter_and_one_tensor_in_the_file(tmp_path):
    model = Model(False)
    model.lm_head.weight = model.embed_tokens.weight
    assert len(list(model.parameters())) == 1
    save_model(model, str(tmp_path / "all.safetensors"))
    TORCH.package.save_embedding_and_head(tmp_path / "ours.safetensors", model.embed_tokens, model.lm_head)
    assert [len(stored(tmp_path / name)) for name in ("all.safetensors", "ours.safetensors")] == [1, 1]


def test_a_cast_or_copied_model_stays_tied():
    for model in (copy.deepcopy(Model(True)), Model(True).bfloat16(), Model(True).to("cpu", torch.float16)):
        assert model.lm_head.weight is model.embed_tokens.weight


def test_both_uses_of_a_tied_weight_have_gradients():
    model = Model(True)
    model([1, 1]).sum().backward()
    alone = Model(False)
    alone.lm_head.weight = torch.nn.Parameter(model.embed_tokens.weight.detach().clone())
    alone([1, 1]).sum().backward()
    assert_bits_equal(model.embed_tokens.weight.grad, alone.embed_tokens.weight.grad + alone.lm_head.weight.grad)


def test_an_aligned_head_moves_and_is_no_part_of_the_state():
    head = Model(False).lm_head.aligned(3)
    assert list(head.state_dict()) == []
    assert head.bfloat16().weight.planes.dtype == torch.int8
    assert head.to("meta").weight.device.type == "meta"


def test_an_aligned_head_refuses_the_gradient_of_its_weight():
    head = Model(False).lm_head.aligned(4)
    with pytest.raises(NotImplementedError, match="the gradient of an Aligned is not offered"):
        head(torch.ones(4)).sum().backward()


# Pytrees of JAX ----------------------------------------------------------------------------------------
def test_a_head_is_a_pytree_that_jit_takes():
    head = JAX.package.LMHead(normal(9, 6), normal(9), digits=3)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(head)]
    assert paths == [".weight", ".bias"]
    hidden = normal(2, 6, seed=1)
    expected = contract.lm_head(hidden, normal(9, 6), normal(9), digits=3)
    assert_bits_equal(jax.jit(lambda head, x: head(x))(head, hidden), expected)
    doubled = jax.tree.map(lambda x: x + x, head)
    assert (doubled.digits, type(doubled)) == (3, JAX.package.LMHead)


def test_gradients_of_a_head_are_a_head():
    hidden, weight, grad = normal(2, 6, seed=1), normal(9, 6), normal(2, 9, seed=2)
    _, pull = jax.vjp(lambda head: head(hidden), JAX.package.LMHead(weight))
    (found,) = pull(jnp.asarray(grad))
    assert_bits_equal(found.weight, contract.lm_head_grads(grad, hidden, weight)[1])


def test_a_head_that_is_tied_where_the_loss_is_computed_adds_both_gradients():
    weight, ids, grad = normal(9, 6), np.array([3, 3]), normal(2, 9, seed=2)
    table = JAX.package.EmbeddingTable(weight)

    def logits(table: Any) -> Any:
        return JAX.package.LMHead(table)(table(ids))

    found = value_and_gradients(JAX, lambda w: logits(JAX.package.EmbeddingTable(w)), [table.weight], [0], grad)[1][0]
    of_hidden, of_weight, _ = contract.lm_head_grads(grad, weight[ids], weight)
    of_table = contract.embedding_grad(ids, of_hidden, 9, np.float32)
    assert_bits_equal(found, of_weight + of_table)


# Files -------------------------------------------------------------------------------------------------
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
    with pytest.raises(TypeError, match=r"^lm_head.weight is a Aligned; expected an array of shape \[V, H\]"):
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
