"""The JAX half of benchmarks/host_table.py."""

from functools import partial

import jax
import ml_dtypes
import numpy as np
from gpu_jax import in_turns
from host_table import ROWS, K, Line, V, emit
from jax.sharding import SingleDeviceSharding

import rlk_jax


def main() -> None:
    device = jax.devices("gpu")[0]
    rng = np.random.default_rng(0)
    some = rng.standard_normal((2**14, K), np.float32).astype(ml_dtypes.bfloat16)
    weight = np.empty((V, K), ml_dtypes.bfloat16)
    for start in range(0, V, len(some)):
        part = weight[start : start + len(some)]
        part[:] = some[: len(part)]
    names = rng.integers(0, V, ROWS).astype(np.int32)
    ids = jax.device_put(names, device)
    table = rlk_jax.EmbeddingTable(weight, residency="host", device=device)
    before = device.memory_stats()["bytes_in_use"]
    jax.block_until_ready(table(names, check_ids=False))
    peak = device.memory_stats()["peak_bytes_in_use"] - before

    there = jax.device_put(weight, device)
    compiled = jax.jit(partial(rlk_jax.embedding, check_ids=False))
    callback = jax.jit(lambda ids: table(ids, check_ids=False))
    on_device = SingleDeviceSharding(device, memory_kind="device")
    pinned = jax.device_put(some[:ROWS], SingleDeviceSharding(device, memory_kind="pinned_host"))
    times = in_turns(
        {
            "host": lambda: table(names, check_ids=False),
            "jit": lambda: callback(ids),
            "device": lambda: compiled(ids, there),
            "bus": lambda: jax.device_put(pinned, on_device),
        }
    )
    lines = [
        Line("host, eager: a NumPy gather, one device_put", times["host"], peak),
        Line("host, jax.jit: a callback", times["jit"]),
        Line("device: the table on the GPU", times["device"]),
        Line("bus: a copy of as many bytes from pinned memory", times["bus"]),
    ]
    emit(lines, f"jax {jax.__version__}, {device.device_kind}")


if __name__ == "__main__":
    main()
