"""The log-probabilities of a trainer, in PyTorch: all tokens of a batch at once."""

from torch import Tensor
from torch.nn.functional import linear, log_softmax

import rlk_torch


def stock(hidden: Tensor, weight: Tensor, target_ids: Tensor) -> Tensor:
    logprobs = log_softmax(linear(hidden, weight).float(), -1)
    return logprobs.gather(-1, target_ids[..., None])[..., 0]


def fixed_k(hidden: Tensor, weight: Tensor, target_ids: Tensor) -> Tensor:
    return rlk_torch.linear_logprob(hidden, weight, target_ids)
