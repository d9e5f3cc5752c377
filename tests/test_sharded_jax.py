"""Sharded over a mesh or cut into parts, rlk_jax has the bits of the whole, forward and backward, or says why not."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bit_arrays import BFLOAT16, random_bits
from meshes import VARIABLES, run_on_meshes, with_gradients
from processes import run_alone

import rlk_jax
from crosscheck import contract
from crosscheck.bits import assert_bits_equal
from rlk_jax.sharded import Shards

PAGE = Path(__file__).resolve().parents[1] / "docs" / "sharding.md"
FLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)


def test_the_bits_of_the_whole_on_meshes():
    assert run_on_meshes("mesh_values") == {}


def test_programs_around_the_calls_and_what_devices_exchange():
    assert run_on_meshes("mesh_programs") == {}


def test_what_is_refused_on_meshes():
    assert run_on_meshes("mesh_refusals") == {}


def test_the_program_on_the_page_about_sharding_runs():
    program = PAGE.read_text().split("\n## JAX\n")[1].split("```python\n")[1].split("```\n")[0]
    assert "assert_bits_equal(" in program
    run_alone(program, **{**VARIABLES, "XLA_FLAGS": VARIABLES["XLA_FLAGS"].replace("8", "3", 1)})


# Shards --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_padding_keeps_all_bits(array, dtype):
    table = random_bits(dtype, (7, 3))
    padded = rlk_jax.pad_vocab(array(table), 4)
    assert isinstance(padded, type(array(table)))
    assert_bits_equal(padded, np.concatenate([table, np.zeros((1, 3), dtype)]))
    assert_bits_equal(rlk_jax.pad_vocab(array(table[:, 0]), 4)[:7], table[:, 0])


def test_an_aligned_weight_is_padded_as_the_weight():
    weight = jnp.asarray(np.random.default_rng(0).standard_normal((7, 3), np.float32))
    padded, other = rlk_jax.pad_vocab(rlk_jax.align(weight, 3), 4), rlk_jax.align(rlk_jax.pad_vocab(weight, 4), 3)
    assert padded.shape == other.shape == (8, 3)
    for one, wanted in zip(jax.tree.leaves(padded), jax.tree.leaves(other), strict=True):
        assert one.dtype == wanted.dtype and np.array_equal(one, wanted)


def test_the_gradient_of_padding_is_that_of_the_rows():
    grad = random_bits(BFLOAT16, (8, 3))
    _, pull = jax.vjp(lambda weight: rlk_jax.pad_vocab(weight, 4), jnp.zeros((7, 3), jnp.bfloat16))
    assert_bits_equal(pull(jnp.asarray(grad))[0], grad[:7])


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            (np.ones(3), 2),
            TypeError,
            "weight has dtype float64; expected bfloat16, float16 or float32: convert it first",
        ),
        ((jnp.float32(1), 2), ValueError, "weight has shape (); expected [V, ...]: add the vocab dimension"),
        ((jnp.ones(3), 0), ValueError, "shards is 0; expected 1 or more"),
        ((jnp.ones(3), 2.0), TypeError, "shards is of type float; expected an integer"),
    ],
)
def test_what_is_not_padded(arguments, error, text):
    with pytest.raises(error) as raised:
        rlk_jax.pad_vocab(*arguments)
    assert str(raised.value) == text


@pytest.mark.parametrize(("size", "count"), [(1, 3), (8, 3), (8, 9), (9, 5), (1024, 7), (1025, 9), (5000, 5)])
def test_sums_over_any_number_of_shards_are_exact(size, count):
    """The most that carried groups hold among them: no word and no carry on top overflows."""
    rng = np.random.default_rng(size)
    groups = rng.integers(0, 128, (size, 4, count), np.int32)
    groups[:, 0, :-1] = 127
    top = 2**31 // size - 1
    groups[..., -1] = rng.integers(-top, top, (size, 4), np.int32)
    groups[:, 1, -1] = -top
    parts = [jnp.asarray(groups[..., i]) for i in range(count)]
    found = jax.jit(jax.vmap(lambda *x: Shards(("x",), size).total(list(x)), axis_name="x"))(*parts)
    value = groups.astype(object) @ [128**i for i in range(count)]
    for one in (0, size - 1):  # every shard has the sum
        carried = np.stack([np.asarray(x[one]) for x in found], -1)
        assert (carried.astype(object) @ [128**i for i in range(count)] == value.sum(0)).all()
        assert ((carried[:, :-1] >= 0) & (carried[:, :-1] < 128)).all()


# Parts in one process ------------------------------------------------------------------------------------------------
def cut(x: Any, *at: int) -> list[Any]:
    return [jnp.asarray(part) for part in np.split(x, at, axis=-1)]


HIDDEN, WEIGHT = (random_bits(np.dtype(np.uint8), s).astype(np.float32) - 128 for s in ((2, 3, 9), (5, 9)))
BIAS, UPSTREAM = (np.random.default_rng(1).standard_normal(s, np.float32) for s in (5, (2, 3, 5)))
HIDDEN[..., -1] *= 2.0**60
WEIGHT[2, 0], HIDDEN[1, 2, 8] = np.nan, -np.inf


@pytest.mark.parametrize("at", [(4, 4, 7), tuple(range(1, 9))], ids=["an empty one", "nine of one element"])
def test_parts_have_the_bits_of_the_whole(at):
    hidden, weight, upstream = (x.astype(BFLOAT16) for x in (HIDDEN, WEIGHT, UPSTREAM))
    run = jax.jit(with_gradients(rlk_jax.lm_head_of_parts, (0, 1, 2)))
    arguments = cut(hidden, *at), cut(weight, *at), jnp.asarray(BIAS)
    found, of_hidden, of_weight, of_bias = run(jnp.asarray(upstream), *arguments)
    assert_bits_equal(found, contract.lm_head(hidden, weight, BIAS))
    wanted = contract.lm_head_grads(upstream.reshape(6, 5), hidden.reshape(6, 9), weight, FLOAT32)
    assert_bits_equal(np.concatenate(of_hidden, -1), wanted[0].reshape(2, 3, 9))
    assert_bits_equal(np.concatenate(of_weight, -1), wanted[1])
    assert_bits_equal(of_bias, wanted[2])


def test_the_whole_width_is_what_bounds_the_sums_of_parts():
    """655,360 products of the largest integers: more than a group of a part's own width would hold."""
    hidden, weight = np.full((1, 655360), 1.999), np.full((2, 655360), 1.999)
    weight[1] *= -1
    parts = [cut(x.astype(FLOAT16), *range(65536, 655360, 65536)) for x in (hidden, weight)]
    found = jax.jit(partial(rlk_jax.lm_head_of_parts_fp32, digits=2))(*parts)
    assert_bits_equal(found, contract.lm_head_fp32(hidden.astype(FLOAT16), weight.astype(FLOAT16), digits=2))


