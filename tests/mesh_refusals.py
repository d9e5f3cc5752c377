"""What the sharded operators of rlk_jax refuse on a mesh, each in its sentence."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from mesh_programs import (
    BIASES,
    COLUMNS,
    HIDDEN,
    IDS,
    TABLE,
    TWO,
    VOCAB,
    WEIGHT,
    WEIGHTS,
    WIDTH,
    head,
    row_parallel,
    rows_of,
)
from mesh_values import SHARDED
from meshes import refused

import rlk_jax


def on_two(function: Callable[..., Any], *ins: Any, **options: Any) -> Callable[..., Any]:
    return jax.shard_map(function, mesh=TWO, in_specs=ins, out_specs=P(), **options)


GATHERED = on_two(head, P(), SHARDED, SHARDED)
OF_HIDDEN: dict[str, Callable[[Any], Any]] = {
    "sharded_lm_head": lambda hidden: GATHERED(hidden, WEIGHTS, BIASES),
    "row_parallel_lm_head": lambda hidden: on_two(row_parallel, COLUMNS, COLUMNS)(hidden, WEIGHT),
    "sharded_embedding": lambda table: on_two(lambda x: rows_of(x, IDS), SHARDED)(table),
}


def check_derivatives_that_are_not_offered() -> None:
    for name, function in OF_HIDDEN.items():
        x = jnp.asarray(TABLE if "embedding" in name else HIDDEN)
        forward = f"forward mode (jax.jvp, jax.linearize) of {name} is not offered: use jax.grad or jax.vjp"
        refused(NotImplementedError, forward, lambda x, f=function: jax.jvp(f, (x,), (x,))[1], x)
        second = f"second derivatives of {name} are not offered: use jax.lax.stop_gradient on its gradient"

        def of_square(x: Any, f: Any = function) -> Any:
            return jax.grad(lambda x: (f(x).astype(jnp.float32) ** 2).sum())(x).astype(jnp.float32).sum()

        refused(NotImplementedError, second, jax.grad(of_square), x)


def check_vmap_is_not_offered() -> None:
    for name, function in OF_HIDDEN.items():
        x = jnp.stack([jnp.asarray(TABLE if "embedding" in name else HIDDEN)] * 2)
        text = f"vmap over {name} is not offered: pass more rows in one call"
        refused(NotImplementedError, text, jax.vmap(function), x)
        out = jax.eval_shape(function, x[0])
        refused(
            NotImplementedError,
            text,
            lambda x, g, f=function: jax.vmap(jax.vjp(f, x)[1])(g),
            x[0],
            jnp.zeros((2, *out.shape), out.dtype),
        )


def check_the_gradient_of_an_aligned_is_refused() -> None:
    def of_aligned(weight: Any) -> Any:
        aligned = rlk_jax.pad_vocab(rlk_jax.align(weight, 4), 2)
        planes = rlk_jax.Aligned(COLUMNS, SHARDED, SHARDED, WIDTH)
        return on_two(head, P(), planes)(HIDDEN, aligned).sum()

    text = (
        "the gradient of an Aligned is not offered, it is a constant: pass the weight itself, or "
        "align(jax.lax.stop_gradient(x), digits)"
    )
    refused(NotImplementedError, text, jax.grad(of_aligned), jnp.asarray(WEIGHT))


def check_calls_that_are_wrong() -> None:
    wrong_rows = (
        "weight has 7 rows; expected 4, a shard of vocab 7 over 2: pass pad_vocab(weight, 2) through the PartitionSpec "
        "of jax.shard_map"
    )
    refused(ValueError, wrong_rows, on_two(head, P(), P()), HIDDEN, WEIGHT)
    refused(ValueError, wrong_rows, on_two(lambda w: rows_of(w), P()), WEIGHT)
    refused(ValueError, wrong_rows.replace("7 rows", "3 rows"), on_two(head, P(), SHARDED), HIDDEN, WEIGHT[:6])
    tracked = (
        "mesh axis 'x' is not tracked; expected jax.shard_map in its default mode, check_vma=True: without it JAX "
        "would add up the gradients of what the shards share"
    )
    refused(ValueError, tracked, on_two(head, P(), SHARDED, check_vma=False), HIDDEN, WEIGHTS)
    refused(ValueError, tracked, jax.vmap(head, in_axes=(None, 0), axis_name="x"), HIDDEN, WEIGHTS.reshape(2, 4, WIDTH))
    refused(
        ValueError, "axis_name is 'y'; expected an axis of the mesh of a jax.shard_map around the call",
        on_two(partial(head, axis_name="y"), P(), SHARDED), HIDDEN, WEIGHTS,
    )  # fmt: skip
    refused(
        TypeError, "axis_name is ('x', 0); expected the name of a mesh axis, or a tuple of names",
        on_two(partial(rlk_jax.row_parallel_lm_head, axis_name=("x", 0)), COLUMNS, COLUMNS), HIDDEN, WEIGHT,
    )  # fmt: skip


def check_arguments_that_are_shared_or_sharded_by_mistake() -> None:
    def varies(name: str) -> str:
        return (
            f"{name} varies along mesh axis 'x'; expected the same on every shard: leave the axis out of its "
            'PartitionSpec, or gather it with jax.lax.all_gather(..., to="invarying")'
        )

    def same(name: str) -> str:
        return (
            f"{name} is the same along mesh axis 'x'; expected the shard of each device: name the axis in its "
            "PartitionSpec"
        )

    refused(ValueError, varies("hidden"), on_two(head, SHARDED, SHARDED), HIDDEN, WEIGHTS)
    refused(ValueError, varies("token_ids"), on_two(rows_of, SHARDED, SHARDED), WEIGHTS, IDS)
    refused(
        ValueError,
        varies("bias"),
        on_two(row_parallel, COLUMNS, COLUMNS, SHARDED),
        HIDDEN,
        WEIGHT,
        np.ones(14, np.float32),
    )
    refused(ValueError, same("weight"), on_two(head, P(), P()), HIDDEN, WEIGHTS[:4])
    refused(ValueError, same("bias"), on_two(head, P(), SHARDED, P()), HIDDEN, WEIGHTS, BIASES[:4])
    refused(ValueError, same("weight"), on_two(lambda w: rows_of(w), P()), WEIGHTS[:4])
    refused(ValueError, same("hidden"), on_two(row_parallel, P(), COLUMNS), HIDDEN[:, :2], WEIGHT)


def check_values_that_are_wrong() -> None:
    def vocab_of(vocab: Any) -> Callable[..., Any]:
        return on_two(
            lambda w, v: rlk_jax.sharded_embedding(IDS, w, v if vocab is None else vocab, axis_name="x"), SHARDED, P()
        )

    one = jnp.int32(7)
    refused(ValueError, "vocab is -1; expected 0 or more", vocab_of(-1), WEIGHTS, one)
    refused(ValueError, "vocab is 2147483648; expected fewer than 2^31 rows", vocab_of(2**31), WEIGHTS, one)
    text = "vocab is of type float; expected an integer, the rows of the whole weight"
    refused(TypeError, text, vocab_of(7.0), WEIGHTS, one)
    text = "vocab is traced; expected an integer, the rows of the whole weight"
    refused(TypeError, text, vocab_of(None), WEIGHTS, one)
    text = (
        "token_ids[1] is 7; expected 0 <= id < 7, the vocab: check the tokenizer against the table, or mask padding "
        "ids first"
    )
    refused(
        IndexError, text, on_two(lambda w: rlk_jax.sharded_embedding([0, 7], w, VOCAB, axis_name="x"), SHARDED), WEIGHTS
    )
    text = (
        "weight is an Aligned; expected an array [V, K_r]: rows are aligned over the whole hidden dimension, which no "
        "part has"
    )
    aligned = rlk_jax.align(WEIGHT[:, :2], 4)
    refused(TypeError, text, on_two(lambda h: row_parallel(h, aligned), COLUMNS), HIDDEN)
