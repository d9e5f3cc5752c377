"""Selected log-probabilities: logit[t] - logsumexp(logits), the exponentials integers whose sum has no order.

Section 7 of docs/contract.md, whose names (d, D, E, S, b, l) the code keeps. The twin is rlk_torch/logprob.py.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rlk_jax.checks import as_token_ids, check_floats, check_same_device
from rlk_jax.devices import repeated
from rlk_jax.differentiable import Term, differentiable, gradient_only
from rlk_jax.floats import (
    INFINITY,
    QUIET_NAN,
    flushed,
    magnitude,
    narrowed,
    product,
    widened,
)
from rlk_jax.words import Words, difference, leading, shifted_product, to_float32, total

MAX_VOCAB = 2**18  # so that S stays below 2^63
_LOG2E = 1549082005  # log2(e), 30 bits
_LN2 = 1488522236  # ln(2), 31 bits
_C = (536870912, 372130563, 128970545, 29799171, 5161244, 720984, 76786, 11619)  # 2^h on [0, 1], 29 bits

Sums = tuple[Array, Words, Array]  # the largest logit, S, and whether the log-probability is NaN, of each row


def selected_logprob(logits: Array | np.ndarray, target_ids: Any, *, check_ids: bool = True) -> Array:
    """The log-probability of one id in each row of logits.

    Arguments:
        logits: [..., V] bfloat16, float16 or float32, 1 <= V <= 2^18; -inf is an id that cannot occur.
        target_ids: [...] of any integer dtype.
        check_ids: read the ids and refuse bad ones. False does not wait for the device; then a bad id gives NaN
            and no gradient, as it does in compiled code.

    Returns:
        [...] float32, within 1.5 units in the last place of the exact value, or of 1/2 where that is nearer to 0; -inf
        where the target's logit is -inf. A row with a NaN or +inf, or of -inf alone, gives the positive quiet NaN.

    The gradient of the logits is offered in reverse mode, in their dtype. It is NaN in a whole row whose
    log-probability is NaN, or whose upstream gradient is not finite.

    Raises:
        TypeError: another dtype.
        ValueError: shapes that do not meet, a vocab of 0 or above 2^18, arguments on several devices.
        IndexError: an id outside the vocab, where ids are read.
        NotImplementedError: forward mode, or a second derivative.

    Example:
        >>> selected_logprob(jnp.array([[0.0, 0.0], [1.0, -jnp.inf]]), [0, 0]).tolist()
        [-0.6931471824645996, 0.0]
    """
    check_floats("logits", logits, "[..., V]")
    if logits.ndim == 0:
        raise ValueError("logits has shape (); expected [..., V]: add the vocab dimension")
    check_vocab(f"logits has shape {tuple(logits.shape)}", logits.shape[-1])
    check_same_device(logits, "logits", target_ids=target_ids)
    ids = as_token_ids(target_ids, logits.shape[-1], check_ids, "target_ids")
    check_one_a_row(ids, "logits", logits)
    rows = jnp.asarray(logits).reshape(ids.size, logits.shape[-1])
    return _operator()(rows, ids.reshape(-1)).reshape(ids.shape)


def check_vocab(got: str, vocab: int) -> None:
    if not 1 <= vocab <= MAX_VOCAB:
        raise ValueError(
            f"{got}; expected 1 <= V <= {MAX_VOCAB}, the sum of whose exponentials has 63 bits: leave out ids that "
            "cannot occur"
        )


def check_one_a_row(ids: Array, name: str, rows: Array | np.ndarray) -> None:
    if ids.shape != rows.shape[:-1]:
        raise ValueError(
            f"target_ids has shape {tuple(ids.shape)} and {name} {tuple(rows.shape)}; "
            f"expected {tuple(rows.shape[:-1])}, one id a row of {name}"
        )


@cache
def _operator() -> Callable[..., Array]:
    """logits [N, V], int32 ids [N] with -1 for a bad one -> [N], with its gradient."""
    term = Term(
        "selected_logprob",
        jnp.dtype(jnp.float32),
        None,
        lambda logits, targets: [logits, targets],
        lambda own, logits, targets: own.shape[:1],
        lambda grad, own, logits, targets: _gradient(grad, logits, targets),
    )
    return differentiable(logprobs, [term, None])


@jax.jit
def logprobs(logits: Array, targets: Array) -> Array:
    """[N, V] and int32 [N], -1 for a bad id -> the log-probabilities."""
    top, S, bad = sums(logits)
    return finished(of_targets(logits, targets), targets, top, S, bad)


def of_targets(logits: Array, targets: Array) -> Array:
    """The targets' logits [N]; of a bad id, any."""
    return jnp.take_along_axis(logits, jnp.maximum(targets, 0)[:, None], axis=1)[:, 0]


def finished(own: Array, targets: Array, top: Array, S: Words, bad: Array) -> Array:
    """4. and 5. for the targets' logits and what `sums` gave."""
    log = _ln(S).astype(jnp.float32) * jnp.float32(2.0**-26)  # RN_float32(l), scaled
    out = jnp.float32(0) - flushed(differences(own, top) + log)
    return narrowed(jnp.where(bad | (targets < 0), jnp.float32(jnp.nan), out), jnp.float32)


def sums(logits: Array) -> Sums:
    """The largest logit and S of each row [N, V]; of a row whose result is NaN, 0 and anything."""
    top, bad = out_of_order(largest_logits(logits))
    return top, total_of(logits, top), bad


