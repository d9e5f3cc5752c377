"""On an NVIDIA GPU every implementation gives the bits of every vector and of the contract at odd sizes."""

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from frameworks import FLOATS, JAX, TORCH
from vector_cases import array, vector_cases

import rlk_jax
import rlk_torch
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

pytestmark = pytest.mark.gpu

CUDA = "cuda"


def on_gpu(framework, x):
    moved = framework.array(x)
    return moved.to(CUDA) if framework is TORCH else jax.device_put(moved, jax.devices("gpu")[0])


def both_gpus():
    return pytest.mark.parametrize("framework", [TORCH, JAX], ids=["torch", "jax"])


def call(framework, case, aligned, implementation=None):
    hidden, weight = (on_gpu(framework, array(case[name])) for name in ("hidden", "weight"))
    bias = on_gpu(framework, array(case["bias"])) if "bias" in case else None
    op = framework.package.get_op("lm_head", CUDA, implementation)
    wide = case["out_dtype"] != case["hidden"]["dtype"]
    weight = framework.package.align(weight, case["digits"]) if aligned else weight
    return (op.forward_fp32 if wide else op.forward)(hidden, weight, bias, digits=case["digits"])


@both_gpus()
@pytest.mark.parametrize("aligned", [False, True], ids=["plain", "aligned"])
@pytest.mark.parametrize("case", vector_cases("lm_head"))
def test_lm_head(case, aligned, framework):
    assert_bits_equal(call(framework, case, aligned), array(case["expect"]))


@pytest.mark.parametrize("case", vector_cases("lm_head"))
def test_lm_head_by_the_plain_products_of_torch(case):
    assert_bits_equal(call(TORCH, case, True, "float64"), array(case["expect"]))


@both_gpus()
@pytest.mark.parametrize("case", vector_cases("embedding", "embedding_fp32"))
def test_embedding(case, framework):
    rows = getattr(framework.package, case["op"])(
        np.array(case["token_ids"]), on_gpu(framework, array(case["weight"])), check_ids=False
    )
    assert_bits_equal(rows, array(case["expect"]))


@both_gpus()
@pytest.mark.parametrize("tokens", [0, 1, 3, 257])
@pytest.mark.parametrize("width", [1, 3, 100, 127, 128, 129, 896, 4096, 10752])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_embedding_of_any_width_and_count(dtype, width, tokens, framework):
    rng = np.random.default_rng([width, tokens])
    table = rng.integers(0, 2**16, (33, width * dtype.itemsize // 2), dtype=np.uint16).view(dtype)
    ids = rng.integers(-1, 34, tokens)
    weight = on_gpu(framework, table)
    for op in ("embedding", "embedding_fp32"):
        rows = getattr(framework.package, op)(ids, weight, check_ids=False)
        assert_bits_equal(rows, getattr(contract, op)(ids, table, check_ids=False), context=op)


@both_gpus()
def test_which_gather_ran_is_named(framework):
    op = framework.package.get_op("embedding", CUDA)
    kernel = "triton" if framework is TORCH else "pallas"
    odd = kernel if framework is TORCH else "gather"
    served = [op.served_by(on_gpu(framework, np.zeros((2, width), np.float32))) for width in (128, 100)]
    assert [op.implementation, *served] == [kernel, kernel, odd]


@both_gpus()
@pytest.mark.parametrize("rows", [1, 5, 17, 40, 65, 257, 600])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 15, 17, 33, 67, 576])
@pytest.mark.parametrize("digits", [2, 3, 4])
def test_lm_head_at_odd_sizes(digits, width, rows, framework):
    rng = np.random.default_rng([digits, width, rows])
    dtype = FLOATS[(width + rows) % 3]
    hidden = rng.standard_normal((rows, width)).astype(dtype)
    weight = (rng.standard_normal((131, width)) * np.exp2(rng.integers(-9, 9, (131, 1)))).astype(ml_dtypes.bfloat16)
    hidden[rows // 2] *= dtype.type(0)
    bias = rng.standard_normal(131).astype(np.float16)
    arrays = [on_gpu(framework, x) for x in (hidden, weight, bias)]
    actual = framework.package.lm_head(*arrays, digits=digits)
    assert_bits_equal(actual, contract.lm_head(hidden, weight, bias, digits=digits))


@both_gpus()
@pytest.mark.parametrize("width", [8192, 8256, 65537, 90000])
@pytest.mark.parametrize("digits", [3, 4])
def test_lm_head_of_long_rows(digits, width, framework):
    rng = np.random.default_rng(width)
    hidden, weight = (rng.uniform(0.9, 1, (n, width)).astype(np.float32) for n in (600, 17))
    arrays = [on_gpu(framework, x) for x in (hidden, weight)]
    actual = framework.package.lm_head(*arrays, digits=digits)
    assert_bits_equal(actual, contract.lm_head(hidden, weight, digits=digits))


def test_precision_flags_of_torch_change_no_bit():
    rng = np.random.default_rng(0)
    hidden, weight = (rng.standard_normal((n, 96)).astype(np.float32) for n in (20, 50))
    arrays = [on_gpu(TORCH, x) for x in (hidden, weight)]
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with torch.autocast(CUDA, dtype=torch.bfloat16):
            for name in ("triton", "float64"):
                actual = rlk_torch.get_op("lm_head", CUDA, name)(*arrays)
                assert_bits_equal(actual, contract.lm_head(hidden, weight), context=name)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_tf32_in_jax_changes_no_bit():
    hidden, weight = np.ones((1, 1), np.float32), np.arange(8192, dtype=np.float32)[:, None]
    with jax.default_matmul_precision("tensorfloat32"):
        actual = rlk_jax.lm_head(on_gpu(JAX, hidden), on_gpu(JAX, weight))
    assert_bits_equal(actual, weight.T)


@both_gpus()
def test_a_bad_id_between_good_ones_is_reported_and_the_device_lives_on(framework):
    weight = on_gpu(framework, np.ones((7, 128), np.float32))
    for ids in ([3], [7], [-1], [2**32 + 1], [3]):
        if ids == [3]:
            assert_bits_equal(framework.package.embedding(ids, weight), np.ones((1, 128), np.float32))
        else:
            with pytest.raises(IndexError, match=r"token_ids\[0\] is .*the vocab"):
                framework.package.embedding(np.array(ids), weight)
