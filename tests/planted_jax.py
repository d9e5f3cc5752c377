"""Candidates in JAX, each with one fault that people do write."""

import jax
import jax.numpy as jnp


@jax.jit
def multiply_add(hidden, weight):
    """A product and a sum that XLA fuses as it sees fit."""
    products = hidden[:, None, :].astype(jnp.float32) * weight[None].astype(jnp.float32)
    return products.sum(-1).astype(hidden.dtype)


def clamping_gather(token_ids, weight):
    return jnp.take(weight, token_ids, axis=0, mode="clip")


def one_hot_matmul(token_ids, weight):
    return jax.nn.one_hot(token_ids, len(weight), dtype=weight.dtype) @ weight
