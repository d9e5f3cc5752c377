"""The JAX half of benchmarks/gpu.py: long loops of calls in flight, and loops inside one program for short ones."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from gpu import GRADIENT_TOKENS, SMALL, TOKENS, K, Row, V, bandwidth, emit, rounds, tops
from jax import Array, lax

import rlk_jax

_SLICE = 0.25  # seconds of work between two looks at the clock: the card reaches its sustained clocks

Call = Callable[[], Any]


def elapsed(call: Call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / count * 1e3


def in_turns(calls: Mapping[str, Call]) -> dict[str, float]:
    """Milliseconds of each: the median of rounds in which they take turns, each long enough to heat the card."""
    counts = {}
    for name, call in calls.items():
        elapsed(call, 2)
        counts[name] = max(1, round(_SLICE * 1e3 / elapsed(call, 2)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds()):
        for name, call in calls.items():
            times[name].append(elapsed(call, counts[name]))
    return {name: statistics.median(every) for name, every in times.items()}


def repeated(gather: Callable[[Array, Array], Array] | None, times: int) -> Callable[[Array, Array], Array]:
    """The gather many times in one program, each with other ids: device time, without a launch from the host.

    None is the same loop without a gather.
    """

    @jax.jit
    def loop(ids: Array, weight: Array) -> Array:
        def body(i: Array, total: Array) -> Array:
            others = (ids + i * 7919) % V
            # The barrier keeps XLA from gathering the one element that is looked at.
            rows = lax.optimization_barrier(others[:, None] if gather is None else gather(others, weight))
            return total + rows[0, 0].astype(jnp.float32)

        return lax.fori_loop(0, times, body, jnp.float32(0))

    return loop


def loop_times(ids: Array, weight: Array, times: int, **more: Call) -> dict[str, float]:
    """Milliseconds of a turn of the loop with XLA's gather, with ours and with none; `more` as they are."""
    gathers = {"none": None, "take": take, "ours": ours_unchecked}
    loops = {name: repeated(gather, times) for name, gather in gathers.items()}
    taken = in_turns({**more, **{name: (lambda f=loop: f(ids, weight)) for name, loop in loops.items()}})
    return {name: time if name in more else time / times for name, time in taken.items()}


def ours_unchecked(ids: Array, weight: Array) -> Array:
    return rlk_jax.embedding(ids, weight, check_ids=False)


def take(ids: Array, weight: Array) -> Array:
    return jnp.take(weight, ids, axis=0)


def gather_rows(table: Array, key: Array) -> list[Row]:
    rows = []
    ids = jax.random.randint(key, (TOKENS,), 0, V)
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        weight = table.astype(dtype)
        source = jax.random.normal(key, (TOKENS, K), dtype)
        copy = jax.jit(jnp.copy)
        times = loop_times(ids, weight, 20, copy=lambda: copy(source))  # noqa: B023
        # What the loop does around the gather is not the gather's. With few rows it hides behind it: not taken off.
        times |= {name: times[name] - times["none"] for name in ("take", "ours")}
        ours, nbytes, name = times["ours"], 2 * source.nbytes, f"gather {jnp.dtype(dtype).name}"
        promised = (1 / 0.92, 1 / 1.25) if dtype == jnp.bfloat16 else (None, None)
        rate = bandwidth(nbytes, ours)
        rows.append(Row(name, TOKENS, ours, rate, "device copy by XLA", ours / times["copy"], promised[0]))
        rows.append(Row(name, TOKENS, ours, rate, "jnp.take", ours / times["take"], promised[1]))
    for count in SMALL:
        few = jax.random.randint(key, (count,), 0, V)
        times = loop_times(few, table, 500)
        rate = bandwidth(2 * count * K * 2, times["ours"])
        rows.append(Row("gather bfloat16", count, times["ours"], rate, "jnp.take", times["ours"] / times["take"], 1))
    return rows


def lm_head_rows(table: Array, key: Array) -> list[Row]:
    rows = []
    bounds = {(1, 3): 2.0, (16, 3): 2.0, (2048, 3): 4.5}
    contract = (((1,), (1,)), ((), ()))
    for digits in (2, 3):
        weight = rlk_jax.align(table, digits)
        matmul = jax.jit(lambda h, w: lax.dot_general(h, w, contract))
        head = jax.jit(lambda h, w, d=digits: rlk_jax.lm_head(h, w, digits=d))
        for count in (1, 16, 64, 256, 2048):
            hidden = jax.random.normal(key, (count, K), jnp.bfloat16)
            times = in_turns({"xla": lambda: matmul(hidden, table), "ours": lambda: head(hidden, weight)})  # noqa: B023
            made = digits**2 if count < 128 else digits * (digits + 1) // 2
            ours = times["ours"]
            rate, ratio = tops(made, count, ours), ours / times["xla"]
            bound = bounds.get((count, digits))
            rows.append(Row(f"lm_head digits {digits}", count, ours, rate, "XLA bf16", ratio, bound))
    return rows


