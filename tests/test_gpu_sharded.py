"""On several GPUs sharded calls have the bits of the whole: torch over NCCL, JAX over a mesh of its devices."""

import pytest
import torch
from bit_arrays import BFLOAT16
from mesh_logprob import automatic_axes as automatic_axes_of_logprobs
from mesh_logprob import logits_over, states_over
from mesh_values import FLOAT16, FLOAT32, automatic_axes, table_over, vocab_over, width_over
from meshes import mesh_of
from ranks import run_on_ranks

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def two_devices() -> None:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"not run: {count} CUDA device; ranks of NCCL need one each, so at least 2")


def test_ranks_of_nccl_get_the_bits_of_the_whole():
    assert run_on_ranks("ranks_values", 2, backend="nccl") == {}
    assert run_on_ranks("ranks_logprob", 2, backend="nccl") == {}


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
def test_a_mesh_of_two_gpus_gives_the_bits_of_the_whole(dtype):
    mesh = mesh_of(2, platform="gpu")
    vocab_over(mesh, dtype, 21, gather=False)
    vocab_over(mesh, dtype, 300, gather=True)
    width_over(mesh, dtype, 21, width=300)
    table_over(mesh, dtype, 21)
    table_over(mesh, dtype, 20, width=128)
    logits_over(mesh, dtype, 301)
    states_over(mesh, dtype, 301, budget=4 * 151 * 3)


def test_automatic_axes_over_two_gpus():
    automatic_axes(mesh_of(2, platform="gpu"))
    automatic_axes_of_logprobs(mesh_of(2, platform="gpu"))