def largest_logits(logits: Array) -> Array:
    """M of each row [N, V], -inf where there is nothing: int32 in the order of the values, any NaN last."""
    bits = lax.bitcast_convert_type(flushed(widened(logits)), jnp.int32)
    bits = jnp.where((bits & 0x7FFFFFFF) > INFINITY, QUIET_NAN["float32"], bits)
    return jnp.max(bits ^ ((bits >> 31) & 0x7FFFFFFF), axis=1, initial=INFINITY ^ -1)


def out_of_order(order: Array) -> tuple[Array, Array]:
    """The logits that `largest_logits` gave, and whether they are not finite; then 0."""
    largest = order ^ ((order >> 31) & 0x7FFFFFFF)
    bad = (largest & 0x7FFFFFFF) >= INFINITY
    return lax.bitcast_convert_type(jnp.where(bad, 0, largest), jnp.float32), bad


def total_of(logits: Array, top: Array) -> Words:
    """3. S of each row [N, V], or of a part of it, for the largest logits of the whole, which are finite."""
    return total(exponentials(differences(logits, top[:, None])), 1)


def differences(logits: Array, top: Array) -> Array:
    """1. d = RN_float32(M - x), below 2^-126 it is 0; NaN and infinite only where the row's result is NaN or E is 0."""
    return flushed(top - flushed(widened(logits)))


def exponentials(d: Array) -> Words:
    """2. E = 2^44 exp(-d) as two words, rounded down at every step; 0 from d = 32 on."""
    near = d < 32  # no NaN is
    scaled = jnp.where(near, d, 0) * jnp.float32(2.0**24)  # exact
    D = lax.round(scaled, lax.RoundingMethod.TO_NEAREST_EVEN).astype(jnp.int32).astype(jnp.uint32)
    y = shifted_product(D, jnp.uint32(_LOG2E), 30)
    shift, z = y >> 24, 2**24 - (y & (2**24 - 1))
    p = jnp.full_like(z, _C[7])
    for c in reversed(_C[:7]):
        p = c + shifted_product(p, z, 24)
    # (p << 14) >> shift, for shifts from 0 to 46
    up, down = jnp.minimum(shift, 14), jnp.maximum(shift, 14) - 14
    low = jnp.where(shift < 14, p << (14 - up), p >> jnp.minimum(down, 31))
    high = jnp.where(shift < 14, p >> (18 + jnp.minimum(up, 13)), jnp.uint32(0))
    return jnp.where(near, high, jnp.uint32(0)), jnp.where(near, low, jnp.uint32(0))


def _leading(S: Words) -> tuple[Array, Array]:
    """b and the 31 leading bits of S >= 2^44; of less, where the result is NaN, those of 2^44."""
    high = jnp.maximum(S[0], jnp.uint32(2**12))
    bits, shift, _ = leading((high, S[1]))
    return shift + 30, bits


def _ln(S: Words) -> Array:
    """4. l = 2^26 (ln S - 44 ln 2), int32, from 26 squarings."""
    b, m = _leading(S)

    def square(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        m, f = state
        m = shifted_product(m, m, 30)
        bit = m >> 31
        return m >> bit, (f << 1) | bit

    _, f = repeated(26, square, (m, (b - 44).astype(jnp.uint32)))
    return shifted_product(f, jnp.uint32(_LN2), 31).astype(jnp.int32)


def reciprocal(S: Words) -> Array:
    """r = 2^44 / S in float32: RN_float32(floor(2^61 / 31 bits of S)), scaled."""
    b, m = _leading(S)
    first = (m == 2**30).astype(jnp.uint32)

    def digit(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, quotient = state
        rest = rest << 1
        bit = (rest >= m).astype(jnp.uint32)
        return rest - m * bit, (quotient << 1) | bit

    rest = jnp.uint32(2**30) - m * first  # of 2^61 >> 31
    _, R = repeated(31, digit, (rest, first))
    return to_float32((jnp.zeros_like(R), R), -(b - 44) - 31)


@jax.jit
def gradients(grad: Array, logits: Array, targets: Array) -> Array:
    """float32 [N], [N, V], int32 [N] -> [N, V] in the logits' dtype; 0 for a target of -1."""
    return gradients_of_part(grad, logits, targets, 0, *sums(logits))


def gradients_of_part(
    grad: Array, logits: Array, targets: Array, start: Array | int, top: Array, S: Words, bad: Array
) -> Array:
    """Of the logits from the column start on, with what `sums` gave of the whole vocab."""
    E = exponentials(differences(logits, top[:, None]))
    own = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :] == (targets - start)[:, None]
    rest = difference((S[0][:, None], S[1][:, None]), E)
    part = tuple(jnp.where(own, a, b) for a, b in zip(rest, E, strict=True))
    new = gradient_of((part[0], part[1]), grad[:, None], reciprocal(S)[:, None])
    new = jnp.where(own, new, jnp.float32(0) - new)
    bad = bad | (magnitude(grad) >= INFINITY)
    new = jnp.where(bad[:, None], jnp.float32(jnp.nan), new)
    return narrowed(jnp.where(targets[:, None] < 0, jnp.float32(0), new), logits.dtype)


def gradient_of(part: Words, grad: Array, r: Array) -> Array:
    """RN(g * RN(RN(part) * 2^-44 * r)) for E of a logit, or S - E of the target's: float32."""
    return product(grad, to_float32(part, -44) * r)


_gradient = gradient_only(gradients, "selected_logprob")
