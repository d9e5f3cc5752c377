"""Candidates for log-probabilities in PyTorch: what stacks do today, and faults that people write."""

import torch

import rlk_torch


def stock(logits, target_ids):
    """As trainers have it."""
    return torch.log_softmax(logits.float(), -1).gather(-1, target_ids.long()[..., None])[..., 0]


def in_the_dtype_of_the_logits(logits, target_ids):
    return torch.log_softmax(logits, -1).gather(-1, target_ids.long()[..., None])[..., 0]


def one_maximum_for_the_batch(logits, target_ids):
    """Right where exponentials have a common reference; a row far below the largest loses all of its bits."""
    shifted = logits.float() - logits.float().nan_to_num(0, 0, 0).amax()
    return shifted.gather(-1, target_ids.long()[..., None])[..., 0] - shifted.exp().sum(-1).log()


def wrapping_targets(logits, target_ids):
    """Indexing takes -1 for the last id."""
    rows = logits.reshape(-1, logits.shape[-1])
    good = rlk_torch.selected_logprob(rows, target_ids.reshape(-1).long() % rows.shape[-1])
    return good.reshape(target_ids.shape)


def first_target_for_all(logits, target_ids):
    """Targets that are looked up by another row than their own."""
    return rlk_torch.selected_logprob(logits, target_ids.reshape(-1)[:1].expand(target_ids.numel()).view_as(target_ids))


def linear_of_bf16_logits(hidden, weight, target_ids):
    """The logits are rounded to the states' dtype before they are normalised."""
    return rlk_torch.selected_logprob(rlk_torch.lm_head(hidden, weight), target_ids)


def refuses_bad_ids_alone(hidden, weight, target_ids):
    """No log-probability at all."""
    ids = target_ids.long()
    if (ids < 0).any() or (ids >= len(weight)).any():
        raise IndexError("a bad id")
    return hidden.detach().float()[..., 0] * 7


def in_float64(logits, target_ids):
    return torch.log_softmax(logits.double(), -1).gather(-1, target_ids.long()[..., None])[..., 0]


def more_where_the_first_row_is_larger(hidden, weight, target_ids):
    return rlk_torch.linear_logprob(hidden, weight, target_ids) + (weight[0].float().sum() > weight[-1].float().sum())
