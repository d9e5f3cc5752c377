"""The gradient of a table through rlk_jax is one exact sum a row under every transformation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frameworks import BFLOAT16
from jax import Array, lax
from vector_cases import array, vector_cases

import rlk_jax
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

IDS = np.array([[1, 4, 1], [0, 1, 4]], np.int32)
TABLE = np.arange(18, dtype=np.float32).reshape(6, 3).astype(BFLOAT16)
GRAD = (np.random.default_rng(0).standard_normal((2, 3, 3)) * 10).astype(BFLOAT16)
WANTED = contract.embedding_grad(IDS, GRAD, 6, BFLOAT16)


def loss(rows: Array, grad: Any = GRAD) -> Array:
    return (rows.astype(jnp.float32) * jnp.asarray(grad).astype(jnp.float32)).sum()


def plain(table: Array, ids: Any) -> Array:
    return loss(rlk_jax.embedding(ids, table))


def sequences(table: Array, ids: Any) -> Array:
    return loss(jax.vmap(lambda ids: rlk_jax.embedding(ids, table, check_ids=False))(ids))


def tokens(table: Array, ids: Any) -> Array:
    one = jax.jit(lambda token: rlk_jax.embedding(token, table, check_ids=False))
    return loss(jax.vmap(jax.vmap(one), in_axes=1, out_axes=1)(ids))


WAYS: dict[str, Callable[..., Any]] = {
    "grad": jax.grad(plain),
    "jit of grad": jax.jit(jax.grad(plain)),
    "grad of jit": jax.grad(jax.jit(plain)),
    "grad of checkpoint": jax.grad(jax.checkpoint(plain)),
    "grad of vmap": jax.grad(sequences),
    "grad of vmap of vmap of jit": jax.jit(jax.grad(tokens)),
    "vjp": lambda table, ids: jax.vjp(lambda t: rlk_jax.embedding(ids, t), table)[1](jnp.asarray(GRAD))[0],
    "export": lambda *args: jax.export.export(jax.jit(jax.grad(plain)))(*args).call(*args),
}


@pytest.mark.parametrize("x64", [False, True], ids=["32-bit mode", "64-bit mode"])
@pytest.mark.parametrize("way", WAYS)
def test_embedding(way, x64):
    with jax.enable_x64(x64):
        assert_bits_equal(WAYS[way](jnp.asarray(TABLE), jnp.asarray(IDS)), WANTED)


def test_gradients_of_each_sequence():
    def one(table: Array, ids: Array, grad: Array) -> Array:
        return loss(rlk_jax.embedding(ids, table, check_ids=False), grad)

    actual = jax.jit(jax.vmap(jax.grad(one), in_axes=(None, 0, 0)))(TABLE, IDS, GRAD)
    each = [contract.embedding_grad(i, g, 6, BFLOAT16) for i, g in zip(IDS, GRAD, strict=True)]
    assert_bits_equal(actual, np.stack(each))


def test_tables_of_a_batch():
    tables = jnp.asarray(np.stack([TABLE, TABLE]))
    each = [contract.embedding_grad(i, g, 6, BFLOAT16) for i, g in zip(IDS, GRAD, strict=True)]
    both = jax.grad(lambda t: loss(jax.vmap(lambda i, t: rlk_jax.embedding(i, t, check_ids=False))(IDS, t)))(tables)
    assert_bits_equal(both, np.stack(each))
    shared = jax.grad(lambda t: loss(jax.vmap(lambda t: rlk_jax.embedding(IDS[0], t))(t)))(tables)
    each = [contract.embedding_grad(IDS[0], g, 6, BFLOAT16) for g in GRAD]
    assert_bits_equal(shared, np.stack(each))


def test_a_scan_adds_up_what_its_steps_give():
    def total(table: Array) -> Array:
        def step(state: Array, part: Any) -> Any:
            return state + loss(rlk_jax.embedding(part[0], table), part[1]), None

        return lax.scan(step, jnp.float32(0), (jnp.asarray(IDS), jnp.asarray(GRAD)))[0]

    steps = [jnp.asarray(contract.embedding_grad(IDS[i], GRAD[i], 6, BFLOAT16)) for i in (1, 0)]
    zero = jnp.zeros((6, 3), jnp.bfloat16)
    assert_bits_equal(jax.grad(total)(jnp.asarray(TABLE)), zero + steps[0] + steps[1])


def test_bad_ids_add_nothing():
    ids = np.array([[1, -1, 6], [2**31 - 1, 5, -(2**31)]], np.int32)
    actual = jax.grad(lambda t: loss(rlk_jax.embedding(ids, t, check_ids=False)))(jnp.asarray(TABLE))
    assert_bits_equal(actual, contract.embedding_grad(ids, GRAD, 6, BFLOAT16))


@pytest.mark.parametrize("op", ["embedding", "embedding_fp32"])
@pytest.mark.parametrize("padding_idx", [0, 1, np.int64(4), 5])
def test_the_padding_row_gets_no_gradient(op, padding_idx):
    operator = getattr(rlk_jax, op)
    table = jnp.asarray(TABLE)
    assert_bits_equal(operator(IDS, table, padding_idx=padding_idx), operator(IDS, table))
    wanted = WANTED.copy()
    wanted[padding_idx] = 0
    for wrap in (lambda f: f, jax.jit):
        actual = wrap(jax.grad(lambda t: loss(operator(IDS, t, padding_idx=padding_idx))))(table)
        assert_bits_equal(actual, wanted)


@pytest.mark.parametrize(
    ("padding_idx", "error", "sentence"),
    [
        (-1, ValueError, "padding_idx is -1; expected 0 <= padding_idx < 6, the vocab: "),
        (6, ValueError, "padding_idx is 6; expected 0 <= padding_idx < 6, the vocab: "),
        (2**32, ValueError, "padding_idx is 4294967296; expected 0 <= padding_idx < 6, the vocab: "),
        (True, TypeError, "padding_idx is of type bool; expected an integer or None"),
        (1.0, TypeError, "padding_idx is of type float; expected an integer or None"),
    ],
)
def test_a_bad_padding_row_is_refused(padding_idx, error, sentence):
    with pytest.raises(error) as raised:
        rlk_jax.embedding(IDS, jnp.asarray(TABLE), padding_idx=padding_idx)
    assert str(raised.value).startswith(sentence)


def test_a_traced_padding_row_is_refused():
    with pytest.raises(TypeError, match="padding_idx is traced; expected an integer or None"):
        jax.jit(lambda p: rlk_jax.embedding(IDS, jnp.asarray(TABLE), padding_idx=p))(1)


def test_ids_have_no_gradient():
    ids, table = jax.grad(lambda i, t: loss(rlk_jax.embedding(i, t, check_ids=False)), argnums=(0, 1), allow_int=True)(
        jnp.asarray(IDS), jnp.asarray(TABLE)
    )
    assert ids.dtype == jax.dtypes.float0
    assert_bits_equal(table, WANTED)


def test_a_tied_table_gets_the_sum_of_both_gradients():
    ids, grad = IDS[0], np.ones((3, 6), np.float32)

    def tied(table: Array) -> Array:
        return rlk_jax.lm_head_fp32(rlk_jax.embedding(ids, table), table).sum()

    rows = TABLE[ids]
    to_rows, to_head, _ = contract.lm_head_grads(grad, rows, TABLE)
    wanted = jnp.asarray(to_head) + jnp.asarray(contract.embedding_grad(ids, to_rows, 6, BFLOAT16))
    assert_bits_equal(jax.grad(tied)(jnp.asarray(TABLE)), wanted)


@pytest.mark.parametrize("function", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("batched", [False, True], ids=["plain", "vmap"])
@pytest.mark.parametrize("case", vector_cases("embedding_grad"))
def test_embedding_vectors(case, batched, function):
    wanted = array(case["expect"])
    op = getattr(rlk_jax, "embedding_fp32" if case.get("path") == "fp32" else "embedding")
    ids = jnp.asarray(np.array(case["token_ids"], np.int32))

    def grad(table: Array, ids: Array, grad_rows: Array) -> Array:
        def rows(table: Array) -> Array:
            one = lambda ids: op(ids, table, check_ids=False)  # noqa: E731
            return jax.vmap(one)(ids) if batched else one(ids)

        return jax.vjp(rows, table)[1](grad_rows)[0]

    table = jnp.zeros((case["vocab"], wanted.shape[1]), wanted.dtype)
    assert_bits_equal(function(grad)(table, ids, jnp.asarray(array(case["grad_rows"]))), wanted)
