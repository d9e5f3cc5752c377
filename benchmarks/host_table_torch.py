"""The torch half of benchmarks/host_table.py."""

import torch
from gpu_torch import in_turns
from host_table import ROWS, K, Line, V, emit

import rlk_torch


def main() -> None:
    weight = torch.empty((V, K), dtype=torch.bfloat16, pin_memory=True)
    for rows in weight.split(2**16):
        rows.copy_(torch.randn(rows.shape, dtype=torch.bfloat16, device="cuda"))
    ids = torch.randint(0, V, (ROWS,), device="cuda")
    table = rlk_torch.EmbeddingTable(weight, residency="host", device="cuda")
    assert table.weight.data_ptr() == weight.data_ptr()  # pinned already: it is not copied
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    table(ids, check_ids=False)
    peak = torch.cuda.max_memory_allocated() - before

    there, source = weight.cuda(), weight[:ROWS].clone().pin_memory()
    target = torch.empty((ROWS, K), dtype=torch.bfloat16, device="cuda")
    unpinned = rlk_torch.EmbeddingTable(weight, residency="host", device="cuda")
    unpinned.weight = torch.empty_like(weight, pin_memory=False).copy_(weight)
    times = in_turns(
        {
            "host": lambda: table(ids, check_ids=False),
            "gather": lambda: unpinned(ids, check_ids=False),
            "device": lambda: rlk_torch.embedding(ids, there, check_ids=False),
            "bus": lambda: target.copy_(source, non_blocking=True),
        }
    )
    lines = [
        Line(f"host: {table.mechanism}", times["host"], peak),
        Line(f"host, not pinned: {unpinned.mechanism}", times["gather"]),
        Line("device: the table on the GPU", times["device"]),
        Line("bus: a copy of as many bytes from pinned memory", times["bus"]),
    ]
    emit(lines, f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    main()
