"""Selected log-probabilities: logit[t] - logsumexp(logits), the exponentials integers whose sum has no order.

Section 7 of docs/contract.md, whose names (d, D, E, S, b, l) the code keeps. The twin is rlk_jax/logprob.py.
"""

from typing import Any

import torch
from torch import Tensor

from rlk_torch.checks import as_int64, as_token_ids, check_floats, outside, raise_bad_id
from rlk_torch.devices import has_triton
from rlk_torch.differentiable import differentiable, gradient_only, together
from rlk_torch.floats import flushed, narrowed, power_of_two, product

MAX_VOCAB = 2**18  # so that S stays below 2^63
_LOG2E = 1549082005  # log2(e), 30 bits
_LN2 = 1488522236  # ln(2), 31 bits
_C = (536870912, 372130563, 128970545, 29799171, 5161244, 720984, 76786, 11619)  # 2^h on [0, 1], 29 bits
_BLOCK = 2**16  # logits taken at a time: their integers stay in the cache
_BLOCK_GPU = 2**25

Sums = tuple[Tensor, Tensor, Tensor]  # the largest logit, S, and whether the log-probability is NaN, of each row


def selected_logprob(logits: Tensor, target_ids: Any, *, check_ids: bool = True) -> Tensor:
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
        >>> selected_logprob(torch.tensor([[0.0, 0.0], [1.0, -float("inf")]]), [0, 0]).tolist()
        [-0.6931471824645996, 0.0]
    """
    check_floats("logits", logits, "[..., V]")
    if logits.ndim == 0:
        raise ValueError("logits has shape (); expected [..., V]: add the vocab dimension")
    check_vocab(f"logits has shape {tuple(logits.shape)}", logits.shape[-1])
    ids = as_token_ids(target_ids, logits.device, logits.shape[-1], check_ids, "target_ids", "logits")
    check_one_a_row(ids, "logits", logits)
    readable = check_ids and not torch.compiler.is_compiling()
    return _forward(logits, ids, readable, "")[0]


def check_vocab(got: str, vocab: int) -> None:
    if not 1 <= vocab <= MAX_VOCAB:
        raise ValueError(
            f"{got}; expected 1 <= V <= {MAX_VOCAB}, the sum of whose exponentials has 63 bits: leave out ids that "
            "cannot occur"
        )


def check_one_a_row(ids: Tensor, name: str, rows: Tensor) -> None:
    if ids.shape != rows.shape[:-1]:
        raise ValueError(
            f"target_ids has shape {tuple(ids.shape)} and {name} {tuple(rows.shape)}; "
            f"expected {tuple(rows.shape[:-1])}, one id a row of {name}"
        )


def default_implementation(device: torch.device) -> str:
    """Triton on CUDA where it is installed, else int64 operations."""
    return "triton" if has_triton(device) else "int64"


@torch.library.custom_op("rlk_torch::selected_logprob", mutates_args=())
def _selected_logprob(
    logits: Tensor, target_ids: Tensor, check_ids: bool, implementation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probabilities, and for the gradient S and the bits of the largest logit: [...] float32, int64, int32."""
    ids = as_int64(target_ids)
    bad = outside(ids, logits.shape[-1])
    if check_ids and bad.any():
        raise_bad_id(target_ids, logits.shape[-1], bad, "target_ids")
    rows = logits.detach().reshape(ids.numel(), logits.shape[-1])
    out, total, top = logprobs(rows, ids.masked_fill(bad, 0).reshape(-1), implementation)
    out.masked_fill_(bad.reshape(-1), float("nan"))
    # The result is no view, so that callers may write into it.
    return out.view(ids.shape).clone(), total.view(ids.shape), top.view(torch.int32).view(ids.shape)


def logprobs(logits: Tensor, targets: Tensor, implementation: str = "") -> tuple[Tensor, Tensor, Tensor]:
    """[N, V] and good int64 [N] -> the log-probabilities, S and the largest logits, NaN where that is the result."""
    top, total, bad = sums(logits, implementation or default_implementation(logits.device))
    out = finished(logits.gather(1, targets[:, None])[:, 0], top, total, bad)
    return out, total, top.masked_fill_(bad, float("nan"))


