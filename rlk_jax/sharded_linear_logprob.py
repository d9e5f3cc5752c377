"""Selected log-probabilities straight from hidden states, of a weight that is sharded over the vocab.

Section 7 of docs/contract.md: a shard has logits of its own, of a block of rows at a time, of which devices exchange
what sharded_logprob.py says; hidden's gradient is one sum of integers over all shards. linear_logprob.py does all that.
The twin is rlk_torch/sharded_linear_logprob.py.
"""

from typing import Any

import numpy as np
from jax import Array

from rlk_jax.alignment import Aligned
from rlk_jax.checks import as_token_ids
from rlk_jax.linear_logprob import BUDGET, check_budget, run
from rlk_jax.lm_head import as_arrays
from rlk_jax.logprob import check_one_a_row, check_vocab
from rlk_jax.sharded import shards_along


def sharded_linear_logprob(
    hidden: Array | np.ndarray,
    weight: Array | Aligned,
    target_ids: Any,
    bias: Array | None = None,
    *,
    vocab: int,
    axis_name: str | tuple[str, ...],
    digits: int = 4,
    check_ids: bool = True,
    budget: int = BUDGET,
) -> Array:
    """The log-probability of one id in each row of a sharded LM head, with the bits of `linear_logprob`.

    For use inside `jax.shard_map` in its default mode (check_vma=True).

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32, the same on every shard.
        weight: [V_r, K] of any of these types, the shard of this device of `pad_vocab(weight, shards)`, or that of
            its `Aligned`; 1 <= V <= 2^18.
        target_ids: [...] of any integer dtype, the same on every shard, 0 <= id < V.
        bias: [V_r] of any of these types, the shard of this device, or None.
        vocab: V, rows of the whole weight without padding.
        axis_name: the mesh axis along which the vocab is sharded, or a tuple of axes.
        digits: 2, 3 or 4.
        check_ids: as for `sharded_selected_logprob`.
        budget: bytes that a device's logits of some rows may take; at least one row is taken.

    Returns:
        [...] float32, the same on every shard. For each block of rows devices exchange what `sharded_selected_logprob`
        does; the logits of all rows never exist at once. Padding counts for nothing.

    The gradients are those of `linear_logprob`, for an upstream gradient that is the same on every shard, and make the
    logits again. For hidden's the shards agree on exponents and add up integers, which are rounded once, so each has
    the same; those of weight and bias are made where they lie, +0 in rows of padding.

    Raises:
        TypeError: as for `linear_logprob`; a vocab that is no integer, an axis_name that is no name.
        ValueError: as for `linear_logprob`; a weight that is no shard of the vocab, an unknown mesh axis, an argument
            that is shared and should be sharded, or the other way round, or `jax.shard_map` with check_vma=False.
        IndexError: an id outside the vocab, where ids are read.
        NotImplementedError: forward mode, a second derivative, `jax.vmap`, or the gradient of an `Aligned`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jax.sharding import Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], "x")
        >>> def logprob(hidden, weight):
        ...     return sharded_linear_logprob(hidden, weight, 0, vocab=2, axis_name="x")
        >>> logprob = jax.shard_map(logprob, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
        >>> logprob(jnp.array([1.0, 2.0]), jnp.array([[1.0, 0.5], [0.0, 1.0]])).item()
        -0.6931471824645996
    """
    rows, weight, bias = as_arrays(hidden, weight, bias, digits)
    check_budget(budget)
    shards = shards_along(axis_name, vocab)
    check_vocab(f"vocab is {shards.vocab}", shards.vocab)
    shards.check_rows(weight.shape[0])
    ids = as_token_ids(target_ids, shards.vocab, check_ids, "target_ids")
    check_one_a_row(ids, "hidden", hidden)
    shards.check_shared(hidden=rows, target_ids=ids)
    shards.check_apart(weight=weight, bias=bias)
    return run(rows, weight, bias, ids.reshape(-1), digits, budget, shards).reshape(ids.shape)
