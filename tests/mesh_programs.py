"""Programs around the sharded operators of rlk_jax, and what their devices exchange."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bit_arrays import BFLOAT16, random_bits
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from mesh_values import SHARDED, drawn, expected, padded
from meshes import exchanged, mesh_of, sharded, with_gradients

import rlk_jax
from crosscheck.bits import assert_bits_equal

VOCAB, WIDTH = 7, 4
FLOAT32 = np.dtype(np.float32)
HIDDEN, WEIGHT, BIAS, UPSTREAM = (x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x for x in drawn(FLOAT32, VOCAB, WIDTH))
WEIGHTS, BIASES = padded(WEIGHT, 8, np.nan), padded(BIAS, 8, np.nan)
IDS, TABLE = np.array([3, 0, 6, 3], np.int32), random_bits(BFLOAT16, (8, 3))
TWO = mesh_of(2)


def head(hidden: Any, weight: Any, bias: Any = None, axis_name: Any = "x", gather: bool = True) -> Any:
    return rlk_jax.sharded_lm_head(hidden, weight, bias, vocab=VOCAB, axis_name=axis_name, gather=gather)


row_parallel = partial(rlk_jax.row_parallel_lm_head, axis_name="x")


def rows_of(table: Any, ids: Any = IDS) -> Any:
    return rlk_jax.sharded_embedding(ids, table, VOCAB, axis_name="x", check_ids=False)


def assert_all(actual: Any, wanted: Any) -> None:
    for one, other in zip(actual, wanted, strict=True):
        assert_bits_equal(one, other)


# Programs ------------------------------------------------------------------------------------------------------------
def check_gradients_inside_of_a_scan_over_a_checkpoint() -> None:
    """Each microbatch has its own gradients, made inside `jax.shard_map`; hidden's are those of the whole batch."""

    def step(carry: Any, parts: Any) -> Any:
        hidden, upstream = parts
        return carry, with_gradients(jax.checkpoint(head), [0])(upstream, hidden, *carry)

    def microbatches(hidden: Any, weight: Any, bias: Any, upstream: Any) -> Any:
        parts = hidden.reshape(2, 3, WIDTH), upstream.reshape(2, 3, VOCAB)
        logits, of_hidden = jax.lax.scan(step, (weight, bias), parts)[1]
        return logits.reshape(6, VOCAB), of_hidden.reshape(6, WIDTH)

    run = sharded(microbatches, TWO, (P(), SHARDED, SHARDED, P()), P())
    assert_all(run(HIDDEN, WEIGHTS, BIASES, UPSTREAM), expected((HIDDEN, WEIGHT, BIAS, UPSTREAM))[:2])


def check_gradients_from_outside_in_eager_code() -> None:
    run = jax.shard_map(head, mesh=TWO, in_specs=(P(), SHARDED, SHARDED), out_specs=P())
    logits, pull = jax.vjp(run, HIDDEN, WEIGHTS, BIASES)
    of_hidden, of_weight, of_bias = pull(jnp.asarray(UPSTREAM))
    wanted = expected((HIDDEN, WEIGHT, BIAS, UPSTREAM))
    assert_all((logits, of_hidden, of_weight[:VOCAB], of_bias[:VOCAB]), wanted)


def check_a_batch_over_one_axis_and_the_vocab_over_two() -> None:
    """Where the batch is sharded too, hidden's gradient is exact; weight's are added up by JAX over the batch."""
    mesh, vocab_axes = mesh_of(2, axes="abc"), ("b", "c")
    run = with_gradients(partial(head, axis_name=vocab_axes), [0])
    ins = P("a"), P("a"), P(vocab_axes), P(vocab_axes)
    found = sharded(run, mesh, ins, (P("a"), P("a")))(UPSTREAM, HIDDEN, WEIGHTS, BIASES)
    assert_all(found, expected((HIDDEN, WEIGHT, BIAS, UPSTREAM))[:2])
    outside = jax.vjp(
        lambda w: sharded(partial(head, axis_name=vocab_axes), mesh, ins[1:], P("a"))(HIDDEN, w, BIASES), WEIGHTS
    )
    of_weight = outside[1](jnp.nan_to_num(UPSTREAM))[0][:VOCAB]
    wanted = expected((HIDDEN, WEIGHT, BIAS, np.nan_to_num(UPSTREAM)))[2]
    np.testing.assert_allclose(of_weight, wanted, rtol=1e-5)


def check_manual_along_one_axis_alone() -> None:
    """What the other axis does is left to the compiler."""
    mesh = mesh_of(2, axes="ax")
    ins = P(), P(), SHARDED, SHARDED
    run = jax.shard_map(with_gradients(head, [0]), mesh=mesh, in_specs=ins, out_specs=P(), axis_names={"x"})
    hidden = jax.device_put(HIDDEN, NamedSharding(mesh, P("a")))
    found = jax.jit(run)(UPSTREAM, hidden, WEIGHTS, BIASES)
    assert_all(found, expected((HIDDEN, WEIGHT, BIAS, UPSTREAM))[:2])


# What is exchanged ---------------------------------------------------------------------------------------------------
COLUMNS = P(None, "x")
ALL = HIDDEN, WEIGHTS, BIASES
EXCHANGED: dict[str, tuple[Callable[..., Any], Any, Any, list[str]]] = {
    "logits": (partial(head, gather=False), (P(), SHARDED, SHARDED), ALL, []),
    "gathered logits": (head, (P(), SHARDED, SHARDED), ALL, ["uint32"]),
    "hidden's gradient: two maxima, three words": (
        with_gradients(partial(head, gather=False), [0]), (COLUMNS, P(), SHARDED, SHARDED),
        (padded(UPSTREAM, 8, 0, 1), *ALL), ["int32"] * 5,
    ),
    "gradients of weight and bias": (
        with_gradients(head, (1, 2)), (P(), P(), SHARDED, SHARDED), (UPSTREAM, *ALL), ["uint32"],
    ),
    "the width: two maxima, three words, and nothing for gradients": (
        with_gradients(row_parallel, (0, 1, 2)), (P(), COLUMNS, COLUMNS, P()), (UPSTREAM, HIDDEN, WEIGHT, BIAS),
        ["int32"] * 5,
    ),
    "rows of 16 bits, two in a word, and nothing for their gradient": (
        with_gradients(rows_of, [0]), (P(), SHARDED), (TABLE[IDS], TABLE), ["uint32"],
    ),
}  # fmt: skip


def check_devices_exchange_integers_and_no_more_than_they_need() -> None:
    for name, (function, ins, arguments, wanted) in EXCHANGED.items():
        traced = jax.make_jaxpr(jax.shard_map(function, mesh=TWO, in_specs=ins, out_specs=SHARDED))(*arguments)
        found = [str(x.aval.dtype) for x in exchanged(traced.jaxpr)]
        assert found == wanted, (name, found)
