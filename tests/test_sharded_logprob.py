"""Log-probabilities of a vocab in parts or shards have the bits of the whole, forward and backward, or say why not."""

from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
import torch
from frameworks import FLOATS, INTEGERS, JAX, TORCH, both
from gradients import normal, value_and_gradients
from meshes import run_on_meshes
from ranks import run_on_ranks

import rlk_jax
import rlk_torch
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

VOCAB = 13
CUTS = {
    "one part": (0, 13),
    "two": (0, 4, 13),
    "three": (0, 5, 10, 13),
    "four": (0, 4, 8, 12, 13),
    "eight": (0, 2, 4, 6, 8, 10, 12, 13, 13),
    "empty ones": (0, 0, 7, 7, 13, 13),
}
IDS, UPSTREAM = np.array([0, 12, 5, 12, 0, 3, 7, 6]), np.float32([1, -2, 0.3, 4, 1e-42, 0, 2.0**90, np.inf])


def logits_of(dtype: Any) -> Any:
    """Rows [8, 13] with NaN, +inf and -inf in the first and the last part, of -inf alone, and a masked target."""
    x = (normal(8, VOCAB) * 5).astype(dtype)
    x[1, 0], x[2, -1], x[3, -1], x[4], x[5, 3], x[6, :-1] = np.nan, np.nan, np.inf, *[-np.inf] * 3
    return x


def of_parts(framework: Any, logits: Any, ids: Any, grad: Any, cuts: Any, **options: Any) -> tuple[Any, Any]:
    """The log-probabilities, and the parts' gradients side by side."""

    def function(*parts: Any) -> Any:
        return framework.package.selected_logprob_of_parts(parts, ids, **options)

    parts = [framework.array(logits[..., start:end]) for start, end in pairwise(cuts)]
    value, found = value_and_gradients(framework, function, parts, range(len(parts)), framework.array(grad))
    return value, np.concatenate(found, -1)


# In one process ------------------------------------------------------------------------------------------------------
# JAX compiles each of these for seconds.
@pytest.mark.parametrize(
    ("framework", "cuts", "dtype"),
    [pytest.param(TORCH, CUTS[cuts], dtype, id=f"torch-{cuts}-{dtype}") for cuts in CUTS for dtype in FLOATS]
    + [
        pytest.param(JAX, CUTS[cuts], dtype, id=f"jax-{cuts}-{dtype}")
        for cuts, dtype in (("two", FLOATS[1]), ("empty ones", FLOATS[0]))
    ],
)
def test_parts_have_the_bits_of_the_whole(framework, cuts, dtype):
    x = logits_of(dtype)
    value, grad = of_parts(framework, x, IDS, UPSTREAM, cuts)
    assert_bits_equal(value, contract.selected_logprob(x, IDS))
    assert_bits_equal(grad, contract.selected_logprob_grad(x, IDS, UPSTREAM))


@both
def test_any_integer_ids_and_leading_shapes(framework):
    x = normal(2, 3, VOCAB)
    parts = [framework.array(x[..., :4]), framework.array(x[..., 4:])]
    ids = np.array([[0, 12, 5], [4, 3, 11]])
    expected = contract.selected_logprob(x, ids)
    for dtype in INTEGERS:
        assert_bits_equal(framework.package.selected_logprob_of_parts(parts, ids.astype(dtype)), expected)
    one = [part[1, 1] for part in parts]
    assert_bits_equal(framework.package.selected_logprob_of_parts(one, 3), expected[1, 1])
    none = [part[:, :0] for part in parts]
    assert framework.package.selected_logprob_of_parts(none, [[], []]).shape == (2, 0)


@both
def test_an_id_that_was_not_read_gives_nan_and_no_gradient(framework):
    x, ids = normal(4, VOCAB), np.array([-1, 13, 5, 2**31 - 1])
    value, grad = of_parts(framework, x, framework.array(ids), np.ones(4, np.float32), CUTS["two"], check_ids=False)
    expected = contract.selected_logprob(x, [0, 0, 5, 0])
    expected[[0, 1, 3]] = np.nan
    assert_bits_equal(value, expected)
    assert_bits_equal(grad[[0, 1, 3]], np.zeros((3, VOCAB), np.float32))
    assert_bits_equal(grad[2:3], contract.selected_logprob_grad(x[2:3], [5], np.ones(1, np.float32)))


def test_compiled_code_of_both_packages_gives_the_bits_of_eager_code():
    x = logits_of(np.float32)
    expected = contract.selected_logprob(x, IDS)
    parts = [x[:, :4].copy(), x[:, 4:].copy()]
    ids = IDS.astype(np.int32)
    assert_bits_equal(jax.jit(rlk_jax.selected_logprob_of_parts)(parts, ids), expected)
    torch.compiler.reset()
    compiled = torch.compile(rlk_torch.selected_logprob_of_parts, backend="eager")  # left to eager code
    assert_bits_equal(compiled([torch.from_numpy(x) for x in parts], torch.from_numpy(ids)), expected)


