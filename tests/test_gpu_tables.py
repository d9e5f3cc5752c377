"""On NVIDIA GPUs tables give the right bits, those in host memory cost no device memory, and devices are obeyed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from bit_arrays import random_bits
from frameworks import BFLOAT16, FLOATS, JAX, TORCH, Framework, both
from gradients import normal
from numpy.typing import NDArray
from processes import run_alone

from crosscheck import contract, scaled
from crosscheck import quantized as reference
from crosscheck.bits import as_numpy, assert_bits_equal
from crosscheck.rounding import narrow

pytestmark = pytest.mark.gpu

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="not run: fewer than two CUDA devices")
everywhere = pytest.mark.parametrize("residency", ["device", "host"])


def on_gpu(framework: Framework, x: NDArray[Any], index: int = 0) -> Any:
    if framework is TORCH:
        return framework.array(x).to(f"cuda:{index}")
    return jax.device_put(framework.array(x), jax.devices("gpu")[index])


def table_of(framework: Framework, weight: NDArray[Any], residency: str, **options: Any) -> Any:
    make = framework.package.EmbeddingTable
    if residency == "host":
        return make(
            framework.array(weight) if framework is TORCH else weight, residency="host", device="cuda:0", **options
        )
    return make(on_gpu(framework, weight), **options)


def float_bits(dtype: np.dtype[Any], scale: float) -> NDArray[Any]:
    """All 16-bit patterns; of float32 those whose products lie around 2^-126 and 2^128, subnormals and random ones."""
    if dtype != np.float32:
        return np.arange(2**16, dtype=np.uint16).view(dtype)
    edges = [int(np.float32(min(edge / abs(scale), 2.0**127)).view(np.uint32)) for edge in (2.0**-126, 2.0**128)]
    near = [np.arange(max(0, edge - 4000), edge + 4000) for edge in (*edges, 0, 2**23, 0x7F800000)]
    draw = np.random.default_rng(0).integers(0, 2**32, 20000)
    bits = np.concatenate([*near, draw]).astype(np.uint32)
    return np.concatenate([bits, bits | np.uint32(2**31)]).view(np.float32)


# Bits --------------------------------------------------------------------------------------------------
@everywhere
@pytest.mark.parametrize("scale", [64.0, -0.3, 2.0**-100])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@both
def test_scaled_rows(framework, dtype, scale, residency):
    scale = float(np.float32(scale))
    bits = float_bits(dtype, scale)
    weight = bits[: len(bits) // 32 * 32].reshape(-1, 32)
    table, ids = table_of(framework, weight, residency, scale=scale), np.arange(-1, len(weight) + 1)
    for path in ("embedding", "embedding_fp32"):
        rows = (table.fp32 if path == "embedding_fp32" else table)(ids, check_ids=False)
        assert_bits_equal(rows, getattr(scaled, path)(ids, weight, scale, check_ids=False), context=path)


@pytest.mark.parametrize("width", [1, 3, 128, 4096])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@both
def test_rows_of_a_host_table(framework, dtype, width):
    weight, ids = random_bits(dtype, (50, width)), np.random.default_rng(0).integers(-1, 51, (7, 11))
    table = table_of(framework, weight, "host")
    assert_bits_equal(table(ids, check_ids=False), contract.embedding(ids, weight, check_ids=False))
    assert_bits_equal(table.fp32(ids, check_ids=False), contract.embedding_fp32(ids, weight, check_ids=False))
    there = on_gpu(framework, ids.astype(np.int32))
    assert_bits_equal(table(there, check_ids=False), contract.embedding(ids, weight, check_ids=False))
    with pytest.raises(IndexError, match=r"expected 0 <= id < 50, the vocab"):
        table(there)
    assert as_numpy(table([3])).shape == (1, width)  # the device lives on


@both
def test_a_host_table_in_compiled_code(framework):
    weight, ids = random_bits(BFLOAT16, (50, 64)), np.array([[3, -1], [50, 49]], np.int32)
    table = table_of(framework, weight, "host")
    rows = framework.compiled(lambda ids: table(ids))(on_gpu(framework, ids))
    assert_bits_equal(rows, contract.embedding(ids, weight, check_ids=False))


def test_the_mechanism_says_what_runs_in_torch():
    weight = normal(50, 64)
    table = table_of(TORCH, weight, "host")
    assert table.weight.is_pinned() and table.weight.device.type == "cpu"
    assert table.mechanism == "a Triton kernel on cuda:0 that reads pinned host memory"
    assert table_of(TORCH, weight, "device").mechanism == "a Triton kernel on cuda:0"
    table.weight = table.weight.clone()  # no longer pinned
    assert table.mechanism == "a gather on the host, its rows copied to cuda:0"
    ids = torch.tensor([3, 49, -1], device="cuda:0")
    assert_bits_equal(table(ids, check_ids=False), contract.embedding([3, 49, -1], weight, check_ids=False))
    with pytest.raises(ValueError, match=r"^token_ids is on cpu, the table's result on cuda:0; expected one device"):
        table(ids.cpu())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@both
def test_gradients_of_scaled_rows(framework, dtype):
    weight, ids = normal(40, 130, dtype=dtype), np.random.default_rng(0).integers(0, 40, 300)
    ids[:100] = 7
    grad = normal(300, 130, dtype=dtype, seed=1)
    expected = scaled.embedding_grad(ids, grad, 40, dtype, 55.5)
    table = table_of(framework, weight, "device", scale=55.5)
    if framework is TORCH:
        table(ids).backward(on_gpu(TORCH, grad))
        actual = table.weight.grad
    else:
        actual = jax.vjp(lambda table: table(ids), table)[1](on_gpu(JAX, grad))[0].weight
    assert_bits_equal(actual, expected)


# Quantized tables --------------------------------------------------------------------------------------
def quantized(kind: str, vocab: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    values = rng.integers(-128, 128, (vocab, width)).astype(np.int8)
    if kind == "power_of_two":
        return values, np.resize(np.arange(-128, 128), vocab).astype(np.int8)
    scale = rng.integers(0, 2**32, vocab).astype(np.uint32)
    near = [int(np.float32(edge).view(np.uint32)) for edge in (2.0**-25, 2.0**-126 / 100, 2.0**-126, 500, 2.0**121)]
    for i, edge in enumerate(near):
        scale[i * 100 : (i + 1) * 100] = edge + np.arange(-50, 50)
    scale[500:503] = 0x7F800000, 0xFF800000, 0x7F800001
    return values, scale.view(np.float32)


def on_gpu_quantized(framework: Framework, values: NDArray[Any], scale: NDArray[Any]) -> Any:
    array = (lambda x: torch.from_numpy(x).cuda()) if framework is TORCH else (lambda x: on_gpu(JAX, x))
    return framework.package.QuantizedTable(array(values), array(scale))


@pytest.mark.parametrize("scale_by", [None, 55.5])
@everywhere
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["power_of_two", "float32"])
@both
def test_quantized_rows(framework, kind, dtype, residency, scale_by):
    values, scale = quantized(kind, 1000, 96)
    table = on_gpu_quantized(framework, values, scale)
    options = {"scale": scale_by, "dtype": getattr(torch if framework is TORCH else jnp, dtype.name)}
    if residency == "host":
        options |= {"residency": "host", "device": "cuda:0"}
    ids = np.arange(-1, 1001)
    rows = framework.package.EmbeddingTable(table, **options)(ids, check_ids=False)
    wide = reference.embedding(ids, values, scale, np.float32, check_ids=False)
    exact = reference.embedding(ids, values, scale, dtype, check_ids=False)
    assert_bits_equal(rows, exact if scale_by is None else narrow(scaled.times(wide, scale_by), dtype))


@pytest.mark.parametrize("rows", [3, 700])
@pytest.mark.parametrize("digits", [3, 4])
@pytest.mark.parametrize("kind", ["power_of_two", "float32"])
@both
def test_a_quantized_head(framework, kind, digits, rows):
    values, scale = quantized(kind, 600, 100)
    weight = reference.dequantized(values, scale, np.float32)
    hidden = normal(rows, 100, dtype=BFLOAT16)
    table, x = on_gpu_quantized(framework, values, scale), on_gpu(framework, hidden)
    expected = contract.lm_head(hidden, weight, digits=digits)
    lm_head = framework.package.lm_head
    assert_bits_equal(lm_head(x, table, digits=digits), expected)
    assert_bits_equal(lm_head(x, framework.package.align(table, digits), digits=digits), expected)


@both
def test_the_gradient_of_hidden_through_a_quantized_head(framework):
    values, scale = quantized("power_of_two", 600, 100)
    values, scale = values[:40], (scale[:40] // 32).astype(np.int8)
    hidden, grad = normal(5, 100, dtype=BFLOAT16), normal(5, 40, dtype=BFLOAT16, seed=1)
    expected = contract.lm_head_grads(grad, hidden, reference.dequantized(values, scale, np.float32))[0]
    table, x = on_gpu_quantized(framework, values, scale), on_gpu(framework, hidden)
    if framework is TORCH:
        x.requires_grad_()
        (actual,) = torch.autograd.grad(framework.package.lm_head(x, table), x, on_gpu(TORCH, grad))
    else:
        actual = jax.vjp(lambda x: framework.package.lm_head(x, table), x)[1](on_gpu(JAX, grad))[0]
    assert_bits_equal(actual, expected)


# Memory ------------------------------------------------------------------------------------------------
LARGE = (2**19, 4096)  # 4.3 GB of bfloat16
GIGABYTE = 1e9


def test_a_large_host_table_costs_no_device_memory_in_torch():
    weight = torch.zeros(LARGE, dtype=torch.bfloat16)
    weight[-1], weight[12345] = 1, 2
    table = TORCH.package.EmbeddingTable(weight, residency="host", device="cuda:0")
    ids = torch.full((8192,), LARGE[0] - 1, device="cuda:0")
    ids[5] = 12345
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info(0)[0]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    rows = table(ids)
    assert torch.cuda.max_memory_allocated() - before <= GIGABYTE
    assert free - torch.cuda.mem_get_info(0)[0] <= GIGABYTE
    assert (rows.min().item(), rows.max().item(), (rows == 2).sum().item()) == (1, 2, LARGE[1])


JAX_MEMORY = f"""
import jax, ml_dtypes, numpy as np, rlk_jax

