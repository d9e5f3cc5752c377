"""The Pallas gather lowers for CUDA and gives the bits of the reference when it is interpreted; no GPU is needed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frameworks import FLOATS, JAX
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractMesh

import rlk_jax
from crosscheck import contract
from crosscheck.bits import assert_bits_equal
from rlk_jax.embedding_pallas import gather_pallas, why_not


def interpreter() -> Any:
    try:
        return plgpu.InterpretGPUParams()
    except AttributeError:  # jax 0.10 has it, unnamed
        from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

        return InterpretGPUParams()


def abstract_hopper() -> AbstractMesh:
    """A mesh of one H200 that need not exist."""
    from jax._src.mesh import AbstractDevice

    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    return AbstractMesh((1,), ("x",), abstract_device=device)


@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("tokens", [1, 7, 1000])
@pytest.mark.parametrize("width", [128, 896, 4096, 10752])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_kernel_lowers_for_cuda(dtype, width, tokens, x64):
    ids = jax.ShapeDtypeStruct((tokens,), jnp.int32)
    table = jax.ShapeDtypeStruct((151936, width), dtype)
    with jax.enable_x64(x64), jax.sharding.use_abstract_mesh(abstract_hopper()):
        lowered = jax.jit(gather_pallas).trace(ids, table).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()


@pytest.mark.parametrize("tokens", [0, 1, 5, 11])
@pytest.mark.parametrize("width", [128, 384])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_interpreted_kernel_copies_bits_and_poisons_bad_ids(dtype, width, tokens):
    rng = np.random.default_rng([tokens, width])
    table = rng.integers(0, 2**16, (9, width), dtype=np.uint16)
    table = np.repeat(table, dtype.itemsize // 2, axis=1).view(dtype)[:, :width]
    ids = rng.integers(-1, 9, tokens).astype(np.int32)
    actual = gather_pallas(jnp.asarray(ids), JAX.array(table), interpreter())
    assert_bits_equal(actual, contract.embedding(ids, table, check_ids=False))


@pytest.mark.parametrize("width", [1, 64, 100, 129, 0, 65536])
def test_a_width_that_cannot_be_copied_is_named(width):
    assert f"width {width} " in str(why_not(jax.ShapeDtypeStruct((3, width), jnp.float32)))


def test_an_explicit_request_for_a_width_that_cannot_be_served_is_refused():
    from rlk_jax.embedding import run_embedding

    with pytest.raises(ValueError, match=r"cannot serve the call: weight has width 100 and .* use 'gather'"):
        run_embedding([0], jnp.zeros((3, 100)), True, None, False, "pallas")


def test_an_explicit_request_without_a_gpu_is_refused():
    with pytest.raises(ValueError, match="needs a CUDA device of compute capability 9 or newer"):
        rlk_jax.get_op("embedding", device="cpu", implementation="pallas")
