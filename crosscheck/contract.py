"""The fixed-K contract ``fixed-k/1`` in NumPy: the oracle that every backend is judged against.

Section numbers are those of docs/contract.md. All arithmetic here is exact (integers, or float64 where
every value is an integer below 2^53 or a scaling by a power of two) except the roundings the contract
prescribes, each marked ``RN``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from crosscheck.logprob import selected_logprob, selected_logprob_grad
from crosscheck.rounding import TINY, Array, floats, flushed, narrow, quiet_nan, to_float32, valid_ids

__all__ = [
    "VERSION", "Aligned", "align", "embedding", "embedding_fp32", "embedding_grad", "linear_logprob", "lm_head",
    "lm_head_fp32", "lm_head_grads", "selected_logprob", "selected_logprob_grad",
]  # fmt: skip

VERSION = "fixed-k/1"
LOW_BITS = 14  # an exact dot product is kept in two words: D = high * 2^14 + low


@dataclass(frozen=True)
class Aligned:
    """Rows as integers: x = q * 2^(exponent - window), up to section 1's rounding of q."""

    q: Array  # int32 [R, L]
    exponent: Array  # int32 [R]
    nonfinite: Array  # bool [R]
    digits: int

    @property
    def window(self) -> int:
        return 7 * self.digits - 1

    def scale(self) -> Array:
        """2^(exponent - window), float64 [R]."""
        return np.ldexp(1.0, self.exponent - self.window)