def align_rows(table: Array) -> list[Row]:
    copy = jax.jit(jnp.copy)
    times = in_turns({"copy": lambda: copy(table), "ours": lambda: rlk_jax.align(table, 3)})
    ours, nbytes = times["ours"], table.nbytes + 3 * table.size
    return [Row("align digits 3", V, ours, bandwidth(nbytes, ours), "copy of the table", ours / times["copy"], 6)]


def gradient_rows(table: Array, key: Array) -> list[Row]:
    """Against XLA's own gradients, which add in floating point; its scatter does so in no fixed order."""
    rows = []
    upstream = jax.random.normal(key, (GRADIENT_TOKENS, K), jnp.bfloat16)
    odds = jnp.cumsum(1 / jnp.arange(1, V + 1, dtype=jnp.float32))
    # jax.random.categorical would hold a number for each token and id.
    zipf = jnp.searchsorted(odds, odds[-1] * jax.random.uniform(key, (GRADIENT_TOKENS,)))
    uniform = jax.random.randint(key, (GRADIENT_TOKENS,), 0, V)
    for name, ids in {"uniform": uniform, "Zipf": jnp.minimum(zipf, V - 1)}.items():
        calls = {
            peer: jax.jit(lambda ids, g, f=gather: jax.vjp(lambda w: f(ids, w), table)[1](g)[0])
            for peer, gather in {"take": take, "ours": ours_unchecked}.items()
        }
        times = in_turns({peer: (lambda f=f: f(ids, upstream)) for peer, f in calls.items()})  # noqa: B023
        ours, ratio = times["ours"], times["ours"] / times["take"]
        rate = bandwidth(upstream.nbytes + table.nbytes, ours)
        rows.append(Row(f"embedding gradient, {name}", GRADIENT_TOKENS, ours, rate, "jnp.take's", ratio))
    hidden = jax.random.normal(key, (2048, K), jnp.bfloat16)
    grad = jax.random.normal(key, (2048, V), jnp.bfloat16)
    matmuls = {"hidden": lambda g, h, w: g @ w, "weight": lambda g, h, w: g.T @ h}
    exact = {
        "hidden": lambda g, h, w: jax.vjp(lambda x: rlk_jax.lm_head(x, w), h)[1](g)[0],
        "weight": lambda g, h, w: jax.vjp(lambda x: rlk_jax.lm_head(h, x), w)[1](g)[0],
    }
    for name in matmuls:
        calls = {"xla": jax.jit(matmuls[name]), "ours": jax.jit(exact[name])}
        times = in_turns({peer: (lambda f=f: f(grad, hidden, table)) for peer, f in calls.items()})
        rate, ratio = tops(10, 2048, times["ours"]), times["ours"] / times["xla"]
        rows.append(Row(f"lm_head gradient of {name}", 2048, times["ours"], rate, "XLA bf16", ratio))
    return rows


def logprob_rows(table: Array, key: Array) -> list[Row]:
    """On ready logits against JAX's own, and from hidden states against the logits alone; weight aligned before."""
    hidden, ids = jax.random.normal(key, (2048, K), jnp.bfloat16), jax.random.randint(key, (2048,), 0, V)
    weight = rlk_jax.align(table, 4)
    head = jax.jit(rlk_jax.lm_head_fp32)
    logits = head(hidden, weight)
    own = jax.jit(lambda x, ids: jnp.take_along_axis(jax.nn.log_softmax(x), ids[:, None], axis=1))
    selected = jax.jit(lambda x, ids: rlk_jax.selected_logprob(x, ids, check_ids=False))
    times = in_turns({"jax": lambda: own(logits, ids), "ours": lambda: selected(logits, ids)})
    ours = times["ours"]
    rate, ratio = bandwidth(2 * logits.nbytes, ours), ours / times["jax"]
    rows = [Row("selected_logprob", 2048, ours, rate, "log_softmax, take", ratio)]
    linear = jax.jit(lambda h, w, ids: rlk_jax.linear_logprob(h, w, ids, check_ids=False))
    times = in_turns({"head": lambda: head(hidden, weight), "ours": lambda: linear(hidden, weight, ids)})
    ours = times["ours"]
    rows.append(Row("linear_logprob", 2048, ours, tops(10, 2048, ours), "lm_head_fp32", ours / times["head"]))
    return rows


def main() -> None:
    key = jax.random.key(0)
    table = jax.random.normal(key, (V, K), jnp.bfloat16) * jnp.bfloat16(0.02)
    rows = [*gather_rows(table, key), *align_rows(table), *lm_head_rows(table, key), *gradient_rows(table, key)]
    rows += logprob_rows(table, key)
    emit(rows, f"jax {jax.__version__}, {jax.devices()[0].device_kind}")


if __name__ == "__main__":
    main()
