"""In batches of RL training a token's results and the sums over all tokens do not depend on how they are laid out.

A batch holds some prompts, each with some sampled completions of its own length. Rows come in any order, padded on
either side with any token, packed, or as stacked microbatches; the hidden states at padded positions are whatever the
model left there, and the upstream gradient is zero there and, for the logits, at the prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from frameworks import FLOATS, FRAMEWORKS, JAX, TORCH, Framework, both
from gradients import gradients, normal, on_each_device, placed, value_and_gradients
from numpy.typing import NDArray

from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

Array = NDArray[Any]

VOCAB, WIDTH = 29, 24
LENGTH = 20  # of a row: the longest prompt and the longest completion have 8 and 12 tokens
PROBES = {"prompt": 1, "completion": 8 + 1}  # positions in the first sequence

every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)


# Sequences --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tokens:
    """Tokens side by side: of a prompt with one completion, or of several of these one after the other."""

    ids: Array  # int64 [L]
    completion: Array  # bool [L]
    hidden: Array  # [L, K]
    grad_logits: Array  # [L, V], zero at the prompt
    grad_rows: Array  # [L, K]
    prompt: int  # its length


@cache
def sequence(prompt: int, sample: int, dtype: np.dtype[Any]) -> Tokens:
    """The samples of a prompt share its tokens and, the model being causal, its hidden states."""
    shared, own = np.random.default_rng([prompt]), np.random.default_rng([prompt, sample])
    lengths = int(shared.integers(3, 9)) if prompt else 8, int(own.integers(3, 13))
    ids = np.concatenate([rng.integers(1, VOCAB, n) for rng, n in zip((shared, own), lengths, strict=True)])
    hidden = np.concatenate([rng.standard_normal((n, WIDTH)) for rng, n in zip((shared, own), lengths, strict=True)])
    hidden[:, 3] *= 20  # an outlier column, as real hidden states have
    completion = np.arange(len(ids)) >= lengths[0]
    odds = np.exp(own.standard_normal((len(ids), VOCAB)) * 2)
    policy_gradient = np.eye(VOCAB)[np.roll(ids, -1)] - odds / odds.sum(axis=1, keepdims=True)
    policy_gradient *= completion[:, None] * own.standard_normal()  # the advantage of the sample
    arrays = (x.astype(dtype) for x in (hidden, policy_gradient, own.standard_normal((len(ids), WIDTH))))
    return Tokens(ids, completion, *arrays, lengths[0])


def sequences(prompts: int, samples: int, dtype: np.dtype[Any]) -> list[Tokens]:
    return [sequence(p, s, dtype) for p in range(prompts) for s in range(samples)]


# Layouts ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Batch:
    """Arrays [..., T, ...]; `places` says where the tokens lie, sequence by sequence, in the flattened batch."""

    token_ids: Array
    attention_mask: Array
    completion_mask: Array
    hidden: Array
    grad_logits: Array
    grad_rows: Array
    places: Array


@dataclass(frozen=True)
class Layout:
    prompts: int = 2
    samples: int = 3
    side: str = "left"  # where the padding is; "both": left of prompts, which end together, and right of completions
    length: int = LENGTH  # of a row; packed rows have none
    shuffled: bool = False
    padding: int = 0  # another number: other tokens and other hidden states at padded positions
    microbatches: int = 1

    def batch(self, dtype: np.dtype[Any]) -> Batch:
        members = sequences(self.prompts, self.samples, dtype)
        rows = np.random.default_rng(1).permutation(len(members)) if self.shuffled else np.arange(len(members))
        if self.side == "packed":
            total = sum(len(member.ids) for member in members)
            starts, shape = np.cumsum([0, *(len(member.ids) for member in members[:-1])]), (1, total)
        else:
            starts = np.array([r * self.length + self._start(m) for r, m in zip(rows, members, strict=True)])
            shape = (self.microbatches, len(members) // self.microbatches, self.length)
        places = np.concatenate([s + np.arange(len(m.ids)) for s, m in zip(starts, members, strict=True)])
        return _filled(shape, places, members, self.padding)

    def _start(self, member: Tokens) -> int:
        return {"left": self.length - len(member.ids), "right": 0, "both": 8 - member.prompt}[self.side]


def _filled(shape: tuple[int, ...], places: Array, members: Sequence[Tokens], padding: int) -> Batch:
    """Padded positions get a token, and garbage of the size of what is real for their hidden states."""
    joined = {
        name: np.concatenate([getattr(m, name) for m in members]) for name in Tokens.__annotations__ if name != "prompt"
    }
    rng, count = np.random.default_rng([padding, 7]), int(np.prod(shape))
    ids = rng.integers(0, VOCAB, count) if padding else np.zeros(count, np.int64)
    hidden = rng.choice(joined["hidden"], count) if padding else np.zeros((count, WIDTH), joined["hidden"].dtype)
    filled = {"ids": ids, "hidden": hidden}
    for name, x in joined.items():
        filled.setdefault(name, np.zeros((count, *x.shape[1:]), x.dtype))[places] = x
    mask = np.zeros(count, bool)
    mask[places] = True
    arrays = filled["ids"], mask, filled["completion"], filled["hidden"], filled["grad_logits"], filled["grad_rows"]
    return Batch(*(x.reshape(*shape, *x.shape[1:]) for x in arrays), places)


LAYOUTS = {
    "1x2": Layout(1, 2, length=3 * LENGTH),
    "2x3": Layout(2, 3),
    "3x4": Layout(3, 4),
    "rows in another order": Layout(shuffled=True),
    "padded on the right": Layout(side="right"),
    "padded on both sides": Layout(side="both"),
    "other padding tokens and states": Layout(padding=1),
    "still other padding, shuffled": Layout(padding=2, shuffled=True, side="both"),
    "more padding": Layout(length=2 * LENGTH, padding=3),
    "packed": Layout(side="packed"),
    "stacked microbatches": Layout(microbatches=2, padding=4),
}
SAME_TOKENS = [name for name, layout in LAYOUTS.items() if (layout.prompts, layout.samples) == (2, 3)]
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


# Results ------------------------------------------------------------------------------------------------------
def parameters(dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    """Embedding table, weight of the head and its bias."""
    return (
        normal(VOCAB, WIDTH, dtype=dtype, seed=1),
        normal(VOCAB, WIDTH, dtype=dtype, seed=2),
        normal(VOCAB, dtype=dtype),
    )


OF_TOKENS = ("rows", "logits", "grad_hidden")
OF_ALL = ("grad_table", "grad_weight", "grad_bias")


@cache
def embedding_and_head(framework: Framework) -> Any:
    package = framework.package
    return lambda ids, table, hidden, *head: (package.embedding(ids, table), package.lm_head(hidden, *head))


@cache
def results(framework: Framework, device: str, dtype: np.dtype[Any], layout: str) -> dict[str, Array]:
    """What each token gets, in the order of the sequences, and the sums over all tokens."""
    batch = LAYOUTS[layout].batch(dtype)
    arguments = [
        placed(framework, x, device)
        for x in (batch.token_ids, parameters(dtype)[0], batch.hidden, *parameters(dtype)[1:])
    ]
    grad = tuple(placed(framework, x, device) for x in (batch.grad_rows, batch.grad_logits))
    (rows, logits), (of_table, of_hidden, *of_head) = value_and_gradients(
        framework, embedding_and_head(framework), arguments, (1, 2, 3, 4), grad
    )
    of_tokens = (as_numpy(x) for x in (rows, logits, of_hidden))
    return {
        **{n: x.reshape(-1, x.shape[-1])[batch.places] for n, x in zip(OF_TOKENS, of_tokens, strict=True)},
        **dict(zip(OF_ALL, (of_table, *of_head), strict=True)),
    }


@cache
def expected(dtype: np.dtype[Any], prompts: int, samples: int) -> dict[str, Array]:
    """The contract on the tokens alone."""
    members, (table, weight, bias) = sequences(prompts, samples, dtype), parameters(dtype)
    ids, hidden, grad_logits, grad_rows = (
        np.concatenate([getattr(m, name) for m in members]) for name in ("ids", "hidden", "grad_logits", "grad_rows")
    )
    of_hidden, *of_head = contract.lm_head_grads(grad_logits, hidden, weight, dtype)
    of_tokens = contract.embedding(ids, table), contract.lm_head(hidden, weight, bias), of_hidden
    of_all = contract.embedding_grad(ids, grad_rows, VOCAB, dtype), *of_head
    return dict(zip((*OF_TOKENS, *OF_ALL), (*of_tokens, *of_all), strict=True))


def assert_same(
    actual: dict[str, Array], others: dict[str, Array], names: Sequence[str] = (*OF_TOKENS, *OF_ALL)
) -> None:
    __tracebackhide__ = True
    for name in names:
        assert_bits_equal(actual[name], others[name], context=name)


@on_each_device
@every_dtype
@every_layout
@both
def test_every_layout_gives_the_contracts_bits_for_its_tokens_alone(framework, layout, dtype, device):
    of = LAYOUTS[layout]
    assert_same(results(framework, device, dtype, layout), expected(dtype, of.prompts, of.samples))


@on_each_device
@every_dtype
@pytest.mark.parametrize("layout", SAME_TOKENS[1:])
@both
def test_the_same_tokens_give_the_same_bits_however_they_are_laid_out(framework, layout, dtype, device):
    assert_same(results(framework, device, dtype, layout), results(framework, device, dtype, SAME_TOKENS[0]))


@on_each_device
@every_dtype
@pytest.mark.parametrize("probe", PROBES)
@both
def test_a_probe_token_gets_the_same_bits_in_batches_of_all_sizes(framework, probe, dtype, device):
    """The first sequence is in all of them; nothing that is one token's may depend on the others."""
    small, *larger = (results(framework, device, dtype, size) for size in ("1x2", "2x3", "3x4"))
    at = PROBES[probe]
    for other in larger:
        for name in OF_TOKENS:
            assert_bits_equal(other[name][at], small[name][at], context=name)
    assert small["grad_hidden"][at].any() == (probe == "completion")


