"""On ranks: one does not come. The other ends with torch.distributed's error, within its group's timeout."""

import os
from datetime import timedelta

import pytest
import torch.distributed as dist
from ranks_values import drawn, leaf

import rlk_torch

SHORT = timedelta(seconds=2)


def check_a_rank_that_does_not_call(rank: int, size: int) -> None:
    group = dist.new_group(timeout=SHORT)
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"Timed out waiting 2000ms"):
            rlk_torch.sharded_embedding([0], drawn(2, 3), 4, group=group)


def check_a_rank_that_does_not_go_back(rank: int, size: int) -> None:
    """Hidden's gradient is a sum over ranks."""
    group = dist.new_group(timeout=SHORT)
    hidden = leaf(drawn(2, 3))
    logits = rlk_torch.sharded_lm_head(hidden, drawn(2, 3), vocab=4, group=group)
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"Timed out waiting 2000ms"):
            logits.sum().backward()


def check_a_rank_that_is_gone(rank: int, size: int) -> None:
    if rank == 1:
        os._exit(1)
    with pytest.raises(RuntimeError, match=r"Connection closed by peer|Connection reset by peer|Timed out"):
        rlk_torch.sharded_embedding([0], drawn(2, 3), 4)