@pytest.mark.parametrize("vocab", [2**18, 65537])
def test_a_whole_vocab_of_many_blocks(vocab):
    x = normal(2, vocab) * np.float32(0.01)
    ids, grad = np.array([0, vocab - 1]), np.float32([1.5, -0.3])
    value, found = of_parts(TORCH, x, ids, grad, (0, vocab // 3, vocab))
    assert_bits_equal(value, contract.selected_logprob(x, ids))
    assert_bits_equal(found, contract.selected_logprob_grad(x, ids, grad))


def zeros(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    return [np.zeros(shape, dtype) for shape in shapes]


REFUSED = [
    ([], [0], ValueError, "logits_parts has 0 parts; expected at least 1"),
    (zeros((2, 3), (1, 3)), [0, 0], ValueError,
     "logits_parts[1] is float32 (1, 3) and logits_parts[0] float32 (2, 3); expected one leading shape and dtype"),
    ([*zeros((2, 3)), *zeros((2, 3), dtype=np.float16)], [0, 0], ValueError,
     "logits_parts[1] is float16 (2, 3) and logits_parts[0] float32 (2, 3); expected one leading shape and dtype"),
    (zeros((2, 0), (2, 0)), [0, 0], ValueError,
     "logits_parts have 0 columns in all; expected 1 <= V <= 262144, the sum of whose exponentials has 63 bits: leave "
     "out ids that cannot occur"),
    (zeros((1, 2**18), (1, 1)), [0], ValueError,
     "logits_parts have 262145 columns in all; expected 1 <= V <= 262144, the sum of whose exponentials has 63 bits: "
     "leave out ids that cannot occur"),
    (zeros((2, 3), (2, 3)), [0, 6], IndexError,
     "target_ids[1] is 6; expected 0 <= id < 6, the vocab: check the tokenizer against the table, or mask padding ids "
     "first"),
    (zeros((2, 3)), [0], ValueError,
     "target_ids has shape (1,) and logits_parts[0] (2, 3); expected (2,), one id a row of logits_parts[0]"),
    (zeros(()), 0, ValueError, "logits_parts[0] has shape (); expected [..., V_r]: add the vocab dimension"),
    (zeros((2, 3), dtype=np.int32), [0, 0], TypeError,
     "logits_parts[0] has dtype int32; expected bfloat16, float16 or float32: convert it first"),
    (zeros((1, 3)), [0.5], TypeError,
     "target_ids has dtype float64; expected an integer dtype: convert the ids, or use them as a mask instead"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "ids", "error", "text"), REFUSED, ids=[text[:50] for *_, text in REFUSED])
@both
def test_parts_that_do_not_belong_together_are_refused(framework, parts, ids, error, text):
    with pytest.raises(error) as caught:
        framework.package.selected_logprob_of_parts([framework.array(x) for x in parts], ids)
    assert str(caught.value) == text


def test_derivatives_and_vmap_of_parts_that_jax_does_not_offer():
    def function(x: Any) -> Any:
        return rlk_jax.selected_logprob_of_parts([x, x], [0, 3])

    name, x = "selected_logprob_of_parts", np.zeros((2, 3), np.float32)
    for refused, text in (
        (lambda x: jax.vmap(function)(x[None]), f"vmap over {name} is not offered: pass more rows in one call"),
        (jax.jacrev(function), f"vmap over {name} is not offered: pass more rows in one call"),
        (
            jax.grad(lambda x: jax.grad(lambda x: function(x).sum())(x).sum()),
            f"second derivatives of {name} are not offered: use jax.lax.stop_gradient on its gradient",
        ),
        (
            lambda x: jax.jvp(function, (x,), (x,)),
            f"forward mode (jax.jvp, jax.linearize) of {name} is not offered: use jax.grad or jax.vjp",
        ),
    ):
        with pytest.raises(NotImplementedError) as raised:
            refused(x)
        assert str(raised.value) == text


# Ranks and meshes ----------------------------------------------------------------------------------------------------
def test_ranks_get_the_bits_of_the_whole():
    assert run_on_ranks("ranks_logprob", 2, 3) == {}


def test_what_ranks_are_told_that_differ():
    assert run_on_ranks("ranks_logprob_refusals", 3) == {}


def test_meshes_get_the_bits_of_the_whole():
    assert run_on_meshes("mesh_logprob") == {}


@both
def test_an_array_in_place_of_a_list_of_parts_is_refused(framework):
    """Its rows would be taken for parts."""
    package, x = framework.package, framework.array(np.zeros((2, 3), np.float32))
    for call, name in (
        (lambda: package.selected_logprob_of_parts(x, [0, 0]), "logits_parts"),
        (lambda: package.lm_head_of_parts(x, [x, x]), "hidden_parts"),
        (lambda: package.lm_head_of_parts_fp32([x, x], x), "weight_parts"),
    ):
        with pytest.raises(TypeError) as refused:
            call()
        assert str(refused.value) == (
            f"{name} is an array of shape (2, 3); expected a list of arrays: pass [{name}] for one part"
        )
