"""At the size of a real model (V 151936, K 4096) GPUs and CPU give the same bits, past every 32-bit offset."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import rlk_jax
import rlk_torch
from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal, digest
from rlk_torch import lm_head_grad

pytestmark = pytest.mark.gpu

V, K = 151936, 4096


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    table = torch.empty((V, K), dtype=torch.bfloat16)
    for rows in table.split(8192):
        rows.copy_(torch.randn(rows.shape, generator=generator) * 0.02)
    return table


@pytest.fixture(scope="module")
def hidden() -> torch.Tensor:
    states = torch.randn((2048, K), generator=torch.Generator().manual_seed(1))
    states[:, 7] *= 50  # an outlier column, as real hidden states have
    return states.bfloat16()


@pytest.fixture(scope="module")
def on_cpu(hidden, weight) -> torch.Tensor:
    return rlk_torch.lm_head(hidden, weight)


@pytest.mark.parametrize("aligned", [False, True], ids=["plain", "aligned"])
@pytest.mark.parametrize("rows", [1, 16, 257, 2048])
def test_torch_cuda_equals_the_cpu(rows, aligned, hidden, weight, on_cpu):
    table = weight.cuda()
    table = rlk_torch.align(table, 3) if aligned else table
    assert digest(rlk_torch.lm_head(hidden[:rows].cuda(), table).cpu()) == digest(on_cpu[:rows])


@pytest.mark.parametrize("rows", [1, 16, 257, 2048])
def test_jax_gpu_equals_the_cpu(rows, hidden, weight, on_cpu):
    table = rlk_jax.align(jax.device_put(as_numpy(weight), jax.devices("gpu")[0]), 3)
    assert digest(np.asarray(rlk_jax.lm_head(as_numpy(hidden[:rows]), table))) == digest(on_cpu[:rows])


def test_the_cpu_equals_the_contract_on_sampled_rows(hidden, weight, on_cpu):
    assert_bits_equal(on_cpu[[0, 1023]], contract.lm_head(as_numpy(hidden[[0, 1023]]), as_numpy(weight)))


def test_more_than_2_31_logits(hidden, weight, on_cpu):
    many = hidden.repeat(7, 1)[:14200].cuda()
    logits = rlk_torch.lm_head(many, rlk_torch.align(weight.cuda(), 3))
    for row in (0, 2047, 14199):
        assert_bits_equal(logits[row], on_cpu[row % 2048], context=f"row {row}")


def test_rows_past_2_31_elements_of_a_table():
    table = torch.zeros((262144, 8960), dtype=torch.bfloat16, device="cuda")
    rows = (0, 239673, 239674, 262143)
    for row in rows:
        table[row] = torch.arange(8960, device="cuda") % 251 + row % 7
    expected = as_numpy(table[list(rows)])
    assert_bits_equal(rlk_torch.embedding(list(rows), table), expected)
    shared = jnp.from_dlpack(table)
    assert_bits_equal(rlk_jax.embedding(list(rows), shared), expected)


def test_memory_beside_inputs_and_outputs_stays_below_a_gigabyte(hidden, weight):
    states, table = hidden.cuda(), weight.cuda()
    rlk_torch.lm_head(states[:1], table[:64])
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    logits = rlk_torch.lm_head(states, table)
    extra = torch.cuda.max_memory_allocated() - before - logits.nbytes
    assert extra <= 1e9


@pytest.mark.parametrize("rows", [1, 16, 2048])
def test_memory_beside_inputs_and_outputs_stays_below_a_gigabyte_in_jax(rows):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, K), (V, K))]
    compiled = jax.jit(rlk_jax.lm_head).lower(*arrays).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 1e9


def test_gradients_on_cuda_equal_those_on_the_cpu(hidden, weight):
    grad = torch.randn((512, 4096), generator=torch.Generator().manual_seed(2)).bfloat16()
    states = hidden[:512].clone().requires_grad_()
    part = weight[:4096].clone().requires_grad_()
    on_cpu = torch.autograd.grad(rlk_torch.lm_head(states, part), (states, part), grad)
    states, part = (x.detach().cuda().requires_grad_() for x in (states, part))
    on_gpu = torch.autograd.grad(rlk_torch.lm_head(states, part), (states, part), grad.cuda())
    for actual, expected in zip(on_gpu, on_cpu, strict=True):
        assert_bits_equal(actual, expected)


def test_the_gradient_of_hidden_over_the_whole_vocab(hidden, weight):
    grad = torch.randn((16, V), generator=torch.Generator().manual_seed(3)).bfloat16()
    expected = lm_head_grad.grad_hidden(grad, weight, torch.bfloat16)
    assert_bits_equal(lm_head_grad.grad_hidden(grad.cuda(), weight.cuda(), torch.bfloat16), expected)


def test_memory_of_gradients_stays_below_a_gigabyte(hidden, weight):
    table, grad = weight.cuda(), torch.ones((2048, V), dtype=torch.bfloat16, device="cuda")
    for gradient, other in ((lm_head_grad.grad_hidden, table), (lm_head_grad.grad_weight, hidden.cuda())):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = gradient(grad, other, torch.bfloat16)
        assert torch.cuda.max_memory_allocated() - before - result.nbytes <= 1e9, gradient.__name__
        del result
