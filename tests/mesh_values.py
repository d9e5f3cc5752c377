"""Values on meshes of 1 to 8 devices: the sharded operators of rlk_jax against the contract on the whole."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bit_arrays import BFLOAT16, random_bits
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh_of, sharded, with_gradients

import rlk_jax
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

FLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)
SHARDED, COLUMNS = P("x"), P(None, None, "x")
WIDTH = 24
Operands = tuple[Any, Any, Any, Any]


def drawn(dtype: Any, vocab: int, width: int = WIDTH) -> Operands:
    """Hidden [2, 3, K], weight [V, K], bias [V] and an upstream gradient [2, 3, V], with corners in single shards.

    The last rows are far larger than the first; one element of each is not finite, so some rows and columns are NaN.
    """
    rng = np.random.default_rng(vocab)
    hidden, weight, upstream = (rng.standard_normal(s, np.float32) for s in ((6, width), (vocab, width), (6, vocab)))
    large = np.float32(2.0**5 if dtype == FLOAT16 else 2.0**40)
    weight[-vocab // 2 :] *= large
    hidden[:, -width // 2 :] *= large
    upstream[2:4, : vocab // 2] /= large
    hidden[0, :2], weight[:2, 0], upstream[0, :2] = [-0.0, 2.0**-140], [2.0**-24, -0.0], [2.0**-140, -0.0]
    hidden[1, -1], weight[-1, 1], upstream[2, 0] = np.nan, np.inf, -np.inf
    bias = rng.standard_normal(vocab, np.float32)
    bias[0] = -0.0
    return tuple(
        x.astype(dtype).reshape(*shape, x.shape[-1])
        for x, shape in ((hidden, (2, 3)), (weight, (vocab,)), (bias, ()), (upstream, (2, 3)))
    )


def expected(operands: Operands, **options: Any) -> tuple[Any, ...]:
    """Logits and the gradients of hidden, weight and bias."""
    hidden, weight, bias, upstream = operands
    flat = upstream.reshape(-1, upstream.shape[-1]), hidden.reshape(-1, hidden.shape[-1])
    of_hidden, *rest = contract.lm_head_grads(*flat, weight, bias.dtype)
    return contract.lm_head(hidden, weight, bias, **options), of_hidden.reshape(hidden.shape), *rest


def padded(x: Any, rows: int, value: Any, axis: int = 0) -> Any:
    """With more than zeros: padding counts for nothing, whatever it is."""
    behind = np.full([rows - size if i == axis else size for i, size in enumerate(x.shape)], value, x.dtype)
    return np.concatenate([x, behind], axis)


def assert_all(actual: Any, wanted: Any, context: str) -> None:
    names = ("logits", "the gradient of hidden", "the gradient of weight", "the gradient of bias")
    for name, one, other in zip(names, actual, wanted, strict=True):
        assert_bits_equal(one, other, context=f"{context}: {name}")


def vocab_over(mesh: Mesh, dtype: Any, vocab: int, gather: bool) -> None:
    operands, rows = drawn(dtype, vocab), -(-vocab // mesh.size) * mesh.size
    hidden, weight, bias, upstream = operands

    def head(*arguments: Any) -> Any:
        return rlk_jax.sharded_lm_head(*arguments, vocab=vocab, axis_name="x", gather=gather)

    outs = P() if gather else COLUMNS
    run = sharded(with_gradients(head, (0, 1, 2)), mesh, (outs, P(), SHARDED, SHARDED), (outs, P(), SHARDED, SHARDED))
    for value in (np.nan, 1):
        grad = upstream if gather else padded(upstream, rows, value, 2)
        found = run(grad, hidden, padded(weight, rows, value), padded(bias, rows, value))
        logits, of_hidden, of_weight, of_bias = found
        real = logits[..., :vocab], of_hidden, of_weight[:vocab], of_bias[:vocab]
        assert_all(real, expected(operands), f"{dtype} over {mesh.size}, gather={gather}, padding of {value}")
        assert_bits_equal(logits[..., vocab:], np.full((2, 3, logits.shape[-1] - vocab), -np.inf, dtype))
        assert_bits_equal(of_weight[vocab:], np.zeros((rows - vocab, WIDTH), dtype))
        assert_bits_equal(of_bias[vocab:], np.zeros(rows - vocab, dtype))


def width_over(mesh: Mesh, dtype: Any, vocab: int, width: int = WIDTH) -> None:
    operands = drawn(dtype, vocab, width)
    hidden, weight, bias, upstream = operands
    ins = P(), COLUMNS, P(None, "x"), P()
    head = partial(rlk_jax.row_parallel_lm_head, axis_name="x")
    found = sharded(with_gradients(head, (0, 1, 2)), mesh, ins, ins)(upstream, hidden, weight, bias)
    assert_all(found, expected(operands), f"{dtype}, the width over {mesh.size}")


def table_over(mesh: Mesh, dtype: Any, vocab: int, width: int = 7) -> None:
    """Any bits at all, ids of every shard, of padding and of no row."""
    table, rows = random_bits(dtype, (vocab, width)), -(-vocab // mesh.size) * mesh.size
    ids = np.array([*range(vocab), 0, 0, -1, vocab, rows, 2**31 - 1], np.int32)[None]
    upstream = np.random.default_rng(1).standard_normal((*ids.shape, width), np.float32).astype(dtype)

    def rows_of(table: Any, ids: Any) -> Any:
        return rlk_jax.sharded_embedding(ids, table, vocab, axis_name="x", padding_idx=1)

    run = sharded(with_gradients(rows_of, [0]), mesh, (P(), SHARDED, P()), (P(), SHARDED))
    found, of_table = run(upstream, padded(table, rows, np.inf), ids)
    context = f"the table, {dtype} over {mesh.size}"
    assert_bits_equal(found, contract.embedding(ids, table, check_ids=False), context=context)
    wanted = contract.embedding_grad(np.where(ids == 1, -1, ids), upstream, vocab, dtype)
    assert_bits_equal(of_table, padded(wanted, rows, 0), context=f"{context}: gradient")


def check_one_device() -> None:
    vocab_over(mesh_of(1), FLOAT16, 7, gather=True)


def check_two_devices() -> None:
    vocab_over(mesh_of(2), FLOAT16, 21, gather=False)
    width_over(mesh_of(2), FLOAT16, 21)
    table_over(mesh_of(2), FLOAT16, 20, width=8)


def check_three_devices() -> None:
    vocab_over(mesh_of(3), FLOAT32, 22, gather=True)
    width_over(mesh_of(3), FLOAT32, 22)
    table_over(mesh_of(3), FLOAT32, 22)


def check_four_devices_and_no_padding() -> None:
    vocab_over(mesh_of(4), BFLOAT16, 24, gather=False)
    table_over(mesh_of(4), BFLOAT16, 24)


def check_eight_devices_of_which_three_have_padding_alone() -> None:
    vocab_over(mesh_of(8), BFLOAT16, 5, gather=True)
    table_over(mesh_of(8), BFLOAT16, 6)


def check_parts_of_one_element() -> None:
    width_over(mesh_of(8), BFLOAT16, 6, width=8)


def check_the_float32_forms() -> None:
    """Of 16-bit arguments, and of an `Aligned` weight, whose shards are those of the whole one."""
    mesh, vocab = mesh_of(2), 7
    hidden, weight, bias, _ = drawn(BFLOAT16, vocab)
    table = random_bits(BFLOAT16, (vocab, 3))
    aligned = rlk_jax.pad_vocab(rlk_jax.align(jnp.asarray(weight), 4), 2)

    def every(hidden: Any, weight: Any, aligned: Any, bias: Any, table: Any, *halves: Any) -> Any:
        options = {"vocab": vocab, "axis_name": "x", "gather": True}
        return (
            rlk_jax.sharded_lm_head_fp32(hidden, weight, bias, **options),
            rlk_jax.sharded_lm_head_fp32(hidden, aligned, **options),
            rlk_jax.row_parallel_lm_head_fp32(*halves, axis_name="x", digits=2),
            rlk_jax.sharded_embedding_fp32(np.arange(vocab), table, vocab, axis_name="x"),
        )

    planes = rlk_jax.Aligned(P(None, "x"), SHARDED, SHARDED, WIDTH)
    run = sharded(every, mesh, (P(), SHARDED, planes, SHARDED, SHARDED, COLUMNS, P(None, "x")), P())
    whole = (rlk_jax.pad_vocab(x, 2) for x in (weight, bias, table))
    weights, biases, tables = whole
    found = run(hidden, weights, aligned, biases, tables, hidden, weight)
    wanted = (
        contract.lm_head_fp32(hidden, weight, bias),
        contract.lm_head_fp32(hidden, weight),
        contract.lm_head_fp32(hidden, weight, digits=2),
        contract.embedding_fp32(np.arange(vocab), table),
    )
    for one, other in zip(found, wanted, strict=True):
        assert_bits_equal(one, other)


def check_the_whole_width_is_what_bounds_the_sums() -> None:
    """70,000 products of the largest integers, 35,000 on each device: D fills its words, and each part less."""
    hidden, weight = np.full((1, 70000), 2 - 2.0**-23, np.float32), np.full((2, 70000), 2 - 2.0**-23, np.float32)
    weight[1] *= -1
    head = partial(rlk_jax.row_parallel_lm_head, axis_name="x")
    found = sharded(head, mesh_of(2), (P(None, "x"), P(None, "x")), P())(hidden, weight)
    assert_bits_equal(found, contract.lm_head(hidden, weight))


def check_a_vocab_of_several_chunks() -> None:
    """Hidden's gradient goes over 33,000 rows on each device, of the largest integers, the last chunk moved back."""
    vocab, value = 65999, np.float32(2 - 2.0**-23)
    weight, upstream = np.full((vocab, 1), value), np.full((1, vocab), value)
    weight[::3], upstream[:, ::2] = 2.0**-9, -value

    def head(hidden: Any, weight: Any) -> Any:
        return rlk_jax.sharded_lm_head(hidden, weight, vocab=vocab, axis_name="x")

    outs = P(None, "x")
    run = sharded(with_gradients(head, [0]), mesh_of(2), (outs, P(), SHARDED), (outs, P()))
    _, found = run(padded(upstream, 66000, np.nan, 1), np.ones((1, 1), np.float32), padded(weight, 66000, np.nan))
    assert_bits_equal(found, contract.lm_head_grads(upstream, np.ones((1, 1), np.float32), weight)[0])