def _rows_per_block(*widths: int) -> int:
    """Rows such that a block of each width stays near the cache, whatever the table's size."""
    return max(1, min(2**18 // max(1, width) for width in widths))


# Section 1: aligning a vector ------------------------------------------------------------------------
def align(x: ArrayLike, digits: int) -> Aligned:
    """The rows of x [R, L] as integers |q| <= 2^(7 digits - 1) and one exponent each."""
    x = floats("x", x, 2)
    if digits not in (2, 3, 4):
        raise ValueError(f"digits is {digits}; expected 2, 3 or 4")
    out = Aligned(np.empty(x.shape, np.int32), np.empty(len(x), np.int32), np.empty(len(x), bool), digits)
    step = _rows_per_block(4 * x.shape[1])
    for rows in (slice(i, i + step) for i in range(0, len(x), step)):
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
            exact = x[rows].astype(np.float64)
        exact[np.abs(exact) < TINY] = 0  # 1.
        out.nonfinite[rows] = ~np.isfinite(exact).all(axis=1)  # 2.
        exact[out.nonfinite[rows]] = 0
        _, out.exponent[rows] = np.frexp(np.abs(exact).max(axis=1, initial=0))  # 3. (frexp(0) has exponent 0)
        exact *= np.ldexp(1.0, out.window - out.exponent[rows])[:, None]
        out.q[rows] = np.rint(exact)  # 4. RN to an integer
    return out


# Section 2: the exact dot product ---------------------------------------------------------------------
def _exact_dot(a: Array, b: Array, digits: int) -> tuple[Array, Array]:
    """D[n, v] = sum_k a[n, k] b[v, k] as high * 2^14 + low, 0 <= low < 2^14 (int64).

    Each float64 product sums integers below 2^53: 2 * 20 + 12 bits for 3 digits; for 4 digits b is split,
    27 + 14 + 12 bits.
    """
    high = np.zeros((len(a), len(b)), np.int64)
    low = np.zeros_like(high)
    for start in range(0, a.shape[1], 4096):
        x = a[:, start : start + 4096].astype(np.float64)
        y = b[:, start : start + 4096]
        if digits < 4:
            low += (x @ y.T.astype(np.float64)).astype(np.int64)
        else:
            high += (x @ (y >> LOW_BITS).T.astype(np.float64)).astype(np.int64)
            low += (x @ (y & (2**LOW_BITS - 1)).T.astype(np.float64)).astype(np.int64)
    return high + (low >> LOW_BITS), low & (2**LOW_BITS - 1)


# Section 3: the one rounding --------------------------------------------------------------------------
def _round_once(high: Array, low: Array, scale: Array) -> Array:
    """RN_float32((high * 2^14 + low) * scale), flushed below 2^-126; scale is a power of two, float64.

    A number of 52 bits or fewer is converted as it is; a longer one as 2 * high with a sticky last bit,
    which lies under every tie of 24 bits. Either conversion is the one rounding; the rest is exact.
    """
    short = np.abs(high) < 2**38
    integer = np.where(short, (high << LOW_BITS) | low, (high << 1) | (low != 0))
    rounded = integer.astype(np.float32).astype(np.float64)  # RN
    rounded *= np.where(short, 1.0, 2.0 ** (LOW_BITS - 1))
    return to_float32(rounded * scale)


def _dot(a: Aligned, b: Aligned) -> Array:
    """r of section 3 for every pair of rows, float32 [Ra, Rb]; NaN where either row is non-finite."""
    r = _round_once(*_exact_dot(a.q, b.q, a.digits), a.scale()[:, None] * b.scale()[None, :])
    r[a.nonfinite] = np.nan
    r[:, b.nonfinite] = np.nan
    return r


# Section 4: LM head -----------------------------------------------------------------------------------
def _logits(hidden: Array, weight: ArrayLike | Aligned, bias: ArrayLike | None, digits: int, dtype: DTypeLike) -> Array:
    table = weight if isinstance(weight, Aligned) else floats("weight", weight, 2)
    shape = table.q.shape if isinstance(table, Aligned) else table.shape
    if hidden.ndim == 0 or hidden.shape[-1] != shape[1]:
        raise ValueError(f"hidden has shape {hidden.shape}, weight {shape}; expected [..., K] and [V, K]")
    if isinstance(table, Aligned) and table.digits != digits:
        raise ValueError(f"weight is aligned with {table.digits} digits, the call uses {digits}; use one number")
    if bias is not None and floats("bias", bias, 1).shape != shape[:1]:
        raise ValueError(f"bias has shape {np.shape(bias)}; expected {shape[:1]}, one value a row of weight")
    rows = align(hidden.reshape(int(np.prod(hidden.shape[:-1])), shape[1]), digits)
    out = np.empty((len(rows.q), shape[0]), dtype)
    step = _rows_per_block(shape[1] // 8, len(rows.q))
    for start in range(0, shape[0], step):
        block = slice(start, start + step)
        if isinstance(table, Aligned):
            columns = Aligned(table.q[block], table.exponent[block], table.nonfinite[block], digits)
        else:
            columns = align(table[block], digits)
        r = _dot(rows, columns)
        if bias is not None:
            with np.errstate(invalid="ignore", over="ignore"):
                r = flushed(r + flushed(np.asarray(bias)[block]))  # RN_float32
        out[:, block] = narrow(r, dtype)  # RN to the output type
    return out.reshape(*hidden.shape[:-1], shape[0])


def lm_head(
    hidden: ArrayLike, weight: ArrayLike | Aligned, bias: ArrayLike | None = None, *, digits: int | None = None
) -> Array:
    """[..., K], [V, K], [V] -> [..., V] in hidden's dtype; digits 3 unless named, 4 when hidden is float32."""
    hidden = floats("hidden", hidden)
    digits = digits if digits is not None else 4 if hidden.dtype == np.float32 else 3
    return _logits(hidden, weight, bias, digits, hidden.dtype)


def lm_head_fp32(
    hidden: ArrayLike, weight: ArrayLike | Aligned, bias: ArrayLike | None = None, *, digits: int = 4
) -> Array:
    """The ground truth: [..., K], [V, K], [V] -> [..., V] float32."""
    return _logits(floats("hidden", hidden), weight, bias, digits, np.float32)


# Section 5: embedding ---------------------------------------------------------------------------------
def embedding(token_ids: ArrayLike, weight: ArrayLike, *, check_ids: bool = True) -> Array:
    """[...] int, [V, H] -> [..., H]: the bits of the rows. Unchecked bad ids give a row of quiet NaN."""
    weight = floats("weight", weight, 2)
    ids, good = valid_ids("token_ids", token_ids, len(weight), check_ids)
    poison = quiet_nan(weight.dtype)
    out = np.full((*ids.shape, weight.shape[1]), poison)
    out[good] = weight[ids[good]].view(poison.dtype)
    return out.view(weight.dtype)


def embedding_fp32(token_ids: ArrayLike, weight: ArrayLike, *, check_ids: bool = True) -> Array:
    """The rows widened exactly to float32; a NaN that is widened becomes the quiet NaN."""
    rows = embedding(token_ids, weight, check_ids=check_ids)
    if rows.dtype == np.float32:
        return rows
    with np.errstate(invalid="ignore"):
        return narrow(rows.astype(np.float32), np.float32)


# Section 6: gradients ---------------------------------------------------------------------------------
def lm_head_grads(
    grad_logits: ArrayLike, hidden: ArrayLike, weight: ArrayLike, bias_dtype: DTypeLike | None = None
) -> tuple[Array, Array, Array | None]:
    """Gradients of hidden [N, K], weight [V, K] and, where its dtype is given, bias [V], each in its dtype."""
    grad = floats("grad_logits", grad_logits, 2)
    hidden, weight = floats("hidden", hidden, 2), floats("weight", weight, 2)
    grad_hidden = _dot(align(grad, 4), align(weight.T, 4))
    grad_weight = _dot(align(grad.T, 4), align(hidden.T, 4))
    grad_bias = None if bias_dtype is None else narrow(_aligned_sum(grad.T), bias_dtype)
    return narrow(grad_hidden, hidden.dtype), narrow(grad_weight, weight.dtype), grad_bias


def _aligned_sum(members: Array) -> Array:
    """The sum of each row of [R, L], rounded once to float32; NaN for a non-finite row."""
    a = align(members, 4)
    total = a.q.sum(axis=1, dtype=np.int64)
    r = _round_once(total >> LOW_BITS, total & (2**LOW_BITS - 1), a.scale())
    return np.where(a.nonfinite, np.float32(np.nan), r)


def embedding_grad(token_ids: ArrayLike, grad_rows: ArrayLike, vocab: int, weight_dtype: DTypeLike) -> Array:
    """Gradient of the table [V, H]: the aligned sum of the rows of one id; no gradient flows from bad ids."""
    ids, good = valid_ids("token_ids", token_ids, vocab, check_ids=False)
    grad = floats("grad_rows", grad_rows)
    rows, ids = grad.reshape(ids.size, grad.shape[-1])[good.reshape(-1)], ids[good]
    out = np.zeros((vocab, grad.shape[-1]), np.float32)
    for token in np.unique(ids):
        out[token] = _aligned_sum(rows[ids == token].T)
    return narrow(out, weight_dtype)


# Section 7: log-probabilities (those of ready logits are in crosscheck/logprob.py) ---------------------
def linear_logprob(
    hidden: ArrayLike,
    weight: ArrayLike | Aligned,
    target_ids: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    digits: int = 4,
    check_ids: bool = True,
) -> Array:
    """[..., K], [V, K], [...], [V] -> [...] float32: `selected_logprob` of `lm_head_fp32`."""
    return selected_logprob(lm_head_fp32(hidden, weight, bias, digits=digits), target_ids, check_ids=check_ids)
