"""Ranks compare checksums of what each holds whole: arrays that people mistake for each other differ in them."""

from itertools import permutations, product

import pytest
import torch

from rlk_torch import sharded_record
from rlk_torch.sharded_record import checksum


def test_no_two_short_lists_of_small_ids_have_one_checksum():
    lists = [torch.tensor(ids) for length in range(1, 5) for ids in product(range(5), repeat=length)]
    assert len({checksum(ids) for ids in lists}) == len(lists)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_every_order_of_the_elements_has_a_checksum_of_its_own(dtype):
    """Also within a row, as of hidden states whose features were permuted."""
    values = torch.tensor([1.0, 2.0, -1.0, 0.0, 0.5]).to(dtype)
    orders = [values[list(order)].view(1, 5) for order in permutations(range(5))]
    assert len({checksum(x) for x in orders}) == 120


def test_signs_of_zeros_and_nan_patterns_count():
    zeros = torch.tensor([0.0, -0.0])
    nans = torch.tensor([0x7FC00000, 0x7FC00001, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert len({checksum(x) for x in (zeros[:1], zeros[1:], nans[:1], nans[1:2], nans[2:])}) == 5


def test_it_is_that_of_the_values_however_they_are_stored_or_taken(monkeypatch):
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    whole = checksum(x)
    assert checksum(x.mT.contiguous().mT) == whole
    assert checksum(torch.tensor([3, 250], dtype=torch.uint8)) == checksum(torch.tensor([3, 250]))
    monkeypatch.setattr(sharded_record, "_BLOCK", 4)
    assert checksum(x) == whole
    assert -(2**63) <= whole < 2**63 and checksum(torch.zeros(0, 3)) == 0
