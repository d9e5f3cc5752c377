"""The log-probabilities of a rollout engine, in JAX: as many tokens a step as there are requests to decode."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import rlk_jax

REQUESTS = 8


def stock(hidden: Array, weight: Array, target_ids: Array) -> Array:
    def logprobs(step: Array, weight: Array, targets: Array) -> Array:
        every = jax.nn.log_softmax((step @ weight.T).astype(jnp.float32))
        return jnp.take_along_axis(every, targets[:, None], 1)[:, 0]

    return _decoded(logprobs, hidden, weight, target_ids)


def fixed_k(hidden: Array, weight: Array, target_ids: Array) -> Array:
    aligned = rlk_jax.align(weight, digits=4)  # once, for all steps
    return _decoded(rlk_jax.linear_logprob, hidden, aligned, target_ids)


def _decoded(logprobs: Callable[..., Array], hidden: Array, weight: Any, target_ids: Array) -> Array:
    compiled = jax.jit(logprobs)
    steps = (slice(first, first + REQUESTS) for first in range(0, len(hidden), REQUESTS))
    return jnp.concatenate([compiled(hidden[step], weight, target_ids[step]) for step in steps])
