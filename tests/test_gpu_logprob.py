"""On an NVIDIA GPU log-probabilities and their gradients have the contract's bits, at odd sizes and strides."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from frameworks import FLOATS, JAX, TORCH, Framework, both
from gradients import placed, value_and_gradients
from vector_cases import array, vector_cases

import rlk_torch
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng


def on_gpu(framework: Framework, x: Any) -> Any:
    return placed(framework, x, "gpu")


def with_gradients(framework: Framework, function: Any, arguments: list[Any], upstream: Any) -> tuple[Any, Any]:
    """The result, and the gradients of all arguments; in JAX compiled together, which takes less time."""
    every = range(len(arguments))
    return value_and_gradients(framework, function, arguments, every, upstream, compiled=framework is JAX)


def check(framework: Framework, x: Any, ids: Any, g: Any) -> None:
    __tracebackhide__ = True

    def function(logits: Any) -> Any:
        return framework.package.selected_logprob(logits, on_gpu(framework, ids), check_ids=False)

    out, (grad,) = with_gradients(framework, function, [on_gpu(framework, x)], on_gpu(framework, g))
    assert_bits_equal(out, contract.selected_logprob(x, ids))
    assert_bits_equal(grad, contract.selected_logprob_grad(x, ids, g))


@pytest.mark.parametrize("case", vector_cases("selected_logprob"))
@both
def test_vectors(framework, case):
    x, ids = array(case["logits"]), np.array(case["target_ids"])
    if "grad_logprob" not in case:
        assert_bits_equal(framework.package.selected_logprob(on_gpu(framework, x), ids), array(case["expect"]))
        return
    check(framework, x, ids, array(case["grad_logprob"]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("vocab", [1, 2047, 2048, 2049, 151936])
@both
def test_vocabs_around_a_tile(framework, vocab, dtype):
    rng = RNG(vocab)
    x = (rng.standard_normal((5, vocab)) * 8).astype(dtype)
    x[1, : vocab // 2], x[2, 0] = -np.inf, np.nan
    g = (rng.standard_normal(5) * 2.0 ** np.array([0, -120, 0, -149, 100])).astype(np.float32)
    check(framework, x, rng.integers(0, vocab, 5), g)


def test_strided_logits_in_torch():
    x = (RNG(0).standard_normal((7, 300)) * 8).astype(np.float32)
    ids = RNG(1).integers(0, 300, 7)
    turned = TORCH.array(np.ascontiguousarray(x.T)).cuda().T
    assert not turned.is_contiguous()
    assert_bits_equal(rlk_torch.selected_logprob(turned, ids), contract.selected_logprob(x, ids))


@pytest.mark.parametrize("shape", [(5, 300, 64), (130, 1000, 96)], ids=str)
@both
def test_from_hidden_states(framework, shape):
    count, vocab, width = shape
    rng = RNG(2)
    h, w = (rng.standard_normal(size).astype(FLOATS[0]) for size in ((count, width), (vocab, width)))
    b, g = rng.standard_normal(vocab).astype(np.float32), rng.standard_normal(count).astype(np.float32)
    ids = rng.integers(0, vocab, count)
    logits = contract.lm_head_fp32(h, w, b)
    wanted = contract.lm_head_grads(contract.selected_logprob_grad(logits, ids, g), h, w, b.dtype)

    def function(h: Any, w: Any, b: Any) -> Any:
        targets = on_gpu(framework, ids)
        return framework.package.linear_logprob(h, w, targets, b, check_ids=False, budget=count * vocab)

    arguments = [on_gpu(framework, x) for x in (h, w, b)]
    out, found = with_gradients(framework, function, arguments, on_gpu(framework, g))
    assert_bits_equal(out, contract.selected_logprob(logits, ids))
    for name, actual, want in zip(("hidden", "weight", "bias"), found, wanted, strict=True):
        assert_bits_equal(actual, want, context=f"the gradient of {name}")


def test_at_full_size_both_frameworks_agree_within_two_gigabytes():
    generator = torch.Generator("cuda").manual_seed(0)
    weight = torch.empty((151936, 4096), dtype=torch.bfloat16, device="cuda").normal_(0, 0.02, generator=generator)
    hidden = torch.randn((2048, 4096), device="cuda", generator=generator).bfloat16()
    ids = torch.randint(0, 151936, (2048,), device="cuda", generator=generator)
    aligned = rlk_torch.align(weight, 4)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    in_torch = rlk_torch.linear_logprob(hidden, aligned, ids, check_ids=False)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= 2 * 2**30
    del aligned
    in_jax = JAX.package.linear_logprob(*(jnp.from_dlpack(x) for x in (hidden, weight, ids.int())))
    assert_bits_equal(in_jax, in_torch)
    some = [0, 1023, 1024, 2047]
    rows = rlk_torch.lm_head_fp32(hidden[some].cpu(), weight.cpu())
    assert_bits_equal(in_torch[some], contract.selected_logprob(rows.numpy(), ids[some].cpu().numpy()))