weight = np.zeros({LARGE}, np.uint16).view(ml_dtypes.bfloat16)
weight[-1], weight[12345] = 1, 2
device = jax.devices("gpu")[0]
table = rlk_jax.EmbeddingTable(weight, residency="host", device=device)
ids = np.full(8192, {LARGE[0] - 1})
ids[5] = 12345
for rows in (table(ids), jax.jit(lambda table, ids: table(ids))(table, ids.astype(np.int32))):
    assert rows.devices() == {{device}}
    assert (float(rows.min()), float(rows.max()), int((rows == 2).sum())) == (1, 2, {LARGE[1]})
print(device.memory_stats()["peak_bytes_in_use"])
"""


def test_a_large_host_table_costs_no_device_memory_in_jax():
    assert int(run_alone(JAX_MEMORY, XLA_PYTHON_CLIENT_PREALLOCATE="false")) <= GIGABYTE


# Two GPUs ----------------------------------------------------------------------------------------------
def gpu(framework: Framework, index: int) -> Any:
    return torch.device("cuda", index) if framework is TORCH else jax.devices("gpu")[index]


def devices_of(framework: Framework, x: Any) -> set[Any]:
    return {x.device} if framework is TORCH else x.devices()


@two_gpus
@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "by itself"])
@both
def test_operators_run_on_the_second_gpu_while_the_first_is_current(framework, by_name):
    device = "cuda:1" if by_name else gpu(framework, 1)
    package, there = framework.package, {gpu(framework, 1)}
    hidden, weight, bias = (
        normal(*shape, dtype=BFLOAT16, seed=i) for i, shape in enumerate(((700, 128), (300, 128), (300,)))
    )
    gather, head = package.get_op("embedding", device), package.get_op("lm_head", device)
    w, b = on_gpu(framework, weight, 1), on_gpu(framework, bias, 1)
    rows = gather([3, 299], w)
    assert devices_of(framework, rows) == there
    assert_bits_equal(rows, weight[[3, 299]])
    for count in (3, 700):
        for digits in (3, 4):
            expected = contract.lm_head(hidden[:count], weight, bias, digits=digits)
            x = on_gpu(framework, hidden[:count], 1)
            for other in (w, package.align(w, digits)):
                logits = head(x, other, b, digits=digits)
                assert devices_of(framework, logits) == there
                assert_bits_equal(logits, expected)


@two_gpus
@both
def test_gradients_on_the_second_gpu(framework):
    hidden, weight, grad = normal(300, 128), normal(40, 128, seed=1), normal(300, 40, seed=2)
    expected = contract.lm_head_grads(grad, hidden, weight)
    arrays = [on_gpu(framework, x, 1) for x in (hidden, weight)]
    if framework is TORCH:
        arrays = [x.requires_grad_() for x in arrays]
        found = torch.autograd.grad(TORCH.package.lm_head(*arrays), arrays, on_gpu(TORCH, grad, 1))
    else:
        found = jax.vjp(JAX.package.lm_head, *arrays)[1](on_gpu(JAX, grad, 1))
    for actual, wanted in zip(found, expected, strict=False):
        assert_bits_equal(actual, wanted)


@two_gpus
@both
def test_tables_on_the_second_gpu(framework):
    weight, ids = normal(50, 128, dtype=BFLOAT16), np.array([3, 49, 3])
    host = framework.package.EmbeddingTable(
        framework.array(weight) if framework is TORCH else weight, residency="host", device="cuda:1", scale=64
    )
    here = framework.package.EmbeddingTable(on_gpu(framework, weight, 1), scale=64)
    values = framework.package.quantize(on_gpu(framework, weight, 1))
    small = framework.package.EmbeddingTable(values)
    for rows in (host(ids), here(ids)):
        assert devices_of(framework, rows) == {gpu(framework, 1)}
        assert_bits_equal(rows, scaled.embedding(ids, weight, 64))
    expected = reference.embedding(ids, as_numpy(values.values), as_numpy(values.scale), BFLOAT16)
    assert devices_of(framework, small(ids)) == {gpu(framework, 1)}
    assert_bits_equal(small(ids), expected)


@two_gpus
@both
def test_arguments_on_two_gpus_are_refused_with_both_named(framework):
    head, (one, two) = framework.package.get_op("lm_head", "cuda:1"), (gpu(framework, index) for index in range(2))
    hidden, weight = normal(3, 8), normal(5, 8)
    with pytest.raises(ValueError) as raised:
        head(on_gpu(framework, hidden, 0), on_gpu(framework, weight, 0))
    assert str(raised.value) == f"weight is on {one} and the operator on {two}; move weight, or get_op for {one}"
    with pytest.raises(ValueError) as raised:
        head(on_gpu(framework, hidden, 0), on_gpu(framework, weight, 1))
    assert str(raised.value) == f"hidden is on {one}, weight on {two}; expected one device: move one of them"
