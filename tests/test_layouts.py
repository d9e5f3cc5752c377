"""Strides, offsets, expansion and autograd flags change no bit, and no input is written to."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from frameworks import BFLOAT16, FLOATS, FRAMEWORKS, JAX, TORCH, Framework
from numpy.typing import NDArray

from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

Array = NDArray[Any]
Layout = Callable[[Array], Any]


def in_torch(change: Callable[[torch.Tensor], torch.Tensor]) -> Layout:
    return lambda x: change(TORCH.array(x))


def strided(x: torch.Tensor) -> torch.Tensor:
    wide = x.new_zeros([2 * n for n in x.shape])
    every_second = (slice(None, None, 2),) * x.ndim
    wide[every_second] = x
    return wide[every_second]


def offset(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)


TORCH_LAYOUTS: dict[str, Layout] = {
    "transposed": in_torch(lambda x: x.mT.contiguous().mT if x.ndim > 1 else x),
    "strided": in_torch(strided),
    "offset by one element": in_torch(offset),
    "requires grad": in_torch(lambda x: x.requires_grad_()),
    "parameter": in_torch(torch.nn.Parameter),
    "result of a differentiable operator": in_torch(lambda x: x.requires_grad_().clone()),
    "negative bit": in_torch(lambda x: torch._neg_view(-x)),
}


def unaligned(x: Array) -> Array:
    return np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)


JAX_LAYOUTS: dict[str, Layout] = {
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "unaligned and read-only": unaligned,
    "array of the framework": JAX.array,
    "transposed array of the framework": lambda x: JAX.array(x.T).T,
}
PLACED = [
    pytest.param(framework, layout, id=f"{framework.name}-{name}")
    for framework, layouts in ((TORCH, TORCH_LAYOUTS), (JAX, JAX_LAYOUTS))
    for name, layout in layouts.items()
]


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


HIDDEN, WEIGHT, BIAS = normal(3, 70), normal(5, 70, seed=1), normal(5, seed=2)
TABLE, IDS = normal(9, 6, dtype=BFLOAT16), np.array([[1, 2, 8], [0, 1, 1]], np.int32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("framework", "layout"), PLACED)
def test_lm_head(framework, layout, dtype):
    hidden, weight, bias = (x.astype(dtype) for x in (HIDDEN, WEIGHT, BIAS))
    logits = framework.package.lm_head(layout(hidden), layout(weight), layout(bias))
    assert_bits_equal(logits, contract.lm_head(hidden, weight, bias))


@pytest.mark.parametrize(("framework", "layout"), PLACED)
def test_aligned_weight(framework, layout):
    aligned = framework.package.align(layout(WEIGHT), 4)
    assert_bits_equal(framework.package.lm_head(layout(HIDDEN), aligned), contract.lm_head(HIDDEN, WEIGHT))


@pytest.mark.parametrize("op", ["embedding", "embedding_fp32"])
@pytest.mark.parametrize(("framework", "layout"), PLACED)
def test_table(framework, layout, op):
    rows = getattr(framework.package, op)(IDS, layout(TABLE))
    assert_bits_equal(rows, getattr(contract, op)(IDS, TABLE))


@pytest.mark.parametrize("name", ["transposed", "strided", "offset by one element"])
def test_ids_in_torch(name):
    rows = TORCH.package.embedding(TORCH_LAYOUTS[name](IDS), TORCH.array(TABLE))
    assert_bits_equal(rows, TABLE[IDS])


@pytest.mark.parametrize("name", JAX_LAYOUTS)
def test_ids_in_jax(name):
    assert_bits_equal(JAX.package.embedding(JAX_LAYOUTS[name](IDS), JAX.array(TABLE)), TABLE[IDS])


# Expanded: one row or one value in the place of many ----------------------------------------------------
def expanded(framework: Framework, x: Array, shape: tuple[int, ...]) -> Any:
    return TORCH.array(x).expand(shape) if framework is TORCH else np.broadcast_to(x, shape)


on_each = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)


@on_each
def test_an_expanded_row_of_hidden(framework):
    logits = framework.package.lm_head(expanded(framework, HIDDEN[:1], (64, 70)), framework.array(WEIGHT))
    assert_bits_equal(logits, contract.lm_head(np.repeat(HIDDEN[:1], 64, axis=0), WEIGHT))


@on_each
def test_an_expanded_column_of_weight(framework):
    logits = framework.package.lm_head(framework.array(HIDDEN), expanded(framework, WEIGHT[:, :1], (5, 70)))
    assert_bits_equal(logits, contract.lm_head(HIDDEN, np.repeat(WEIGHT[:, :1], 70, axis=1)))


@on_each
def test_an_expanded_table_and_expanded_ids(framework):
    ids = expanded(framework, IDS[:1], (4, 3))
    rows = framework.package.embedding(ids, expanded(framework, TABLE[:1], (9, 6)))
    assert_bits_equal(rows, np.broadcast_to(TABLE[0], (4, 3, 6)))


# Inputs stay as they are --------------------------------------------------------------------------------
@pytest.mark.parametrize(("framework", "layout"), PLACED)
def test_no_input_is_written_to(framework, layout):
    special = np.array([np.nan, -np.inf, -0.0, 1e-40], np.float32)
    hidden, weight, bias, table = HIDDEN.copy(), WEIGHT.copy(), BIAS.copy(), TABLE.copy()
    hidden[0, :4], weight[1, :4], bias[:4], table[0, :4] = special, special, special, special
    originals = {"hidden": hidden, "weight": weight, "bias": bias, "table": table}
    placed = {name: layout(x) for name, x in originals.items()}
    framework.package.lm_head(placed["hidden"], placed["weight"], placed["bias"])
    framework.package.lm_head_fp32(placed["hidden"], framework.package.align(placed["weight"], 4), placed["bias"])
    framework.package.embedding_fp32(IDS, placed["table"])
    for name, x in originals.items():
        assert_bits_equal(as_numpy(placed[name]), x, context=name)


# Results belong to the caller ---------------------------------------------------------------------------
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "requires grad"])
@pytest.mark.parametrize("op", ["lm_head", "aligned", "embedding", "embedding_fp32"])
def test_a_result_can_be_written_to(op, grad):
    weight = TORCH.array(WEIGHT).requires_grad_(grad)
    if op.startswith("embedding"):
        result = getattr(TORCH.package, op)([0, 1], weight)
    else:
        aligned = TORCH.package.align(weight, 4) if op == "aligned" else weight
        result = TORCH.package.lm_head(TORCH.array(HIDDEN), aligned)
    doubled = as_numpy(result) * 2
    assert_bits_equal(result.mul_(2), doubled)
