"""Section 7 of the contract: selected log-probabilities and their gradient, in integers.

logprob = logit[t] - logsumexp(logits): every exponential is an integer E with 44 fraction bits, so that their
sum S has no order, and ln S comes from S by repeated squaring. Names are the contract's: d, D, E, S, b, f, l.
"""

import numpy as np
from numpy.typing import ArrayLike

from crosscheck.rounding import Array, floats, flushed, narrow, product, valid_ids

MAX_VOCAB = 2**18
_LOG2E = 1549082005  # log2(e), 30 bits
_LN2 = 1488522236  # ln(2), 31 bits
_C = (536870912, 372130563, 128970545, 29799171, 5161244, 720984, 76786, 11619)  # 2^h on [0, 1], 29 bits


def _terms(logits: ArrayLike, target_ids: ArrayLike, check_ids: bool) -> tuple[Array, Array, Array, Array]:
    """d [N, V] float32, E [N, V] int64, the targets [N], -1 for a bad one, and the mask of rows that give NaN."""
    x = floats("logits", logits)
    if x.ndim == 0 or not 1 <= x.shape[-1] <= MAX_VOCAB:
        raise ValueError(f"logits has shape {x.shape}; expected [..., V] with 1 <= V <= {MAX_VOCAB}")
    if np.shape(target_ids) != x.shape[:-1]:
        raise ValueError(f"target_ids has shape {np.shape(target_ids)}; expected {x.shape[:-1]}, one a row")
    targets, good = valid_ids("target_ids", target_ids, x.shape[-1], check_ids)
    x = flushed(x).reshape(targets.size, x.shape[-1])
    largest = x.max(axis=1)
    bad = ~np.isfinite(largest)  # a NaN, +inf, or only -inf
    with np.errstate(over="ignore", invalid="ignore"):
        d = flushed(np.where(bad, np.float32(0), largest)[:, None] - x)  # 1. RN_float32
    d[bad] = 0
    return d, _exponentials(d), np.where(good, targets, -1).reshape(-1), bad


def _exponentials(d: Array) -> Array:
    """2. E = 2^44 exp(-d), rounded down at every step."""
    far = d >= 32
    y = (np.rint(np.where(far, 0, d).astype(np.float64) * 2**24).astype(np.int64) * _LOG2E) >> 30
    z = 2**24 - (y & (2**24 - 1))
    p = np.full_like(z, _C[7])
    for c in reversed(_C[:7]):
        p = c + ((p * z) >> 24)
    return np.where(far, 0, (p << 14) >> (y >> 24))


def _floor_log2(S: Array) -> Array:
    """S is below 2^63: float64 may round it up to the next power of two, so the guess is corrected."""
    b = np.frexp(S.astype(np.float64))[1].astype(np.int64) - 1
    return b - ((S >> b) == 0)


def _ln(S: Array) -> Array:
    """4. l = 2^26 (ln S - 44 ln 2), from 26 squarings."""
    b = _floor_log2(S)
    m = S >> (b - 30)
    f = np.zeros_like(m)
    for _ in range(26):
        m = (m * m) >> 30
        bit = m >> 31
        m >>= bit
        f = (f << 1) | bit
    return ((((b - 44) << 26) | f) * _LN2) >> 31


def selected_logprob(logits: ArrayLike, target_ids: ArrayLike, *, check_ids: bool = True) -> Array:
    """[..., V], [...] -> [...] float32: logit[t] - logsumexp(logits). Unchecked bad ids give NaN."""
    d, E, targets, bad = _terms(logits, target_ids, check_ids)
    l = _ln(E.sum(axis=1))  # noqa: E741 (the contract's name)
    d_t = np.take_along_axis(d, targets[:, None], axis=1)[:, 0]
    logsum = l.astype(np.float32) * np.float32(2.0**-26)  # RN_float32(l), scaled
    out = np.float32(0) - flushed(d_t + logsum)  # 5. RN_float32
    return narrow(np.where(bad | (targets < 0), np.float32(np.nan), out), np.float32).reshape(np.shape(target_ids))


def selected_logprob_grad(
    logits: ArrayLike, target_ids: ArrayLike, grad_logprob: ArrayLike, *, check_ids: bool = True
) -> Array:
    """[..., V], [...], [...] float32 -> [..., V] in the logits' dtype; no gradient flows from unchecked bad ids."""
    d, E, targets, bad = _terms(logits, target_ids, check_ids)
    g = floats("grad_logprob", grad_logprob).astype(np.float32).reshape(-1, 1)
    S = E.sum(axis=1, keepdims=True)
    b = _floor_log2(S)
    R = 2**61 // (S >> (b - 30))
    r = np.ldexp(R.astype(np.float32), -(b - 44) - 31).astype(np.float32)  # RN_float32(R), scaled
    at = np.arange(d.shape[1]) == targets[:, None]
    part = np.where(at, S - E, E).astype(np.float32) * np.float32(2.0**-44)  # RN_float32, scaled
    bad = bad[:, None] | ~np.isfinite(g)
    probability = product(part.astype(np.float64), r.astype(np.float64))
    share = product(np.where(bad, 0, g).astype(np.float64), probability.astype(np.float64))
    grad = np.where(at, share, np.float32(0) - share)
    grad = np.where(bad, np.float32(np.nan), grad)
    grad[targets < 0] = 0
    return narrow(grad, np.asarray(logits).dtype).reshape(np.shape(logits))
