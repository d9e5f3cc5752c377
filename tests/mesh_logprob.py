"""Log-probabilities on meshes of 1 to 8 devices: the sharded operators of rlk_jax against the contract on the whole."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bit_arrays import BFLOAT16
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mesh_values import FLOAT16, FLOAT32, SHARDED, padded
from meshes import exchanged, mesh_of, refused, sharded, with_gradients

import rlk_jax
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

COLUMNS, WIDTH, ROWS = P(None, "x"), 12, 10
UPSTREAM = np.float32([1, 2, 3, 4, -5, 1e-30, 0.3, -0.7, 0, 2.0**100])
NAMES = ("log-probabilities", "the gradient of hidden", "the gradient of weight", "the gradient of bias")


def logits_of(dtype: Any, vocab: int) -> Any:
    """Rows [10, V] of every kind."""
    x = (np.random.default_rng(vocab).standard_normal((ROWS, vocab), np.float32) * 5).astype(dtype)
    x[1, 0], x[2, -1], x[3, 0], x[4, -1], x[5, -1], x[6], x[7, :-1] = np.nan, np.nan, np.inf, np.inf, *[-np.inf] * 3
    return x


def targets_of(vocab: int) -> Any:
    ids = np.random.default_rng(1).integers(0, vocab, ROWS).astype(np.int32)
    ids[[0, 5, 7, 9]] = 0, vocab - 1, 0, vocab - 1
    return ids


def logits_over(mesh: Mesh, dtype: Any, vocab: int) -> None:
    x, ids, rows = logits_of(dtype, vocab), targets_of(vocab), -(-vocab // mesh.size) * mesh.size
    bad = np.where(np.arange(ROWS) == 8, -1, ids)

    def logprobs(logits: Any, ids: Any) -> Any:
        return rlk_jax.sharded_selected_logprob(logits, ids, vocab=vocab, axis_name="x")

    run = sharded(with_gradients(logprobs, [0]), mesh, (P(), COLUMNS, P()), (P(), COLUMNS))
    expected, wanted = contract.selected_logprob(x, ids), contract.selected_logprob_grad(x, ids, UPSTREAM)
    for value in (np.nan, np.inf, 1e4):
        context = f"{dtype} over {mesh.size}, padding of {value}"
        found, grad = run(UPSTREAM, padded(x, rows, value, 1), ids)
        assert_bits_equal(found, expected, context=context)
        assert_bits_equal(grad, padded(wanted, rows, 0, 1), context=f"{context}: gradient")
    for one in (-1, vocab, rows, 2**31 - 1):  # a bad id gives NaN and no gradient
        found, grad = run(UPSTREAM, padded(x, rows, np.nan, 1), np.where(bad < 0, np.int32(one), ids))
        assert_bits_equal(found, np.where(bad < 0, np.float32(np.nan), expected))
        assert_bits_equal(grad, padded(np.where(bad[:, None] < 0, np.zeros_like(wanted), wanted), rows, 0, 1))


def expected(operands: Any, ids: Any, digits: int) -> tuple[Any, ...]:
    hidden, weight, bias = operands
    logits = contract.lm_head_fp32(hidden, weight, bias, digits=digits)
    of_logits = contract.selected_logprob_grad(logits, ids, UPSTREAM)
    of_bias = None if bias is None else bias.dtype
    grads = contract.lm_head_grads(of_logits, hidden, weight, of_bias)
    return contract.selected_logprob(logits, ids), *(x for x in grads if x is not None)


def states(dtype: Any, vocab: int, finite: bool = False) -> Any:
    """Hidden [10, K], weight [V, K] and bias [V], the last rows of the weight larger than the first."""
    rng = np.random.default_rng(vocab)
    hidden, weight, bias = (rng.standard_normal(shape, np.float32) for shape in ((ROWS, WIDTH), (vocab, WIDTH), vocab))
    weight[-vocab // 2 :] *= 4
    if not finite:
        hidden[3, 2], bias[-1] = np.nan, -np.inf
    return tuple(x.astype(dtype) for x in (hidden, weight, bias))


def states_over(
    mesh: Mesh, dtype: Any, vocab: int, wanted: Any = (0, 1, 2), outside: bool = False, **options: Any
) -> None:
    """The wanted gradients, taken inside or outside of `jax.shard_map`."""
    hidden, weight, bias = operands = states(dtype, vocab)
    ids, rows = targets_of(vocab), -(-vocab // mesh.size) * mesh.size

    def logprobs(hidden: Any, weight: Any, bias: Any, ids: Any) -> Any:
        return rlk_jax.sharded_linear_logprob(hidden, weight, ids, bias, vocab=vocab, axis_name="x", **options)

    ins, outs = (P(), SHARDED, SHARDED, P()), (P(), P(), SHARDED, SHARDED)
    if outside:
        run = jax.jit(with_gradients(jax.shard_map(logprobs, mesh=mesh, in_specs=ins, out_specs=P()), wanted))
    else:
        run = sharded(with_gradients(logprobs, wanted), mesh, (P(), *ins), outs[: len(wanted) + 1])
    for value in (np.nan, 1):
        arguments = hidden, padded(weight, rows, value), padded(bias, rows, value)
        out, *grads = run(UPSTREAM, *arguments, ids)
        every = dict(enumerate(expected(operands, ids, options.get("digits", 4)), -1))
        for i, x in zip((-1, *wanted), (out, *grads), strict=True):
            context = f"{dtype} over {mesh.size}, padding of {value}: {NAMES[i + 1]}"
            assert_bits_equal(x[: len(every[i])], every[i], context=context)
            assert_bits_equal(x[len(every[i]) :], np.zeros_like(x[len(every[i]) :]), context=f"{context}, padding")


def check_logits_over_one_two_and_three_devices() -> None:
    logits_over(mesh_of(1), FLOAT16, 7)
    logits_over(mesh_of(2), BFLOAT16, 21)
    logits_over(mesh_of(3), FLOAT32, 22)


def check_logits_over_four_and_eight_devices() -> None:
    logits_over(mesh_of(4), FLOAT32, 24)
    logits_over(mesh_of(8), FLOAT16, 5)


def check_states_over_one_and_four_devices() -> None:
    states_over(mesh_of(1), FLOAT16, 7, wanted=())
    states_over(mesh_of(4), BFLOAT16, 24, wanted=(), budget=1)


def check_states_over_two_devices() -> None:
    states_over(mesh_of(2), BFLOAT16, 21, digits=3)


def check_states_over_three_devices_some_rows_at_a_time() -> None:
    states_over(mesh_of(3), FLOAT32, 22, wanted=[1], outside=True, budget=4 * 8 * 3)


def check_states_over_eight_devices_of_which_three_have_padding_alone() -> None:
    states_over(mesh_of(8), FLOAT16, 5, wanted=[0])


def check_other_ids_and_leading_shapes() -> None:
    """NumPy's of 64 bits are read before they are narrowed."""
    (hidden, weight, _), ids = states(FLOAT32, 6, finite=True), targets_of(6).reshape(2, 5)
    logits = contract.lm_head_fp32(hidden.reshape(2, 5, WIDTH), weight)
    wanted = contract.selected_logprob(logits, ids)

    def every(logits: Any, hidden: Any, weight: Any) -> Any:
        options = {"vocab": 6, "axis_name": "x"}
        chosen = [ids.astype(dtype) for dtype in (np.int64, np.uint8, np.uint64)]
        found = [rlk_jax.sharded_selected_logprob(logits, one, **options) for one in chosen]
        return *found, rlk_jax.sharded_linear_logprob(hidden, weight, chosen[0], **options)

    run = sharded(every, mesh_of(2), (P(None, None, "x"), P(), SHARDED), P())
    for found in run(logits, hidden.reshape(2, 5, WIDTH), weight):
        assert_bits_equal(found, wanted)


