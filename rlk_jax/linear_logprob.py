"""Selected log-probabilities straight from hidden states: the logits of all rows never exist at once.

Section 7 of docs/contract.md. The twin is rlk_torch/linear_logprob.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rlk_jax.alignment import Aligned, tiles
from rlk_jax.checks import as_token_ids, check_same_device
from rlk_jax.differentiable import SHARED, TOKENS, Term, differentiable, gradient_only, more_rows
from rlk_jax.floats import INFINITY, MINUS_INFINITY, QUIET_NAN, bits_of, magnitude, part
from rlk_jax.lm_head import all_logits, as_arrays
from rlk_jax.lm_head_grad import as_matrix, grad_bias, grad_hidden, grad_weight
from rlk_jax.logprob import (
    check_one_a_row,
    check_vocab,
    differences,
    exponentials,
    gradient_of,
    gradients_of_part,
    reciprocal,
)
from rlk_jax.sharded import ALONE, Shards, local, without_vmap
from rlk_jax.sharded_logprob import logprobs_of, seen_in_parts, taken
from rlk_jax.words import difference

BUDGET = 2**30

Weight = Array | Aligned


def linear_logprob(
    hidden: Array | np.ndarray,
    weight: Array | np.ndarray | Aligned,
    target_ids: Any,
    bias: Array | np.ndarray | None = None,
    *,
    digits: int = 4,
    check_ids: bool = True,
    budget: int = BUDGET,
) -> Array:
    """The log-probability of one id in each row of `lm_head_fp32(hidden, weight, bias, digits=digits)`.

    Arguments:
        hidden: [..., K] bfloat16, float16 or float32.
        weight: [V, K] of any of these types, 1 <= V <= 2^18, or `align(weight, digits)`.
        target_ids: [...] of any integer dtype.
        bias: [V] of any of these types, or None.
        digits: 2, 3 or 4.
        check_ids: as for `selected_logprob`.
        budget: bytes that the logits of some rows may take; at least one row is taken.

    Returns:
        [...] float32, the bits of `selected_logprob` on those logits.

    Gradients of hidden, weight and bias are those of `selected_logprob` and `lm_head_fp32`, one after the other. They
    make the logits again, a part of the vocab at a time.

    Raises:
        TypeError, ValueError, IndexError, NotImplementedError: as for `lm_head_fp32` and `selected_logprob`; a budget
            that is no positive integer.

    Example:
        >>> linear_logprob(jnp.array([1.0, 2.0]), jnp.array([[1.0, 0.5], [0.0, 1.0]]), 0).item()
        -0.6931471824645996
    """
    rows, weight, bias = as_arrays(hidden, weight, bias, digits)
    check_budget(budget)
    check_vocab(f"weight has shape {tuple(weight.shape)}", weight.shape[0])
    check_same_device(weight.planes if isinstance(weight, Aligned) else weight, target_ids=target_ids)
    ids = as_token_ids(target_ids, weight.shape[0], check_ids, "target_ids")
    check_one_a_row(ids, "hidden", hidden)
    return run(rows, weight, bias, ids.reshape(-1), digits, budget, ALONE).reshape(ids.shape)


def check_budget(budget: Any) -> None:
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ValueError(f"budget is {budget!r}; expected a positive number of bytes for the logits of some rows")


def run(
    rows: Array, weight: Weight, bias: Array | None, targets: Array, digits: int, budget: int, shards: Shards
) -> Array:
    """[N, K] and int32 [N], -1 for a bad id -> [N], of arguments that were checked."""
    fixed = lax.stop_gradient((rows, weight, bias))
    seen, other = _seen(digits, budget, shards)((fixed[0], targets), fixed[1], fixed[2])
    return _operator(digits, budget, shards)(rows, weight, bias, targets, seen, other)


def _name(shards: Shards) -> str:
    return "linear_logprob" if shards is ALONE else "sharded_linear_logprob"


@cache
def _seen(digits: int, budget: int, shards: Shards) -> Callable[..., Any]:
    """What `seen_in_parts` gives, and the bits of the largest logit but the target's that lies here: uint32 [N]."""

    def seen(rows: tuple[Array, Array], weight: Weight, bias: Array | None) -> tuple[Array, Array]:
        return _all_seen(*rows, weight, bias, digits, budget, shards)

    return more_rows(seen) if shards is ALONE else without_vmap(seen, _name(shards))


