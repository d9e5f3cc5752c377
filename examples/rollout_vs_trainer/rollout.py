"""The last layer of a rollout engine, in JAX: as many tokens a step as there are requests to decode."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import rlk_jax

REQUESTS = 8


def stock(hidden: Array, weight: Array) -> Array:
    return _decoded(lambda step, weight: step @ weight.T, hidden, weight)


def over_two_devices(hidden: Array, weight: Array) -> Array:
    """Each has half of the width; the partial logits are rounded to bfloat16 before they are added, as they travel."""

    def head(step: Array, weight: Array) -> Array:
        half = step.shape[1] // 2
        return step[:, :half] @ weight[:, :half].T + step[:, half:] @ weight[:, half:].T

    return _decoded(head, hidden, weight)


def fixed_k(hidden: Array, weight: Array) -> Array:
    return _decoded(rlk_jax.lm_head, hidden, rlk_jax.align(weight, digits=3))  # aligned once, for all steps


def _decoded(head: Callable[..., Array], hidden: Array, weight: Any) -> Array:
    compiled = jax.jit(head)
    steps = (hidden[first : first + REQUESTS] for first in range(0, len(hidden), REQUESTS))
    return jnp.concatenate([compiled(step, weight) for step in steps])
