"""Candidates in PyTorch, each with one fault that people do write, and some that are right."""

import os
import time

import torch

import rlk_torch


# LM heads that add in an order of their own ----------------------------------------------------------------
def linear(hidden, weight, bias=None):
    return torch.nn.functional.linear(hidden, weight, bias)


def tf32(hidden, weight):
    """Fast matrix products of float32 on a GPU: their factors are rounded to 10 bits."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return hidden @ weight.mT
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def mv_on_a_shifted_view(hidden, weight):
    """The weight lies in a larger buffer, as shards and packed weights do, and not at its start."""
    buffer = weight.new_zeros(weight.numel() + 1)
    shifted = buffer[1:].view(weight.shape).copy_(weight)
    return torch.stack([torch.mv(shifted, row) for row in hidden])


def bf16_accumulator(hidden, weight):
    total = hidden.new_zeros(hidden.shape[0], weight.shape[0], dtype=torch.bfloat16)
    for k in range(hidden.shape[1]):
        total = total + (hidden[:, k : k + 1] * weight[:, k]).to(torch.bfloat16)
    return total.to(hidden.dtype)


def scaled_by_the_batch(hidden, weight):
    """One scale for all rows, as in a quantisation by tensor: a row depends on its neighbours."""
    scale = hidden.float().abs().nan_to_num(0, 0).amax() / 127
    rounded = (hidden.float() / scale).round() * scale
    return rlk_torch.lm_head(rounded.to(hidden.dtype), weight)


def neighbour_times_zero(hidden, weight):
    """A row that is masked by a product with 0, and not left out: what is no number comes through."""
    return rlk_torch.lm_head(hidden + 0 * hidden.roll(1, 0), weight)


def another_kernel_from_five_rows_on(hidden, weight):
    """Libraries choose by the number of rows: here with less precision where there are many."""
    return rlk_torch.lm_head(hidden, weight, digits=3 if len(hidden) < 5 else 2)


# The contract's bits, spoiled ------------------------------------------------------------------------------
def _right(hidden, weight):
    return rlk_torch.lm_head(hidden, weight).detach()


def strides_ignored(hidden, weight):
    """As a kernel that is handed an address, and takes the rows to lie one after the other."""
    return rlk_torch.lm_head(hidden, torch.as_strided(weight, weight.shape, (weight.shape[1], 1)))


calls = 0


def other_bits_every_second_time(hidden, weight):
    global calls
    calls += 1
    result = _right(hidden, weight)
    return result if calls % 2 else (result.view(torch.int16) ^ 1).view(result.dtype)


def in_place(hidden, weight):
    result = _right(hidden, weight)
    hidden.zero_()
    return result


def other_dtype(hidden, weight):
    return _right(hidden, weight).float()


def other_shape(hidden, weight):
    return _right(hidden, weight)[None]


def negative_zero(hidden, weight):
    result = _right(hidden, weight)
    return torch.where(result == 0, -torch.zeros_like(result), result)


def other_nan(hidden, weight):
    result = _right(hidden, weight)
    return torch.where(result.isnan(), (result.view(torch.int16) | 1).view(result.dtype), result)


def no_gradients(hidden, weight):
    return _right(hidden, weight)


def not_compiled(hidden, weight, bias=None, *, digits=None):
    torch._dynamo.graph_break()
    return rlk_torch.lm_head(hidden, weight, bias, digits=digits)


# No answer -------------------------------------------------------------------------------------------------
def raises(hidden, weight):
    raise ValueError("planted")


def refuses_nan(hidden, weight):
    if hidden.isnan().any():
        raise FloatingPointError("planted")
    return rlk_torch.lm_head(hidden, weight)


def hangs(hidden, weight):
    time.sleep(3600)


def crashes(hidden, weight):
    os.abort()


# Embeddings ------------------------------------------------------------------------------------------------
def clamping_gather(token_ids, weight):
    return weight[token_ids.long().clamp(0, len(weight) - 1)]


def one_hot_matmul(token_ids, weight):
    return torch.nn.functional.one_hot(token_ids.long(), len(weight)).to(weight.dtype) @ weight


number = 3
