"""Selected log-probabilities of logits in parts of the vocab: one largest logit, one sum of integers, rounded once.

Section 7 of docs/contract.md. Parts lie in one process, or each on a device. The twin is rlk_torch/sharded_logprob.py.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rlk_jax.checks import as_token_ids, check_floats, check_parts, check_same_device, dtype_name
from rlk_jax.differentiable import Term, differentiable
from rlk_jax.floats import INFINITY, MINUS_INFINITY, QUIET_NAN, bits_of, magnitude, widened
from rlk_jax.logprob import (
    check_one_a_row,
    check_vocab,
    finished,
    gradients_of_part,
    largest_logits,
    out_of_order,
    total_of,
)
from rlk_jax.sharded import ALONE, Shards, local, shards_along, without_vmap
from rlk_jax.words import Words


def selected_logprob_of_parts(
    logits_parts: Sequence[Array | np.ndarray], target_ids: Any, *, check_ids: bool = True
) -> Array:
    """The log-probability of one id in each row of logits that are cut along the vocab, in one process.

    Arguments:
        logits_parts: the parts [..., V_r] of logits [..., V], in their order, bfloat16, float16 or float32, in any
            number and of any widths; 1 <= V <= 2^18.
        target_ids: [...] of any integer dtype, 0 <= id < V.
        check_ids: as for `selected_logprob`.

    Returns:
        [...] float32: what `selected_logprob` gives for the parts side by side, and what `sharded_selected_logprob`
        gives on devices that hold a part each. The parts' gradients are parts of `selected_logprob`'s.

    Raises:
        TypeError: as for `selected_logprob`.
        ValueError: as for `selected_logprob`; parts that do not belong together, or none.
        IndexError: an id outside the vocab, where ids are read.
        NotImplementedError: forward mode, a second derivative, or vmap.

    Example:
        >>> selected_logprob_of_parts([jnp.array([[0.0], [1.0]]), jnp.array([[0.0], [-jnp.inf]])], [1, 0]).tolist()
        [-0.6931471824645996, 0.0]
    """
    check_parts("logits_parts", logits_parts)
    if not len(logits_parts):
        raise ValueError("logits_parts has 0 parts; expected at least 1")
    first = logits_parts[0]
    for i, x in enumerate(logits_parts):
        _check_part(f"logits_parts[{i}]", x)
        check_same_device(first, "logits_parts[0]", **{f"logits_parts[{i}]": x})
        if x.shape[:-1] != first.shape[:-1] or x.dtype != first.dtype:
            raise ValueError(
                f"logits_parts[{i}] is {_described(x)} and logits_parts[0] {_described(first)}; expected one "
                "leading shape and dtype"
            )
    *starts, vocab = accumulate((x.shape[-1] for x in logits_parts), initial=0)
    check_vocab(f"logits_parts have {vocab} columns in all", vocab)
    check_same_device(first, "logits_parts[0]", target_ids=target_ids)
    ids = as_token_ids(target_ids, vocab, check_ids, "target_ids")
    check_one_a_row(ids, "logits_parts[0]", first)
    return _run("selected_logprob_of_parts", logits_parts, ids, tuple(starts), ALONE)


def sharded_selected_logprob(
    logits: Array, target_ids: Any, *, vocab: int, axis_name: str | tuple[str, ...], check_ids: bool = True
) -> Array:
    """The log-probability of one id in each row of logits whose vocab is sharded, with the bits of `selected_logprob`.

    For use inside `jax.shard_map` in its default mode (check_vma=True).

    Arguments:
        logits: [..., V_r] bfloat16, float16 or float32, the columns of this device, as `sharded_lm_head` gives them;
            what lies in columns of padding counts as -inf, whatever it is; 1 <= V <= 2^18.
        target_ids: [...] of any integer dtype, the same on every shard, 0 <= id < V.
        vocab: V, columns of the whole logits without padding.
        axis_name: the mesh axis along which the vocab is sharded, or a tuple of axes.
        check_ids: refuse bad ids where they can be read: they are no argument of a compiled function or of
            `jax.shard_map`. Else a bad id, also of a column of padding, gives NaN and no gradient.

    Returns:
        [...] float32, the same on every shard. Devices exchange the largest logit of each row, as an integer, and then
        add up S of section 7 and the target's logit, of whose bits all but one have none.

    The gradient of logits is this device's columns of `selected_logprob`'s, made where they lie from an upstream
    gradient that is the same on every shard; +0 in columns of padding.

    Raises:
        TypeError: as for `selected_logprob`; a vocab that is no integer, an axis_name that is no name.
        ValueError: as for `selected_logprob`; logits that are no shard of the vocab, an unknown mesh axis, an argument
            that is shared and should be sharded, or the other way round, or `jax.shard_map` with check_vma=False.
        IndexError: an id outside the vocab, where ids are read.
        NotImplementedError: forward mode, a second derivative, or `jax.vmap`.

    Example:
        >>> from jax.sharding import Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], "x")
        >>> def logprobs(logits):
        ...     return sharded_selected_logprob(logits, [0, 0], vocab=2, axis_name="x")
        >>> logprobs = jax.shard_map(logprobs, mesh=mesh, in_specs=P(None, "x"), out_specs=P())
        >>> logprobs(jnp.array([[0.0, 0.0], [1.0, -jnp.inf]])).tolist()
        [-0.6931471824645996, 0.0]
    """
    _check_part("logits", logits)
    shards = shards_along(axis_name, vocab)
    check_vocab(f"vocab is {shards.vocab}", shards.vocab)
    shards.check_rows(logits.shape[-1], "logits", "columns")
    ids = as_token_ids(target_ids, shards.vocab, check_ids, "target_ids")
    check_one_a_row(ids, "logits", logits)
    shards.check_shared(target_ids=ids)
    shards.check_apart(logits=logits)
    return _run("sharded_selected_logprob", [logits], ids, (0,), shards)


def _check_part(name: str, logits: Any) -> None:
    check_floats(name, logits, "[..., V_r]")
    if logits.ndim == 0:
        raise ValueError(f"{name} has shape (); expected [..., V_r]: add the vocab dimension")


def _described(x: Array | np.ndarray) -> str:
    return f"{dtype_name(x)} {tuple(x.shape)}"


def _run(name: str, parts: Sequence[Array | np.ndarray], ids: Array, starts: tuple[int, ...], shards: Shards) -> Array:
    """Of arguments that were checked."""
    rows, targets = [jnp.asarray(x).reshape(ids.size, x.shape[-1]) for x in parts], ids.reshape(-1)
    seen = _seen(name, starts, shards)(lax.stop_gradient(rows), targets)
    return _operator(name, starts, shards)(*rows, targets, seen).reshape(ids.shape)


@cache
def _seen(name: str, starts: tuple[int, ...], shards: Shards) -> Callable[..., Array]:
    def seen(parts: Sequence[Array], targets: Array) -> Array:
        return seen_in_parts(parts, targets, starts, shards)

    return without_vmap(seen, name)


@partial(jax.jit, static_argnums=(2, 3))
def seen_in_parts(parts: Sequence[Array], targets: Array, starts: tuple[int, ...], shards: Shards) -> Array:
    """Parts [N, V_r], int32 [N] -> uint32 [N, 4]: S in two words, and the bits of the largest logit and the target's.

    All of the whole, the largest NaN where the log-probability is. starts: the first id of each part, from this
    device's own on. What lies in columns of padding counts as -inf.
    """
    parts = [shards.kept_bits(x, 1, MINUS_INFINITY[x.dtype.name]) for x in parts]
    top, bad = out_of_order(shards.most(reduce(jnp.maximum, map(largest_logits, parts))))
    limbs = [_limbs(total_of(x, top)) for x in parts]
    own = [_bits_of_own(x, targets - shards.first() - start) for x, start in zip(parts, starts, strict=True)]
    *sums, bits = (sum(some[1:], some[0]) for some in (*zip(*limbs, strict=True), own))
    *sums, bits = lax.psum([*sums, bits], shards.axes) if shards.axes else [*sums, bits]
    largest = jnp.where(bad, jnp.uint32(QUIET_NAN["float32"]), bits_of(top))
    return jnp.stack([*_words(sums), largest, bits], axis=1)


def _limbs(words: Words) -> list[Array]:
    """16 bits to a uint32, so that 2^16 of them add up without a carry."""
    return [limb for word in words for limb in (word >> 16, word & 0xFFFF)]


def _words(limbs: Sequence[Array]) -> Words:
    """Sums of limbs, carried, modulo 2^64."""
    highest, high, low, lowest = limbs
    low = low + (lowest >> 16)
    high = high + (low >> 16)
    return (highest << 16) + high, (low << 16) | (lowest & 0xFFFF)


def _bits_of_own(logits: Array, columns: Array) -> Array:
    """The float32 bits of the logits in some columns [N], 0 where that lies outside: uint32."""
    width = logits.shape[1]
    if width == 0:
        return jnp.zeros(columns.shape, jnp.uint32)
    own = jnp.take_along_axis(bits_of(logits), jnp.clip(columns, 0, width - 1)[:, None], axis=1)[:, 0]
    own = bits_of(widened(lax.bitcast_convert_type(own, logits.dtype)))
    return jnp.where((columns >= 0) & (columns < width), own, jnp.uint32(0))


def taken(seen: Array) -> tuple[Array, Words, Array, Array]:
    """What `sums` gave, and the target's logit."""
    high, low, *bits = (seen[:, i] for i in range(4))
    top, own = (lax.bitcast_convert_type(x, jnp.float32) for x in bits)
    bad = magnitude(top) >= INFINITY
    return jnp.where(bad, jnp.float32(0), top), (high, low), bad, own


