"""Gradients through rlk_jax are the contract's bits under every transformation, and no token's is rounded alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frameworks import BFLOAT16
from jax import Array, lax
from numpy.typing import NDArray
from vector_cases import array, vector_cases

import rlk_jax
from crosscheck import contract
from crosscheck.bits import assert_bits_equal
from rlk_jax.lm_head_grad import dequantised

FLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)
Case = dict[str, Any]


def drawn(seed: int, dtype: Any, *shape: int) -> NDArray[Any]:
    """Normal values spread over 24 powers of two."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape))).astype(np.float32).astype(dtype)


HIDDEN, WEIGHT, BIAS = drawn(0, BFLOAT16, 6, 5), drawn(1, FLOAT32, 7, 5), drawn(2, FLOAT16, 7)
GRAD = drawn(3, BFLOAT16, 6, 7)
ARGS = tuple(map(jnp.asarray, (HIDDEN, WEIGHT, BIAS)))
NAMES = ("hidden", "weight", "bias")


def expected(grad: Any, hidden: Any, weight: Any, bias_dtype: Any = FLOAT16) -> tuple[Any, ...]:
    return contract.lm_head_grads(grad, hidden, weight, bias_dtype)


def stacked(results: list[tuple[Any, ...]]) -> list[NDArray[Any]]:
    return [np.stack(parts) for parts in zip(*results, strict=True)]


def assert_grads(actual: Any, wanted: Any) -> None:
    __tracebackhide__ = True
    for name, got, want in zip(NAMES, actual, wanted, strict=True):
        assert_bits_equal(got, want, context=f"the gradient of {name}")


def loss(logits: Array, grad: Any = GRAD) -> Array:
    """A scalar whose gradient with respect to the logits is `grad`."""
    return (logits.astype(jnp.float32) * jnp.asarray(grad).astype(jnp.float32)).sum()


def plain(hidden: Array, weight: Array, bias: Array) -> Array:
    return loss(rlk_jax.lm_head(hidden, weight, bias))


def rows(hidden: Array, weight: Array, bias: Array) -> Array:
    return loss(jax.vmap(lambda row: rlk_jax.lm_head(row, weight, bias))(hidden))


def columns_of_rows(hidden: Array, weight: Array, bias: Array) -> Array:
    row = jax.jit(lambda row: rlk_jax.lm_head(row, weight, bias))
    return loss(jax.vmap(jax.vmap(row, in_axes=1), in_axes=1)(hidden.T.reshape(5, 2, 3)).reshape(6, 7))


def grads(function: Callable[..., Array], **options: Any) -> Callable[..., Any]:
    return jax.grad(function, (0, 1, 2), **options)


WAYS: dict[str, Callable[..., Any]] = {
    "grad": grads(plain),
    "jit of grad": jax.jit(grads(plain)),
    "grad of jit": grads(jax.jit(plain)),
    "grad of checkpoint": grads(jax.checkpoint(plain)),
    "jit of grad of checkpoint": jax.jit(grads(jax.checkpoint(plain))),
    "grad of vmap": grads(rows),
    "jit of grad of vmap": jax.jit(grads(rows)),
    "grad of checkpoint of vmap": grads(jax.checkpoint(rows)),
    "grad of vmap of vmap of jit": grads(columns_of_rows),
    "grad with aux": lambda *args: grads(lambda *args: (plain(*args), 1), has_aux=True)(*args)[0],
    "vjp": lambda *args: jax.vjp(rlk_jax.lm_head, *args)[1](jnp.asarray(GRAD)),
    "vjp used twice": lambda *args: [jax.vjp(rlk_jax.lm_head, *args)[1](jnp.asarray(GRAD)) for _ in range(2)][1],
    "export": lambda *args: jax.export.export(jax.jit(grads(plain)))(*args).call(*args),
}


@pytest.mark.parametrize("way", WAYS)
def test_lm_head(way):
    assert_grads(WAYS[way](*ARGS), expected(GRAD, HIDDEN, WEIGHT))


@pytest.mark.parametrize("way", ["grad", "jit of grad of vmap", "grad of vmap of vmap of jit"])
def test_lm_head_in_64_bit_mode(way):
    with jax.enable_x64(True):
        assert_grads(WAYS[way](*ARGS), expected(GRAD, HIDDEN, WEIGHT))