def automatic_axes(mesh: Mesh) -> None:
    """The plain operators, on arrays that `jax.jit` shards."""
    hidden, weight, bias, upstream = operands = drawn(BFLOAT16, 24)
    table, ids = random_bits(BFLOAT16, (24, 5)), np.array([23, 0, 5, 23], np.int32)
    of_rows = np.random.default_rng(0).standard_normal((4, 5), np.float32).astype(BFLOAT16)
    wanted = expected(operands)
    of_table = contract.embedding_grad(ids, of_rows, 24, BFLOAT16)

    def put(x: Any, *spec: Any) -> Any:
        return jax.device_put(x, NamedSharding(mesh, P(*spec)))

    placed = put(hidden), put(weight, "x"), put(bias, "x")
    run = jax.jit(with_gradients(rlk_jax.lm_head, (0, 1, 2)))
    assert_all(run(put(upstream, None, None, "x"), *placed), wanted, "automatic axes")
    aligned = jax.jit(rlk_jax.align, static_argnums=1)(put(weight, "x"), 3)
    assert len(aligned.exponent.sharding.device_set) == mesh.size
    assert_bits_equal(jax.jit(rlk_jax.lm_head)(placed[0], aligned, placed[2]), wanted[0])
    gather = jax.jit(with_gradients(lambda table, ids: rlk_jax.embedding(ids, table), [0]))
    rows, found = gather(put(of_rows), put(table, "x"), put(ids))
    assert_bits_equal(rows, table[ids])
    assert_bits_equal(found, of_table)


