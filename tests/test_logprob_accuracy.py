"""A selected log-probability is within one and a half units in the last place of the exact value."""

from typing import Any

import numpy as np
import pytest
from frameworks import TORCH

import rlk_torch
from crosscheck.bits import as_numpy


def worst_error(x: Any, ids: Any, logprobs: Any) -> float:
    """In units in the last place of the exact value, or of 1/2 where it is nearer to 0; by float64 sums.

    Section 7 rounds M - x, ln S and their sum: half a unit each. ln S has 26 fraction bits, so that a log-probability
    near 0 is off by as much as one of -1/2.
    """
    wide = x.astype(np.float64)
    shifted = wide - wide.max(axis=1, keepdims=True)
    exact = np.take_along_axis(shifted, ids[:, None], axis=1)[:, 0] - np.log(np.exp(shifted).sum(axis=1))
    _, exponent = np.frexp(np.maximum(np.abs(exact), 0.5))
    return float((np.abs(logprobs - exact) / np.ldexp(1.0, exponent - 24)).max())


@pytest.mark.parametrize("spread", [0.01, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("vocab", [1, 2, 1000, 151936])
def test_within_one_and_a_half_units_in_the_last_place_of_the_exact_value(vocab, spread):
    rng = np.random.default_rng(vocab)
    x = (rng.standard_normal((16 if vocab > 1000 else 512, vocab)) * spread).astype(np.float32)
    ids = rng.integers(0, vocab, len(x))
    ids[::2] = x[::2].argmax(axis=1)  # likely ids have small log-probabilities
    logprobs = as_numpy(rlk_torch.selected_logprob(TORCH.array(x), ids)).astype(np.float64)
    assert worst_error(x, ids, logprobs) <= 1.5