@pytest.mark.parametrize("carried", [False, True], ids=["constant", "carried"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["plain", "checkpoint"])
def test_a_scan_adds_up_what_its_steps_give(wrap, carried):
    """Three steps of two rows: hidden's gradient is as ever, those of the others are sums of three."""
    grad = jnp.asarray(GRAD).reshape(3, 2, 7)

    def total(hidden: Array, weight: Array, bias: Array) -> Array:
        def step(state: Any, part: Any) -> Any:
            inner = state[1:] if carried else (weight, bias)
            return (state[0] + loss(rlk_jax.lm_head(part[0], *inner), part[1]), *state[1:]), None

        return lax.scan(step, (jnp.float32(0), weight, bias), (hidden.reshape(3, 2, 5), grad))[0][0]

    hidden, *shared = jax.jit(grads(wrap(total)))(*ARGS)
    assert_bits_equal(hidden, expected(GRAD, HIDDEN, WEIGHT)[0])
    steps = [expected(GRAD[i : i + 2], HIDDEN[i : i + 2], WEIGHT) for i in (4, 2, 0)]
    for i, actual in enumerate(shared, 1):
        total_of_steps = jnp.zeros_like(actual)
        for step in steps:
            total_of_steps = total_of_steps + jnp.asarray(step[i])
        assert_bits_equal(actual, total_of_steps, context=NAMES[i])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("inner", [rlk_jax.lm_head, jax.jit(rlk_jax.lm_head)], ids=["plain", "inner jit"])
def test_gradients_of_each_example(wrap, inner):
    def one(hidden: Array, weight: Array, bias: Array, grad: Array) -> Array:
        return loss(inner(hidden, weight, bias), grad)

    actual = wrap(jax.vmap(grads(one), in_axes=(0, None, None, 0)))(*ARGS, jnp.asarray(GRAD))
    each = stacked([expected(GRAD[i : i + 1], HIDDEN[i : i + 1], WEIGHT) for i in range(6)])
    assert_grads(actual, [each[0][:, 0], *each[1:]])


def test_gradients_of_each_batch_of_rows():
    def batch(hidden: Array, weight: Array, bias: Array, grad: Array) -> Array:
        return loss(jax.vmap(lambda row: rlk_jax.lm_head(row, weight, bias))(hidden), grad)

    split = ARGS[0].reshape(2, 3, 5), *ARGS[1:], jnp.asarray(GRAD).reshape(2, 3, 7)
    actual = jax.vmap(grads(batch), in_axes=(0, None, None, 0))(*split)
    assert_grads(actual, stacked([expected(GRAD[i : i + 3], HIDDEN[i : i + 3], WEIGHT) for i in (0, 3)]))


def test_cotangents_under_vmap():
    many = drawn(4, BFLOAT16, 3, 6, 7)
    actual = jax.vmap(jax.vjp(rlk_jax.lm_head, *ARGS)[1])(jnp.asarray(many))
    assert_grads(actual, stacked([expected(grad, HIDDEN, WEIGHT) for grad in many]))


# Batches of weights ------------------------------------------------------------------------------------
MANY_GRADS, MANY_WEIGHTS, MANY_BIASES = drawn(5, BFLOAT16, 3, 6, 7), drawn(6, FLOAT32, 3, 7, 5), drawn(7, FLOAT16, 3, 7)
MANY_HIDDEN = drawn(8, BFLOAT16, 3, 6, 5)


def over_a_batch(in_axes: tuple[int | None, ...], *args: Any) -> Any:
    def total(*args: Array) -> Array:
        return loss(jax.vmap(rlk_jax.lm_head, in_axes)(*args), MANY_GRADS)

    return jax.jit(grads(total))(*map(jnp.asarray, args))


def test_everything_batched():
    actual = over_a_batch((0, 0, 0), MANY_HIDDEN, MANY_WEIGHTS, MANY_BIASES)
    each = [expected(*args) for args in zip(MANY_GRADS, MANY_HIDDEN, MANY_WEIGHTS, strict=True)]
    assert_grads(actual, stacked(each))


def test_weights_of_a_batch_share_hidden_states_whose_gradients_are_added():
    hidden, weight, bias = over_a_batch((None, 0, 0), HIDDEN, MANY_WEIGHTS, MANY_BIASES)
    each = [expected(grad, HIDDEN, weight) for grad, weight in zip(MANY_GRADS, MANY_WEIGHTS, strict=True)]
    total = jnp.zeros_like(hidden)
    for grads_of_one in reversed(each):  # last to first, as torch does
        total = total + jnp.asarray(grads_of_one[0])
    assert_grads((hidden, weight, bias), [total, *stacked(each)[1:]])


def test_what_weights_of_a_batch_share_is_summed_over_all_tokens_at_once():
    *_, bias = over_a_batch((None, 0, None), HIDDEN, MANY_WEIGHTS, BIAS)
    assert_bits_equal(bias, expected(MANY_GRADS.reshape(18, 7), np.concatenate([HIDDEN] * 3), WEIGHT)[2])


def test_what_biases_of_a_batch_share_is_summed_over_all_tokens_at_once():
    _, weight, _ = over_a_batch((None, None, 0), HIDDEN, WEIGHT, MANY_BIASES)
    assert_bits_equal(weight, expected(MANY_GRADS.reshape(18, 7), np.concatenate([HIDDEN] * 3), WEIGHT)[1])


# Shapes, values, operands -------------------------------------------------------------------------------
@pytest.mark.parametrize("lead", [(), (0,), (2, 3), (2, 0)])
def test_leading_dimensions(lead):
    hidden, grad = drawn(9, FLOAT16, *lead, 5), drawn(10, FLOAT16, *lead, 7)
    actual = jax.vjp(rlk_jax.lm_head, jnp.asarray(hidden), *ARGS[1:])[1](jnp.asarray(grad))
    count = int(np.prod(lead))
    wanted = expected(grad.reshape(count, 7), hidden.reshape(count, 5), WEIGHT)
    assert_grads(actual, [wanted[0].reshape(hidden.shape), *wanted[1:]])


@pytest.mark.parametrize(("vocab", "width"), [(0, 5), (7, 0), (0, 0)])
def test_nothing_gives_zeros(vocab, width):
    args = [jnp.ones(shape, jnp.bfloat16) for shape in ((3, width), (vocab, width), (vocab,))]
    actual = jax.grad(lambda *args: rlk_jax.lm_head(*args).astype(jnp.float32).sum(), (0, 1, 2))(*args)
    ones = np.ones((3, vocab), BFLOAT16)
    assert_grads(actual, expected(ones, np.ones((3, width), BFLOAT16), np.ones((vocab, width), BFLOAT16), BFLOAT16))


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.0, 1e-40, 3e38])
def test_a_special_upstream_gradient(value):
    grad = np.float32(GRAD)
    grad[2, 3] = value
    with np.errstate(over="ignore"):
        actual = jax.vjp(rlk_jax.lm_head_fp32, *ARGS)[1](jnp.asarray(grad))
    assert_grads(actual, expected(grad, HIDDEN, WEIGHT))