def check_an_aligned_weight() -> None:
    """Hidden's gradient is that of the matrix that the planes stand for."""
    hidden, weight, _ = states(FLOAT32, 7, finite=True)
    ids, rows = targets_of(7), contract.align(weight, 3)
    aligned = rlk_jax.pad_vocab(rlk_jax.align(jnp.asarray(weight), 3), 2)

    def logprobs(hidden: Any, weight: Any) -> Any:
        return rlk_jax.sharded_linear_logprob(hidden, weight, ids, vocab=7, axis_name="x", digits=3)

    planes = rlk_jax.Aligned(COLUMNS, SHARDED, SHARDED, WIDTH)
    found, grad = sharded(with_gradients(logprobs, [0]), mesh_of(2), (P(), P(), planes), P())(UPSTREAM, hidden, aligned)
    logits = contract.lm_head_fp32(hidden, weight, digits=3)
    assert_bits_equal(found, contract.selected_logprob(logits, ids))
    of_logits = contract.selected_logprob_grad(logits, ids, UPSTREAM)
    matrix = (rows.q * rows.scale()[:, None]).astype(np.float32)
    assert_bits_equal(grad, contract.lm_head_grads(of_logits, hidden, matrix)[0])


def check_a_batch_over_one_axis_and_the_vocab_over_two() -> None:
    mesh, vocab_axes = mesh_of(2, axes="abc"), ("b", "c")
    x, ids = logits_of(FLOAT32, 7), targets_of(7)
    logprobs = partial(rlk_jax.sharded_selected_logprob, vocab=7, axis_name=vocab_axes)
    ins = P("a"), P("a", vocab_axes), P("a")
    found, grad = sharded(with_gradients(logprobs, [0]), mesh, ins, ins[:2])(UPSTREAM, padded(x, 8, np.nan, 1), ids)
    assert_bits_equal(found, contract.selected_logprob(x, ids))
    assert_bits_equal(grad[:, :7], contract.selected_logprob_grad(x, ids, UPSTREAM))