@jax.jit
def logprobs_of(targets: Array, seen: Array) -> Array:
    top, S, bad, own = taken(seen)
    return finished(own, targets, top, S, bad)


@cache
def _operator(name: str, starts: tuple[int, ...], shards: Shards) -> Callable[..., Array]:
    """Parts [N, V_r], int32 ids [N] with -1 for a bad one, seen -> [N], with the gradient of each part."""
    count = len(starts)

    def logprobs(*operands: Array) -> Array:
        return logprobs_of(*operands[count:])

    def term(i: int) -> Term:
        def needs(*operands: Array) -> Sequence[Array]:
            return [operands[i], *operands[count:]]

        def shape(own: Any, *operands: Any) -> tuple[int, ...]:
            return own.shape[:1]

        def transpose(grad: Array, own: Any, logits: Array, targets: Array, seen: Array) -> Array:
            return _gradient(grad, logits, targets, seen, starts[i], shards)

        plain = Term(name, jnp.dtype(jnp.float32), None, needs, shape, transpose)
        return local(plain, name, shards.names, False)

    return differentiable(logprobs, [*map(term, range(count)), None, None])


@partial(jax.jit, static_argnums=(4, 5))
def _gradient(grad: Array, logits: Array, targets: Array, seen: Array, start: int, shards: Shards) -> Array:
    top, S, bad, _ = taken(seen)
    return shards.kept_bits(gradients_of_part(grad, logits, targets, shards.first() + start, top, S, bad), 1)
