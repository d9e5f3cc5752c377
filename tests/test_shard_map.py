"""`jax.shard_map` in its default mode: forward the bits of the whole, gradients of what is sharded too."""

from processes import run_alone

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
import rlk_jax
from crosscheck.bits import assert_bits_equal

mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32))


def sharded(function, ins, outs):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=outs))


def check(vocab):
    hidden, weight, bias, upstream = normal(8, 16), normal(vocab, 16), normal(vocab), normal(8, vocab)
    head = lambda h, w, b: rlk_jax.lm_head(h, w, b)
    whole, pull = jax.vjp(head, hidden, weight, bias)
    expected = pull(upstream)
    for ins, outs, exact in (
        ((P("x"), P(), P()), P("x"), (0,)),
        ((P(), P("x"), P("x")), P(None, "x"), (1, 2)),
    ):
        logits, pull = jax.vjp(sharded(head, ins, outs), hidden, weight, bias)
        assert_bits_equal(logits, whole)
        for i, (actual, wanted) in enumerate(zip(pull(upstream), expected)):
            if i in exact:
                assert_bits_equal(actual, wanted, context=f"gradient {i}")
            else:  # the devices' sums are added by the framework
                np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)
    of_hidden = lambda h, w, g: jax.vjp(lambda h: rlk_jax.lm_head(h, w), h)[1](g)[0]
    inside = sharded(of_hidden, (P("x"), P(), P("x")), P("x"))
    assert_bits_equal(inside(hidden, weight, upstream), expected[0])


check(20)
check(40000)  # several tiles: the loops, too, run inside
ids, table, upstream = jnp.arange(8, dtype=jnp.int32), normal(20, 16), normal(8, 16)
gather = sharded(lambda i, w: rlk_jax.embedding(i, w), (P("x"), P()), P("x"))
rows, pull = jax.vjp(lambda w: gather(ids, w), table)
assert_bits_equal(rows, table[:8])
assert_bits_equal(pull(upstream)[0][:8], upstream)  # no id twice: nothing is added
"""


def test_sharded_calls_give_the_bits_of_the_whole():
    run_alone(PROGRAM, XLA_FLAGS="--xla_force_host_platform_device_count=2", JAX_PLATFORMS="cpu")