H, W = jnp.ones((2, 3)), jnp.ones((4, 3))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            ([H, H.astype(jnp.float16)], [W, W]), ValueError,
            "hidden_parts[1] is float16 (2, 3) and hidden_parts[0] float32 (2, 3); expected one leading shape and "
            "dtype",
        ),
        (([H], [W], jnp.ones(3)), ValueError, "bias has shape (3,); expected (4,), one value a row of weight"),
    ],
)  # fmt: skip
def test_parts_that_do_not_belong_together(arguments, error, text):
    with pytest.raises(error) as raised:
        rlk_jax.lm_head_of_parts(*arguments)
    assert str(raised.value) == text


def test_derivatives_and_vmap_of_parts_that_are_not_offered():
    def function(x: Any) -> Any:
        return rlk_jax.lm_head_of_parts([x, x], [W, W])

    second = "second derivatives of lm_head_of_parts are not offered: use jax.lax.stop_gradient on its gradient"
    for refused, text in (
        (jax.vmap(function), "vmap over lm_head_of_parts is not offered: pass more rows in one call"),
        (jax.grad(lambda x: jax.grad(lambda x: (function(x) ** 2).sum())(x).sum()), second),
        (
            lambda x: jax.jvp(function, (x,), (x,)),
            "forward mode (jax.jvp, jax.linearize) of lm_head_of_parts is not offered: use jax.grad or jax.vjp",
        ),
    ):
        with pytest.raises(NotImplementedError) as raised:
            refused(H)
        assert str(raised.value) == text