def finished(own: Tensor, top: Tensor, total: Tensor, bad: Tensor) -> Tensor:
    """4. and 5. for the targets' logits and what `sums` gave."""
    log = _ln(total).float() * 2.0**-26  # RN_float32(l), scaled
    out = 0.0 - flushed(differences(own, top) + log)
    return narrowed(out.masked_fill_(bad, float("nan")), torch.float32)


def sums(logits: Tensor, implementation: str) -> Sums:
    """The largest logit and S of each row [N, V]; of a row whose result is NaN, 0 and anything."""
    if implementation == "triton":
        from rlk_torch.logprob_triton import sums_triton

        top, total = sums_triton(logits)
        bad = ~top.isfinite()
        return top.masked_fill_(bad, 0.0), total, bad
    top = largest_logits(logits)
    bad = ~top.isfinite()
    return top.masked_fill_(bad, 0.0), total_of(logits, top), bad


def largest_logits(logits: Tensor) -> Tensor:
    """M of each row [N, V], float32: NaN where there is one, -inf where there is nothing."""
    top = logits.new_full((len(logits),), float("-inf"), dtype=torch.float32)
    for at, columns in _blocks(logits):
        torch.maximum(top[at], flushed(logits[at, columns].float()).amax(1), out=top[at])  # NaN is kept
    return top


def total_of(logits: Tensor, top: Tensor) -> Tensor:
    """3. S of each row [N, V], or of a part of it, for the largest logits of the whole, which are finite."""
    total = logits.new_zeros(len(logits), dtype=torch.int64)
    for at, columns in _blocks(logits):
        total[at] += exponentials(differences(logits[at, columns], top[at, None])).sum(1)
    return total