def check_automatic_axes() -> None:
    automatic_axes(mesh_of(8))


def check_automatic_axes_where_the_vocab_does_not_divide() -> None:
    """JAX shards such an array inside of a program alone."""
    hidden, weight, bias, upstream = operands = drawn(BFLOAT16, 21)
    over_the_vocab = NamedSharding(mesh_of(8), P("x"))

    def head(hidden: Any, weight: Any, bias: Any) -> Any:
        return rlk_jax.lm_head(hidden, jax.lax.with_sharding_constraint(weight, over_the_vocab), bias)

    run = jax.jit(with_gradients(head, (0, 1, 2)))
    assert_all(run(upstream, hidden, weight, bias), expected(operands), "automatic axes")


def check_no_rows() -> None:
    """Traced with gradients and compiled without: jax 0.11.2 crashes in compiling most programs with empty arrays."""
    mesh, (_, weight, bias, _) = mesh_of(2), drawn(FLOAT32, 8)
    hidden, columns = np.zeros((0, WIDTH), np.float32), P(None, "x")
    head = partial(rlk_jax.sharded_lm_head, vocab=8, axis_name="x")
    table = partial(rlk_jax.sharded_embedding, vocab=8, axis_name="x")
    calls = (
        (head, (columns, P(), SHARDED, SHARDED), (hidden, weight, bias)),
        (partial(head, gather=True), (P(), P(), SHARDED, SHARDED), (hidden, weight, bias)),
        (partial(rlk_jax.row_parallel_lm_head, axis_name="x"), (P(), columns, columns, P()), (hidden, weight, bias)),
        (lambda table_, ids: table(ids, table_), (P(), SHARDED, P()), (weight, np.zeros(0, np.int32))),
    )
    for call, ins, arguments in calls:
        found = sharded(call, mesh, ins[1:], ins[0])(*arguments)
        wanted = (0, WIDTH) if len(arguments) == 2 else (0, 8)
        assert_bits_equal(found, np.zeros(wanted, np.float32))
        floats = range(len(arguments) if len(arguments) == 3 else 1)
        run = sharded(with_gradients(call, floats), mesh, ins, ins[: len(floats) + 1])
        shapes = [x.shape for x in jax.eval_shape(run, found, *arguments)]
        assert shapes == [wanted, *(arguments[i].shape for i in floats)]


def check_no_vocab() -> None:
    """Traced alone, for the same reason."""
    run = sharded(partial(rlk_jax.sharded_embedding, vocab=0, axis_name="x"), mesh_of(2), (P(), SHARDED), P())
    assert jax.eval_shape(run, np.zeros(2, np.int32), np.zeros((0, 3), np.float32)).shape == (2, 3)