def test_only_what_is_asked_for_is_computed():
    text = str(jax.make_jaxpr(jax.grad(lambda hidden: plain(hidden, *ARGS[1:])))(ARGS[0]))
    assert "grad_hidden" in text
    assert "grad_weight" not in text
    assert "grad_bias" not in text


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_an_aligned_weight_is_the_matrix_that_its_planes_stand_for(digits):
    weight = WEIGHT.copy()
    weight[3] *= np.float32(2.0**-120)
    weight[4] = 0
    weight[np.abs(weight) < 2.0**-126] = 0  # counts as 0
    aligned = rlk_jax.align(jnp.asarray(weight), digits)
    matrix = np.asarray(dequantised(aligned))
    _, exponent = np.frexp(np.abs(weight).max(1, keepdims=True))
    grid = np.ldexp(1.0, exponent - (7 * digits - 1))
    assert_bits_equal(matrix + np.float32(0), np.float32(np.rint(weight / grid) * grid) + np.float32(0))
    for wrap in (lambda f: f, jax.jit):
        function = wrap(jax.grad(lambda hidden, aligned: loss(rlk_jax.lm_head(hidden, aligned, digits=digits))))
        assert_bits_equal(function(ARGS[0], aligned), expected(GRAD, HIDDEN, matrix)[0])


def test_an_aligned_row_that_is_not_finite_makes_every_gradient_of_hidden_nan():
    weight = WEIGHT.copy()
    weight[2, 1] = np.inf
    aligned = rlk_jax.align(jnp.asarray(weight), 3)
    actual = jax.grad(lambda hidden: loss(rlk_jax.lm_head(hidden, aligned)))(ARGS[0])
    assert_bits_equal(actual, np.full((6, 5), 0x7FC0, np.uint16).view(BFLOAT16))


# Vectors ------------------------------------------------------------------------------------------------
def vector_grads(case: Case, function: Any) -> Any:
    hidden, weight, grad = (jnp.asarray(array(case[name])) for name in ("hidden", "weight", "grad_logits"))
    bias = jnp.zeros(weight.shape[0], array(case["expect_grad_bias"]).dtype)
    return function(hidden, weight, bias, grad)


def by_vjp(hidden: Array, weight: Array, bias: Array, grad: Array) -> Any:
    return jax.vjp(rlk_jax.lm_head, hidden, weight, bias)[1](grad)


def by_vjp_of_vmap(hidden: Array, weight: Array, bias: Array, grad: Array) -> Any:
    return jax.vjp(jax.vmap(rlk_jax.lm_head, (0, None, None)), hidden, weight, bias)[1](grad)


both_modes = pytest.mark.parametrize("x64", [False, True], ids=["32-bit mode", "64-bit mode"])


@both_modes
@pytest.mark.parametrize("function", [by_vjp, jax.jit(by_vjp), by_vjp_of_vmap], ids=["eager", "jit", "vmap"])
@pytest.mark.parametrize("case", vector_cases("lm_head_grad"))
def test_lm_head_vectors(case, function, x64):
    with jax.enable_x64(x64):
        actual = vector_grads(case, function)
    assert_grads(actual, [array(case[f"expect_grad_{name}"]) for name in NAMES])