def _blocks(logits: Tensor) -> Any:
    """Blocks of rows, and of columns where a row is larger than a block."""
    rows, vocab = logits.shape
    block = _BLOCK if logits.device.type == "cpu" else _BLOCK_GPU
    step, width = max(1, block // max(1, vocab)), max(1, min(vocab, block))
    for first in range(0, rows, step):
        for start in range(0, vocab, width):
            yield slice(first, first + step), slice(start, start + width)


def differences(logits: Tensor, top: Tensor) -> Tensor:
    """1. d = RN_float32(M - x), below 2^-126 it is 0; NaN and infinite only where the row's result is NaN or E is 0."""
    return flushed(top - flushed(logits.float()))


def exponentials(d: Tensor) -> Tensor:
    """2. E = 2^44 exp(-d) as int64, rounded down at every step; 0 from d = 32 on."""
    near = d < 32  # no NaN is
    scaled = (d.masked_fill(~near, 0.0) * 2.0**24).round_()  # exact, then ties to even
    y = scaled.long().mul_(_LOG2E).bitwise_right_shift_(30)
    shift = y >> 24
    z = 2**24 - y.bitwise_and_(2**24 - 1)
    p = torch.full_like(z, _C[7])
    for c in reversed(_C[:7]):
        p.mul_(z).bitwise_right_shift_(24).add_(c)
    return p.bitwise_left_shift_(14).bitwise_right_shift_(shift).mul_(near)


def _floor_log2(S: Tensor) -> Tensor:
    """For 2^44 <= S < 2^63. float64 may round S up to the next power of two, so the guess is corrected."""
    b = (S.double().view(torch.int64) >> 52) - 1023
    return b - ((S >> b) == 0).long()


def _ln(S: Tensor) -> Tensor:
    """4. l = 2^26 (ln S - 44 ln 2), int64, from 26 squarings."""
    S = S.clamp(min=2**44)  # rows whose result is NaN
    b = _floor_log2(S)
    m = S >> (b - 30)
    f = torch.zeros_like(m)
    for _ in range(26):
        m = (m * m) >> 30
        bit = m >> 31
        m >>= bit
        f = (f << 1) | bit
    return ((((b - 44) << 26) | f) * _LN2) >> 31


def reciprocal(S: Tensor) -> Tensor:
    """r = 2^44 / S in float32: RN_float32(floor(2^61 / 31 bits of S)), scaled."""
    S = S.clamp(min=2**44)
    b = _floor_log2(S)
    R = torch.div(torch.full_like(S, 2**61), S >> (b - 30), rounding_mode="floor")
    return R.float() * power_of_two((-(b - 44) - 31).int())


def gradients(
    logits: Tensor,
    targets: Tensor,
    grad: Tensor,
    total: Tensor,
    top: Tensor,
    implementation: str = "",
    start: int = 0,
) -> Tensor:
    """Those of the logits [N, V] in their dtype, from int64 [N], float32 [N] and what `logprobs` gave.

    0 for a target of -1. start: the id of the first column, where the logits are a part of the vocab.
    """
    out = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    bad = ~top.isfinite() | ~grad.isfinite()
    r, top = reciprocal(total), top.masked_fill(bad, 0.0)
    if (implementation or default_implementation(logits.device)) == "triton":
        from rlk_torch.logprob_triton import gradients_triton

        return gradients_triton(logits, targets, start, grad, bad, total, top, r, out)
    for at, columns in _blocks(logits):
        E = exponentials(differences(logits[at, columns], top[at, None]))
        new = 0.0 - gradient_of(E, grad[at, None], r[at, None])
        out[at, columns] = narrowed(new.masked_fill_(bad[at, None], float("nan")), out.dtype)
    row, column = torch.arange(len(targets), device=targets.device), targets - start
    inside, column = (column >= 0) & (column < logits.shape[1]), column.clamp(0, logits.shape[1] - 1)
    E = exponentials(differences(logits[row, column], top))
    own = narrowed(gradient_of(total - E, grad, r).masked_fill_(bad, float("nan")), out.dtype)
    out[row, column] = torch.where(inside, own, out[row, column])
    return out.masked_fill_((targets < 0)[:, None], 0.0)


def gradient_of(part: Tensor, grad: Tensor, r: Tensor) -> Tensor:
    """RN(g * RN(RN(part) * 2^-44 * r)) for E of a logit, or S - E of the target's: float32."""
    return product(grad, (part.float() * 2.0**-44).mul_(r))


@torch.library.custom_op("rlk_torch::selected_logprob_grad", mutates_args=())
def part_gradient(
    grad: Tensor,
    logits: Tensor,
    target_ids: Tensor,
    total: Tensor,
    top: Tensor,
    implementation: str,
    start: int,
    vocab: int,
) -> Tensor:
    """Of logits from the id start on, of so many. A bad id, which was not read, has no gradient."""
    ids = as_int64(target_ids).reshape(-1)
    ids = ids.masked_fill(outside(ids, vocab), -1)
    rows = logits.detach().reshape(ids.numel(), logits.shape[-1])
    grad, total, top = (x.reshape(-1) for x in (grad.detach(), total, top.view(torch.float32)))
    return gradients(rows, ids, grad, total, top, implementation, start).view(logits.shape)


@_selected_logprob.register_fake
def _(logits: Tensor, target_ids: Tensor, check_ids: bool, implementation: str) -> tuple[Tensor, Tensor, Tensor]:
    shape = logits.shape[:-1]
    dtypes = torch.float32, torch.int64, torch.int32
    out, total, top = (logits.new_empty(shape, dtype=dtype) for dtype in dtypes)
    return out, total, top


@part_gradient.register_fake
def _(
    grad: Tensor,
    logits: Tensor,
    target_ids: Tensor,
    total: Tensor,
    top: Tensor,
    implementation: str,
    start: int,
    vocab: int,
) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, target_ids, _, ctx.implementation = inputs
    ctx.save_for_backward(logits, target_ids, *output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    logits = ctx.saved_tensors[0]
    found = _logits_gradient(grad, *ctx.saved_tensors, ctx.implementation, 0, logits.shape[-1])
    return found, None, None, None


part_gradient.register_vmap(together(5)(part_gradient))
_logits_gradient = gradient_only(part_gradient, "selected_logprob")
_forward = differentiable("selected_logprob", _selected_logprob, _save, _backward, together(2, 3))
