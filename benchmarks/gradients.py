"""Gradients on the CPU as calls, beside the frameworks' own in float32: parts of benchmarks/cpu.py."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

import rlk_jax
import rlk_torch

TOKENS, VOCAB = 4096, 32768

Calls = dict[tuple[str, str], Callable[[], object]]  # (what, library)


def lm_head_gradients(hidden: np.ndarray, weight: np.ndarray) -> Calls:
    """Gradients of hidden [N, K] and of weight [V, K], each by itself, for one upstream gradient."""
    upstream = np.random.default_rng(1).standard_normal((len(hidden), len(weight)), np.float32)
    calls: Calls = {}
    h, w, g = (torch.from_numpy(x) for x in (hidden, weight, upstream))
    for name, wanted in (("hidden", h), ("weight", w)):
        for library, head in (("torch", rlk_torch.lm_head), ("torch, float32", F.linear)):
            leaf = wanted.clone().requires_grad_()
            logits = head(leaf, w) if name == "hidden" else head(h, leaf)
            calls[f"gradient of {name}", library] = lambda y=logits, x=leaf, g=g: torch.autograd.grad(  # type: ignore[misc]
                y, x, g, retain_graph=True
            )
    a, b, c = (jnp.asarray(x) for x in (hidden, weight, upstream))
    for library, head in (("jax", rlk_jax.lm_head), ("jax, float32", lambda h, w: h @ w.T)):
        of_hidden = jax.jit(lambda h, w, g, f=head: jax.vjp(lambda x: f(x, w), h)[1](g)[0])
        of_weight = jax.jit(lambda h, w, g, f=head: jax.vjp(lambda x: f(h, x), w)[1](g)[0])
        for name, function in (("hidden", of_hidden), ("weight", of_weight)):
            calls[f"gradient of {name}", library] = lambda f=function: jax.block_until_ready(f(a, b, c))  # type: ignore[misc]
    return calls


def table_gradients(width: int) -> Calls:
    """Gradient of a table [32768, K] for 4096 uniform ids."""
    rng = np.random.default_rng(2)
    ids, rows = rng.integers(0, VOCAB, TOKENS), rng.standard_normal((TOKENS, width), np.float32)
    calls: Calls = {}
    what = f"gradient of a table, {TOKENS} ids"
    i, g = torch.from_numpy(ids), torch.from_numpy(rows)
    for library, gather in (("torch", rlk_torch.embedding), ("torch, float32", F.embedding)):
        leaf = torch.zeros((VOCAB, width), requires_grad=True)
        out = gather(i, leaf)
        calls[what, library] = lambda y=out, x=leaf: torch.autograd.grad(y, x, g, retain_graph=True)  # type: ignore[misc]
    j, r, table = jnp.asarray(ids.astype(np.int32)), jnp.asarray(rows), jnp.zeros((VOCAB, width))
    for library, take in (("jax", rlk_jax.embedding), ("jax, float32", lambda i, w: jnp.take(w, i, axis=0))):
        function = jax.jit(lambda i, w, g, f=take: jax.vjp(lambda x: f(i, x), w)[1](g)[0])
        calls[what, library] = lambda f=function: jax.block_until_ready(f(j, table, r))  # type: ignore[misc]
    return calls