@partial(jax.jit, static_argnums=(4, 5, 6))
def _all_seen(
    hidden: Array,
    targets: Array,
    weight: Weight,
    bias: Array | None,
    digits: int,
    budget: int,
    shards: Shards,
) -> tuple[Array, Array]:
    """The logits of a block of rows at a time; the last block overlaps the one before: the same bits."""
    count, vocab = hidden.shape[0], weight.shape[0]
    out = jnp.zeros((count, 4), jnp.uint32), jnp.zeros(count, jnp.uint32)
    if count == 0:
        return out
    most = max(1, budget // (4 * vocab))
    step = -(-count // -(-count // most))  # blocks of one size

    def block(start: Array | int, out: tuple[Array, Array]) -> tuple[Array, Array]:
        some = lax.dynamic_slice_in_dim(targets, start, step)
        logits = all_logits(part(hidden, (start, 0), (step, hidden.shape[1])), weight, bias, digits, jnp.float32)
        logits = shards.kept_bits(logits, 1, MINUS_INFINITY["float32"])
        others = jnp.arange(vocab, dtype=jnp.int32)[None, :] != (some - shards.first())[:, None]
        other = jnp.max(jnp.where(others, logits, -jnp.inf), axis=1)
        new = seen_in_parts([logits], some, (0,), shards), bits_of(other)
        put = partial(lax.dynamic_update_slice_in_dim, start_index=start, axis=0)
        return put(out[0], new[0]), put(out[1], new[1])

    return tiles(count, step, block, out)


@cache
def _operator(digits: int, budget: int, shards: Shards) -> Callable[..., Array]:
    """hidden [N, K], weight, bias, targets [N], seen, other -> [N], with its gradients."""

    def logprobs(hidden: Array, weight: Weight, bias: Array | None, targets: Array, seen: Array, _: Array) -> Array:
        return logprobs_of(targets, seen)

    def needs(hidden: Array, weight: Weight, bias: Array | None, *of_rows: Array) -> Sequence[Array]:
        return [hidden, *of_rows, *jax.tree.leaves((weight, bias))]

    def term(own: str) -> Term:
        def kinds(hidden: Array, weight: Weight, bias: Array | None, *of_rows: Array) -> Sequence[str]:
            shared = len(jax.tree.leaves((weight, bias)))
            return [TOKENS if own == "hidden" else SHARED, *[TOKENS] * 4, *[SHARED] * shared]

        def shape(argument: Any, hidden: Any, *rest: Any) -> tuple[int, ...]:
            return hidden.shape[:1]

        transpose = partial(_transposed, own, digits, budget, shards)
        plain = Term(_name(shards), jnp.dtype(jnp.float32), None, needs, shape, transpose, kinds)
        return plain if shards is ALONE else local(plain, _name(shards), shards.names, False)

    return differentiable(logprobs, [term("hidden"), term("weight"), term("bias"), None, None, None])


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["hidden", "weight", "bias", "targets", "grad", "seen", "other", "first"],
    meta_fields=["digits"],
)
@dataclass(frozen=True, eq=False)
class _GradLogits:
    """The gradients of the logits [N, V], made from hidden states again: `GradLogits` of lm_head_grad.py.

    Arguments:
        targets: int32 [N], -1 for a bad id.
        grad, seen, other: float32 [N] the upstream gradient, and what `_seen` gave.
        first: the id of the first column, where the weight is a part of the vocab.
    """

    hidden: Array
    weight: Weight
    bias: Array | None
    targets: Array
    grad: Array
    seen: Array
    other: Array
    first: Array
    digits: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.hidden.shape[0], self.weight.shape[0]

    def _rows(self, start: Array | int, count: int) -> tuple[Array, ...]:
        rows = (self.targets, self.grad, self.seen, self.other)
        return tuple(lax.dynamic_slice_in_dim(x, start, count) for x in rows)

    def part(self, starts: tuple[Array | int, Array | int], sizes: tuple[int, int]) -> Array:
        (first, start), (rows, columns) = starts, sizes
        hidden, weight, bias = part(self.hidden, (first, 0), (rows, self.hidden.shape[1])), self.weight, self.bias
        some = (
            weight.rows(start, columns)
            if isinstance(weight, Aligned)
            else part(weight, (start, 0), (columns, weight.shape[1]))
        )
        bias = None if bias is None else lax.dynamic_slice_in_dim(bias, start, columns)
        logits = all_logits(hidden, some, bias, self.digits, jnp.float32)
        targets, grad, seen, _ = self._rows(first, rows)
        return gradients_of_part(grad, logits, targets, self.first + start, *taken(seen)[:3])

    def largest(self, start: Array | int, count: int) -> Array:
        """E falls where d rises: of all logits but the target's, the largest has the largest gradient.

        Of those that lie here, and of the target wherever it lies.
        """
        targets, grad, seen, bits = self._rows(start, count)
        top, S, bad, own = taken(seen)
        other = lax.bitcast_convert_type(bits, jnp.float32)
        rest = difference(S, exponentials(differences(own, top)))
        parts = rest, exponentials(differences(other, top))
        size = jnp.maximum(*(magnitude(gradient_of(x, grad, reciprocal(S))) for x in parts))
        size = jnp.where(bad | (magnitude(grad) >= INFINITY), QUIET_NAN["float32"], size)
        return jnp.where(targets < 0, 0, size)


def _transposed(
    own: str, digits: int, budget: int, shards: Shards, grad: Array, argument: Any, hidden: Array, *rest: Array
) -> Array:
    """The gradient of an argument. rest: targets, seen, other, and the leaves of the weight and of the bias."""
    targets, seen, other, *leaves = rest
    aligned = len(leaves) > 2
    weight, bias = as_matrix(leaves[: 3 if aligned else 1], hidden.shape[1]), leaves[3 if aligned else 1 :]
    rows = hidden, targets, grad, seen, other
    gradient = _gradient(own, jnp.dtype(argument.dtype), digits, budget, shards)
    return gradient(rows, weight, bias[0] if bias else None)


@cache
def _gradient(own: str, dtype: Any, digits: int, budget: int, shards: Shards) -> Callable[..., Array]:
    def gradient(rows: tuple[Array, ...], weight: Weight, bias: Array | None) -> Array:
        hidden, targets, grad, seen, other = rows
        source = _GradLogits(hidden, weight, bias, targets, grad, seen, other, shards.first(), digits)
        if own == "hidden":
            return grad_hidden(source, weight, dtype, shards)
        return shards.kept_bits(_of_shared(source, own, dtype, budget), 0)

    if shards is not ALONE:
        return jax.jit(gradient)  # what `local` makes of it refuses more
    batched = more_rows(gradient) if own == "hidden" else jax.custom_batching.sequential_vmap(gradient)
    return jax.jit(gradient_only(batched, _name(shards)))


def _of_shared(source: _GradLogits, own: str, dtype: Any, budget: int) -> Array:
    """Of the weight or the bias, whose rows have a sum each: a part of the vocab at a time."""
    count, vocab = source.shape
    shape = source.weight.shape if own == "weight" else (vocab,)
    if count == 0:
        return jnp.zeros(shape, dtype)
    step = max(1, min(vocab, budget // (4 * count)))

    def columns(start: Array | int, out: Array) -> Array:
        some = source.part((0, start), (count, step))
        new = grad_weight(some, source.hidden, dtype) if own == "weight" else grad_bias(some, dtype)
        return lax.dynamic_update_slice_in_dim(out, new, start, axis=0)

    return tiles(vocab, step, columns, jnp.zeros(shape, dtype))