@on_each_device
@every_dtype
@pytest.mark.parametrize("layout", ["3x4", "more padding", "packed"])
def test_torch_and_jax_agree_on_a_batch(layout, dtype, device):
    in_torch, in_jax = (results(framework, device, dtype, layout) for framework in (TORCH, JAX))
    assert_same(in_torch, in_jax)


@on_each_device
@every_dtype
@both
def test_completions_alone_give_the_gradients_of_all_tokens(framework, dtype, device):
    """Logits made for the completions only, as trainers do to save memory.

    The prompt's hidden states share a window with those of the completions, whatever their gradient. It holds all bits
    of 16-bit types; of float32 it may drop others, and the gradient of weight is then as near, with other bits.
    """
    batch, (_, weight, bias) = LAYOUTS["2x3"].batch(dtype), parameters(dtype)
    completion = batch.completion_mask.reshape(-1)[batch.places]
    chosen = batch.places[completion]
    hidden, grad = np.zeros((6 * LENGTH, WIDTH), dtype), np.zeros((6 * LENGTH, VOCAB), dtype)  # a shape that stays
    hidden[: len(chosen)] = batch.hidden.reshape(-1, WIDTH)[chosen]
    grad[: len(chosen)] = batch.grad_logits.reshape(-1, VOCAB)[chosen]
    of_hidden, of_weight, of_bias = gradients(framework, "lm_head", hidden, weight, bias, grad=grad, device=device)
    every = results(framework, device, dtype, "2x3")
    assert_bits_equal(of_hidden[: len(chosen)], every["grad_hidden"][completion])
    assert_bits_equal(of_bias, every["grad_bias"])
    if dtype != np.float32:
        assert_bits_equal(of_weight, every["grad_weight"])
    largest = np.abs(grad).max(axis=0)[:, None] * np.abs(batch.hidden).max(axis=(0, 1, 2)).astype(np.float64)
    assert (np.abs(of_weight - every["grad_weight"].astype(np.float64)) <= 3 * len(chosen) * 2.0**-27 * largest).all()


