"""From hidden states to a token-level loss: no bit depends on how a batch of RL training is laid out.

The batches are those of test_rl_batches.py; the loss is the mean log-probability of the completions' tokens.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
from frameworks import FLOATS, JAX, TORCH, Framework, both
from gradients import on_each_device, placed, value_and_gradients
from numpy.typing import NDArray
from test_rl_batches import LAYOUTS, SAME_TOKENS, parameters, sequences

from crosscheck import contract, masked
from crosscheck.bits import as_numpy, assert_bits_equal

Array = NDArray[Any]
two_dtypes = pytest.mark.parametrize("dtype", FLOATS[::2], ids=str)  # bfloat16 and float32
OF_TOKENS, OF_ALL = ("logprobs", "grad_hidden"), ("loss", "of_each_sequence", "grad_weight", "grad_bias")


@cache
def loss(framework: Framework) -> Any:
    package = framework.package

    def mean(hidden: Any, weight: Any, bias: Any, targets: Any, mask: Any) -> Any:
        logprobs = package.linear_logprob(hidden, weight, targets, bias, check_ids=False)
        return package.masked_mean(logprobs, mask), package.masked_sum(logprobs, mask, axis=-1), logprobs

    return mean


@cache
def results(framework: Framework, device: str, dtype: np.dtype[Any], layout: str) -> dict[str, Array]:
    """Of each token in the order of the sequences, and of all; each sequence's sum where it has a row of its own."""
    batch, (_, weight, bias) = LAYOUTS[layout].batch(dtype), parameters(dtype)
    targets = np.zeros(batch.token_ids.size, np.int64)
    members = sequences(LAYOUTS[layout].prompts, LAYOUTS[layout].samples, dtype)
    targets[batch.places] = np.concatenate([np.roll(member.ids, -1) for member in members])
    targets = targets.reshape(batch.token_ids.shape)
    arguments = [placed(framework, x, device) for x in (batch.hidden, weight, bias, targets, batch.completion_mask)]
    upstream = (np.float32(1), np.zeros(targets.shape[:-1], np.float32), np.zeros(targets.shape, np.float32))
    grad = tuple(placed(framework, np.asarray(x), device) for x in upstream)
    (mean, sums, logprobs), (of_hidden, *of_head) = value_and_gradients(
        framework, loss(framework), arguments, (0, 1, 2), grad
    )
    flat = as_numpy(of_hidden).reshape(-1, batch.hidden.shape[-1])
    of_tokens = as_numpy(logprobs).reshape(-1)[batch.places], flat[batch.places]
    return dict(zip((*OF_TOKENS, *OF_ALL), (*of_tokens, *map(as_numpy, (mean, sums, *of_head))), strict=True))


@cache
def expected(dtype: np.dtype[Any], prompts: int, samples: int) -> dict[str, Array]:
    """The contract on the tokens alone."""
    members, (_, weight, bias) = sequences(prompts, samples, dtype), parameters(dtype)
    hidden, completion = (np.concatenate([getattr(m, name) for m in members]) for name in ("hidden", "completion"))
    targets = np.concatenate([np.roll(m.ids, -1) for m in members])
    logits = contract.lm_head_fp32(hidden, weight, bias)
    logprobs = contract.selected_logprob(logits, targets)
    of_logprobs = masked.masked_mean_grad(completion, np.float32(1), np.float32)
    of_logits = contract.selected_logprob_grad(logits, targets, of_logprobs)
    of_hidden, of_weight, of_bias = contract.lm_head_grads(of_logits, hidden, weight, dtype)
    found = logprobs, of_hidden, masked.masked_mean(logprobs, completion), of_weight, of_bias
    return dict(zip((*OF_TOKENS, "loss", "grad_weight", "grad_bias"), found, strict=True))


@on_each_device
@two_dtypes
@pytest.mark.parametrize("layout", LAYOUTS)
@both
def test_every_layout_gives_the_contracts_bits_for_its_tokens_alone(framework, layout, dtype, device):
    wanted = expected(dtype, LAYOUTS[layout].prompts, LAYOUTS[layout].samples)
    actual = results(framework, device, dtype, layout)
    for name, x in wanted.items():
        assert_bits_equal(actual[name], x, context=name)


@on_each_device
@two_dtypes
@pytest.mark.parametrize("layout", ["1x2", "3x4", "packed"])
def test_the_importance_ratio_between_the_frameworks_is_one(layout, dtype, device):
    trainer, rollout = (results(framework, device, dtype, layout)["logprobs"] for framework in (TORCH, JAX))
    assert_bits_equal(trainer, rollout)
    assert np.isfinite(trainer).all() and (trainer < -1).any()
    assert_bits_equal(np.exp(trainer - rollout), np.ones_like(trainer))


@on_each_device
@two_dtypes
@pytest.mark.parametrize("layout", [name for name in SAME_TOKENS[1:] if name not in ("packed", "stacked microbatches")])
@both
def test_a_sequence_has_the_same_sum_wherever_its_padding_is(framework, layout, dtype, device):
    base = results(framework, device, dtype, SAME_TOKENS[0])["of_each_sequence"].reshape(-1)
    actual = results(framework, device, dtype, layout)["of_each_sequence"].reshape(-1)
    order = np.random.default_rng(1).permutation(6) if LAYOUTS[layout].shuffled else np.arange(6)
    assert_bits_equal(actual[order], base)
    assert len(set(base.tolist())) == 6


@on_each_device
@pytest.mark.parametrize("shards", [1, 2, 4, 8])
@both
def test_the_loss_does_not_notice_how_the_vocab_is_divided(framework, shards, device):
    """In one process: the logits of each shard, its largest ones and sums of exponentials, then one log-probability."""
    dtype, layout = FLOATS[0], "3x4"
    package, batch, (_, weight, bias) = framework.package, LAYOUTS[layout].batch(dtype), parameters(dtype)
    members = sequences(LAYOUTS[layout].prompts, LAYOUTS[layout].samples, dtype)
    targets = np.zeros(batch.token_ids.size, np.int64)
    targets[batch.places] = np.concatenate([np.roll(member.ids, -1) for member in members])
    hidden, targets, mask = (
        placed(framework, x, device)
        for x in (batch.hidden, targets.reshape(batch.token_ids.shape), batch.completion_mask)
    )
    parts = []
    for index in range(shards):
        rows = slice(*package.shard_range(len(weight), shards, index))
        part, offsets = (placed(framework, x[rows], device) for x in (weight, bias))
        parts.append(package.lm_head_fp32(hidden, part, offsets))
    logprobs = package.selected_logprob_of_parts(parts, targets)
    wanted = expected(dtype, LAYOUTS[layout].prompts, LAYOUTS[layout].samples)
    assert_bits_equal(as_numpy(logprobs).reshape(-1)[batch.places], wanted["logprobs"])
    assert_bits_equal(package.masked_mean(logprobs, mask), wanted["loss"])
