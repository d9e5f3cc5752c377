"""Every implementation gives the bits of every vector of the contract, eager, compiled, batched and aligned before."""

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from frameworks import JAX, TORCH, Framework, both
from numpy.typing import NDArray
from vector_cases import array, vector_cases

import rlk_torch
from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

LM_HEAD = vector_cases("lm_head")
EMBEDDING = vector_cases("embedding", "embedding_fp32")
GRADIENTS = [case for case in vector_cases("selected_logprob") if "grad_logprob" in case.values[0]]

Case = dict[str, Any]


def operator(case: Case) -> str:
    return "lm_head" if case["out_dtype"] == case["hidden"]["dtype"] else "lm_head_fp32"


def inputs(case: Case) -> list[Any]:
    return [array(case[name]) if name in case else None for name in ("hidden", "weight", "bias")]


def arrays(framework: Framework, case: Case) -> list[Any]:
    return [None if x is None else framework.array(x) for x in inputs(case)]


def logits(package: Any, case: Case, hidden: Any, weight: Any, bias: Any) -> Any:
    return getattr(package, operator(case))(hidden, weight, bias, digits=case["digits"])


# NumPy -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", LM_HEAD)
def test_contract_lm_head(case):
    assert_bits_equal(logits(contract, case, *inputs(case)), array(case["expect"]))


@pytest.mark.parametrize("case", LM_HEAD)
def test_contract_lm_head_of_an_aligned_weight(case):
    hidden, weight, bias = inputs(case)
    assert_bits_equal(
        logits(contract, case, hidden, contract.align(weight, case["digits"]), bias), array(case["expect"])
    )


@pytest.mark.parametrize("case", EMBEDDING)
def test_contract_embedding(case):
    rows = getattr(contract, case["op"])(case["token_ids"], array(case["weight"]), check_ids=False)
    assert_bits_equal(rows, array(case["expect"]))


@pytest.mark.parametrize("case", vector_cases("lm_head_grad"))
def test_contract_lm_head_gradients(case):
    hidden, weight, grad = (array(case[name]) for name in ("hidden", "weight", "grad_logits"))
    # Where a case names no dtype for the bias, it has that of the expectation.
    bias_dtype = array(case["expect_grad_bias"]).dtype
    grads = contract.lm_head_grads(grad, hidden, weight, bias_dtype)
    for name, actual in zip(("hidden", "weight", "bias"), grads, strict=True):
        assert_bits_equal(actual, array(case[f"expect_grad_{name}"]), context=f"the gradient of {name}")


@pytest.mark.parametrize("case", vector_cases("embedding_grad"))
def test_contract_embedding_gradient(case):
    expected = array(case["expect"])
    grad = contract.embedding_grad(case["token_ids"], array(case["grad_rows"]), case["vocab"], expected.dtype)
    assert_bits_equal(grad, expected)


@pytest.mark.parametrize("case", vector_cases("selected_logprob"))
def test_contract_selected_logprob(case):
    logprobs = contract.selected_logprob(array(case["logits"]), case["target_ids"])
    assert_bits_equal(logprobs, array(case["expect"]))


@pytest.mark.parametrize("case", GRADIENTS)
def test_contract_selected_logprob_gradient(case):
    grad = contract.selected_logprob_grad(array(case["logits"]), case["target_ids"], array(case["grad_logprob"]))
    assert_bits_equal(grad, array(case["expect_grad_logits"]))


# Eager calls -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", LM_HEAD)
def test_torch_eager(case):
    assert_bits_equal(logits(rlk_torch, case, *arrays(TORCH, case)), array(case["expect"]))


@pytest.mark.parametrize("case", LM_HEAD)
def test_torch_aligned(case):
    hidden, weight, bias = arrays(TORCH, case)
    aligned = rlk_torch.align(weight, case["digits"])
    assert_bits_equal(logits(rlk_torch, case, hidden, aligned, bias), array(case["expect"]))


@pytest.mark.parametrize("implementation", ["float64", "int8"])
@pytest.mark.parametrize("case", LM_HEAD)
def test_torch_implementation(case, implementation):
    op = rlk_torch.get_op("lm_head", implementation=implementation)
    forward = op.forward if operator(case) == "lm_head" else op.forward_fp32
    assert_bits_equal(forward(*arrays(TORCH, case), digits=case["digits"]), array(case["expect"]))


@pytest.mark.parametrize("case", LM_HEAD)
def test_jax_eager(case):
    assert_bits_equal(logits(JAX.package, case, *arrays(JAX, case)), array(case["expect"]))


# One function of all cases, compiled once --------------------------------------------------------------
CASES = [case.values[0] for case in LM_HEAD]


@cache
def compiled_results(framework: Framework, aligned: bool) -> dict[str, NDArray[Any]]:
    def one(case: Case, hidden: Any, weight: Any, bias: Any) -> Any:
        weight = framework.package.align(weight, case["digits"]) if aligned else weight
        return logits(framework.package, case, hidden, weight, bias)

    every = [arrays(framework, case) for case in CASES]
    results = framework.compiled(lambda every: [one(c, *args) for c, args in zip(CASES, every, strict=True)])(every)
    return {case["id"]: as_numpy(result) for case, result in zip(CASES, results, strict=True)}


@pytest.mark.parametrize("case", LM_HEAD)
@both
def test_compiled(framework, case):
    assert_bits_equal(compiled_results(framework, aligned=False)[case["id"]], array(case["expect"]))


@pytest.mark.parametrize("case", LM_HEAD)
@both
def test_compiled_with_an_aligned_weight(framework, case):
    assert_bits_equal(compiled_results(framework, aligned=True)[case["id"]], array(case["expect"]))


@pytest.mark.parametrize("case", LM_HEAD)
@both
def test_vmap_over_rows(framework, case):
    hidden, weight, bias = arrays(framework, case)
    batched = framework.vmap(lambda row: logits(framework.package, case, row, weight, bias))
    assert_bits_equal(batched(hidden), array(case["expect"]))


# Embedding ---------------------------------------------------------------------------------------------
def rows(framework: Framework, case: Case, ids: Any, weight: Any) -> Any:
    return getattr(framework.package, case["op"])(ids, weight, check_ids=False)


@pytest.mark.parametrize("case", EMBEDDING)
@both
def test_embedding_eager(framework, case):
    actual = rows(framework, case, case["token_ids"], framework.array(array(case["weight"])))
    assert_bits_equal(actual, array(case["expect"]))


@pytest.mark.parametrize("case", EMBEDDING)
@both
def test_embedding_compiled(framework, case):
    with jax.enable_x64(True):  # an id of these cases has 33 bits
        ids, weight = framework.array(np.array(case["token_ids"])), framework.array(array(case["weight"]))
        actual = framework.compiled(lambda ids, weight: rows(framework, case, ids, weight))(ids, weight)
    assert_bits_equal(actual, array(case["expect"]))


@pytest.mark.parametrize("case", EMBEDDING)
@both
def test_embedding_vmap_over_ids(framework, case):
    with jax.enable_x64(True):
        ids, weight = framework.array(np.array(case["token_ids"])), framework.array(array(case["weight"]))
        actual = framework.vmap(lambda token: rows(framework, case, token, weight))(ids)
    assert_bits_equal(actual, array(case["expect"]))