def test_the_layouts_are_what_their_names_say():
    """The harness itself: tokens at their places, padding that differs, no gradient where there must be none."""
    dtype = np.dtype(np.float32)
    base = LAYOUTS["2x3"].batch(dtype)
    for name in SAME_TOKENS:
        batch = LAYOUTS[name].batch(dtype)
        ids, mask = batch.token_ids.reshape(-1), batch.attention_mask.reshape(-1)
        assert_bits_equal(ids[batch.places], base.token_ids.reshape(-1)[base.places])
        assert mask[batch.places].all() and mask.sum() == len(batch.places) == len(set(batch.places))
        assert not batch.grad_logits[~batch.completion_mask].any() and not batch.grad_rows[~batch.attention_mask].any()
        assert batch.grad_logits[batch.completion_mask].any(axis=-1).all()
        assert batch.hidden[~batch.attention_mask].any() == (LAYOUTS[name].padding > 0)
        assert (name == "packed") == bool(mask.all())
    assert LAYOUTS["2x3"].batch(dtype).attention_mask[..., -1].all()
    assert LAYOUTS["padded on the right"].batch(dtype).attention_mask[..., 0].all()
    assert not np.array_equal(LAYOUTS["rows in another order"].batch(dtype).places, base.places)
    lengths = {len(m.ids) for m in sequences(3, 4, dtype)}
    assert len(lengths) > 4 and len({m.prompt for m in sequences(3, 4, dtype)}) > 1
    assert FRAMEWORKS == (TORCH, JAX)