def check_sums_that_need_all_their_bits() -> None:
    """2^17 exponentials of 2^44: S has 62 bits, and the limbs of each device carry."""
    vocab, ids = 2**17, np.int32([0, 2**17 - 1])
    x = np.ones((2, vocab), np.float32)
    x[1, : vocab // 2] -= np.float32(2.0**-20)
    logprobs = partial(rlk_jax.sharded_selected_logprob, target_ids=ids, vocab=vocab, axis_name="x")
    found = sharded(logprobs, mesh_of(8), COLUMNS, P())(x)
    assert_bits_equal(found, contract.selected_logprob(x, ids))


def automatic_axes(mesh: Mesh) -> None:
    """The plain operators, on arrays that `jax.jit` shards over the vocab."""
    x, ids = logits_of(BFLOAT16, 24), targets_of(24)

    def put(x: Any, *spec: Any) -> Any:
        return jax.device_put(x, NamedSharding(mesh, P(*spec)))

    run = jax.jit(with_gradients(lambda x: rlk_jax.selected_logprob(x, ids), [0]))
    found, grad = run(UPSTREAM, put(x, None, "x"))
    assert_bits_equal(found, contract.selected_logprob(x, ids), context="automatic axes")
    assert_bits_equal(grad, contract.selected_logprob_grad(x, ids, UPSTREAM), context="automatic axes: gradient")
    hidden, weight, bias = operands = states(BFLOAT16, 24)

    def logprobs(hidden: Any, weight: Any, bias: Any) -> Any:
        return rlk_jax.linear_logprob(hidden, weight, ids, bias)

    run = jax.jit(with_gradients(logprobs, (0, 1)))
    found = run(UPSTREAM, put(hidden), put(weight, "x"), put(bias, "x"))
    for name, one, other in zip(NAMES, found, expected(operands, ids, 4), strict=False):
        assert_bits_equal(one, other, context=f"automatic axes: {name}")


def check_automatic_axes() -> None:
    automatic_axes(mesh_of(8))


def check_what_devices_exchange() -> None:
    """The largest logits; S in four words and the target's bits; for hidden's gradient two maxima and three words."""
    x, ids = np.zeros((ROWS, 8), np.float32), targets_of(8)
    hidden, weight, bias = states(FLOAT32, 8)

    def of_logits(logits: Any) -> Any:
        return rlk_jax.sharded_selected_logprob(logits, ids, vocab=8, axis_name="x")

    def of_states(hidden: Any, weight: Any, bias: Any) -> Any:
        return rlk_jax.sharded_linear_logprob(hidden, weight, ids, bias, vocab=8, axis_name="x")

    forward = ["int32", *["uint32"] * 5]
    states_in = P(), SHARDED, SHARDED
    for function, ins, arguments, wanted in (
        (of_logits, (COLUMNS,), (x,), forward),
        (with_gradients(of_logits, [0]), (P(), COLUMNS), (UPSTREAM, x), forward),
        (with_gradients(of_states, (1, 2)), (P(), *states_in), (UPSTREAM, hidden, weight, bias), forward),
        (with_gradients(of_states, [0]), (P(), *states_in), (UPSTREAM, hidden, weight, bias), forward + ["int32"] * 5),
    ):
        traced = jax.make_jaxpr(jax.shard_map(function, mesh=mesh_of(2), in_specs=ins, out_specs=SHARDED))(*arguments)
        found = [str(one.aval.dtype) for one in exchanged(traced.jaxpr)]
        assert found == wanted, (function, found)


def check_what_is_refused() -> None:
    def on_two(function: Any, *ins: Any, **options: Any) -> Any:
        return jax.shard_map(function, mesh=mesh_of(2), in_specs=ins, out_specs=P(), **options)

    def of_logits(logits: Any, ids: Any = (0, 1), vocab: Any = 7) -> Any:
        return rlk_jax.sharded_selected_logprob(logits, ids, vocab=vocab, axis_name="x")

    def of_states(hidden: Any, weight: Any, ids: Any = (0, 1), **options: Any) -> Any:
        return rlk_jax.sharded_linear_logprob(hidden, weight, ids, vocab=7, axis_name="x", **options)

    x, hidden, weight = jnp.zeros((2, 8)), jnp.zeros((2, 3)), jnp.zeros((8, 3))
    run = on_two(of_logits, COLUMNS)
    wrong = "logits has 3 columns; expected 4, a shard of vocab 7 over 2: pass 8 columns through the PartitionSpec of "
    refused(ValueError, wrong + "jax.shard_map", run, x[:, :6])
    varies = (
        "target_ids varies along mesh axis 'x'; expected the same on every shard: leave the axis out of its "
        'PartitionSpec, or gather it with jax.lax.all_gather(..., to="invarying")'
    )
    refused(ValueError, varies, on_two(of_logits, COLUMNS, SHARDED), x, jnp.zeros(4, jnp.int32))
    refused(ValueError, varies, on_two(of_states, P(), SHARDED, SHARDED), hidden, weight, jnp.zeros(4, jnp.int32))
    same = (
        "logits is the same along mesh axis 'x'; expected the shard of each device: name the axis in its PartitionSpec"
    )
    refused(ValueError, same, on_two(of_logits, P()), x[:, :4])
    tracked = (
        "mesh axis 'x' is not tracked; expected jax.shard_map in its default mode, check_vma=True: without it JAX "
        "would add up the gradients of what the shards share"
    )
    refused(ValueError, tracked, on_two(of_logits, COLUMNS, check_vma=False), x)
    vocab = "vocab is {}; expected 1 <= V <= 262144, the sum of whose exponentials has 63 bits: leave out ids that "
    for size in (0, 2**18 + 1):
        text = vocab.format(size) + "cannot occur"
        refused(ValueError, text, on_two(partial(of_logits, vocab=size), COLUMNS), x)
    text = "target_ids has shape (3,) and logits (2, 4); expected (2,), one id a row of logits"
    refused(ValueError, text, on_two(partial(of_logits, ids=(0, 1, 2)), COLUMNS), x)
    text = "budget is 0; expected a positive number of bytes for the logits of some rows"
    refused(ValueError, text, on_two(partial(of_states, budget=0), P(), SHARDED), hidden, weight)
    text = (
        "target_ids[1] is 7; expected 0 <= id < 7, the vocab: check the tokenizer against the table, or mask padding "
        "ids first"
    )
    refused(IndexError, text, on_two(partial(of_logits, ids=(0, 7)), COLUMNS), x)


def check_derivatives_and_vmap_that_are_not_offered() -> None:
    ids, x, hidden, weight = (0, 1), jnp.zeros((2, 8)), jnp.zeros((2, 3)), jnp.zeros((8, 3))
    options = {"vocab": 7, "axis_name": "x"}

    def of_logits(logits: Any) -> Any:
        return rlk_jax.sharded_selected_logprob(logits, ids, **options)

    def of_states(hidden: Any, weight: Any) -> Any:
        return rlk_jax.sharded_linear_logprob(hidden, weight, ids, **options)

    of_hidden = jax.shard_map(of_states, mesh=mesh_of(2), in_specs=(P(), SHARDED), out_specs=P())
    for name, function, one in (
        ("sharded_selected_logprob", jax.shard_map(of_logits, mesh=mesh_of(2), in_specs=COLUMNS, out_specs=P()), x),
        ("sharded_linear_logprob", lambda hidden: of_hidden(hidden, weight), hidden),
    ):
        forward = f"forward mode (jax.jvp, jax.linearize) of {name} is not offered: use jax.grad or jax.vjp"
        refused(NotImplementedError, forward, lambda x, f=function: jax.jvp(f, (x,), (x,))[1], one)
        second = f"second derivatives of {name} are not offered: use jax.lax.stop_gradient on its gradient"
        first = jax.grad(lambda x, f=function: f(x).sum())
        refused(NotImplementedError, second, jax.grad(lambda x, g=first: g(x).sum()), one)
        text = f"vmap over {name} is not offered: pass more rows in one call"
        refused(NotImplementedError, text, jax.vmap(function), jnp.stack([one] * 2))
        refused(NotImplementedError, text, jax.jacrev(function), one)
