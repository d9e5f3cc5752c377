"""Ranks that hold shards get the bits of the whole, or a sentence in bounded time: real processes with gloo."""

import re
from pathlib import Path

import pytest
import torch
from processes import run_alone
from ranks import NETWORK, run_on_ranks

import rlk_torch

PAGE = Path(__file__).resolve().parents[1] / "docs" / "sharding.md"


@pytest.mark.parametrize("sizes", [(1, 2, 3), (4, 8)], ids=str)
def test_the_bits_of_the_whole(sizes):
    assert run_on_ranks("ranks_values", *sizes) == {}


def test_what_is_exchanged_and_what_is_said_where_calls_differ():
    assert run_on_ranks("ranks_exchanges", 3) == {}


def test_a_rank_that_does_not_come_ends_the_other_in_bounded_time():
    """The last check's rank 1 is gone before it can say that it was well."""
    assert run_on_ranks("ranks_absent", 2) == {"check_a_rank_that_is_gone on 2": "rank 1: not run"}


def test_without_a_process_group():
    with pytest.raises(ValueError) as caught:
        rlk_torch.sharded_embedding([0], torch.ones(2, 2), 2)
    assert str(caught.value) == (
        "there is no process group; expected one of the ranks that hold the shards: call "
        "torch.distributed.init_process_group first"
    )


def test_the_program_of_the_documentation_runs(tmp_path):
    text = PAGE.read_text()
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", text[text.index("## PyTorch") : text.index("## JAX")], re.S | re.M
    )
    assert "assert_bits_equal" in program
    file = tmp_path / "program.py"
    file.write_text(program)
    command = f"import sys; sys.argv[1:] = ['--standalone', '--nproc-per-node', '2', {str(file)!r}]\n"
    run_alone(command + "from torch.distributed.run import main; main()", OMP_NUM_THREADS="1", **NETWORK)
