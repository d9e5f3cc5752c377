"""Checks on ranks: processes of one group, forked from a program that has imported torch, which costs seconds."""

import importlib
import json
import multiprocessing
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

from processes import run_alone

LIMIT = 300  # seconds for all checks of one number of ranks
PATIENCE = timedelta(seconds=30)  # of the group, where a check does not say otherwise
NETWORK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
DEVICE = "cpu"  # of this rank: checks put their arrays there


def run_on_ranks(module: str, *sizes: int, backend: str = "gloo") -> dict[str, str]:
    """What went wrong in the checks of a module on so many ranks, by "name on size": empty where all is well.

    A check is a function `check_...(rank, size)`. All ranks run all of them, one after the other, until one fails.
    """
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a process with threads is not to be forked
    printed = run_alone(f"import ranks; ranks.main({module!r}, {sizes!r}, {backend!r})", **single, **NETWORK)
    return json.loads(printed.splitlines()[-1])


def checks_of(module: Any) -> list[str]:
    return [name for name in vars(module) if name.startswith("check_")]


def main(name: str, sizes: tuple[int, ...], backend: str = "gloo") -> None:
    import torch
    import torch._dynamo  # custom operators import it: once, before the forks

    torch.set_num_threads(1)
    module = importlib.import_module(name)
    found: dict[str, str] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            said = _said_by_ranks(name, size, backend, Path(folder))
        for check in checks_of(module):
            by_rank = enumerate(one.get(check, "not run") for one in said)
            if wrong := [f"rank {rank}: {text}" for rank, text in by_rank if text]:
                found[f"{check} on {size}"] = "\n".join(wrong)
    print(json.dumps(found))


def _said_by_ranks(name: str, size: int, backend: str, folder: Path) -> list[dict[str, str]]:
    context = multiprocessing.get_context("spawn" if backend == "nccl" else "fork")  # CUDA does not survive a fork
    ranks = [context.Process(target=_rank, args=(name, rank, size, backend, folder)) for rank in range(size)]
    for process in ranks:
        process.start()
    end = time.monotonic() + LIMIT
    for process in ranks:
        process.join(max(0.0, end - time.monotonic()))
    for process in ranks:
        if process.is_alive():
            process.kill()
            process.join()
    files = [folder / f"{rank}.json" for rank in range(size)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files]


def _rank(name: str, rank: int, size: int, backend: str, folder: Path) -> None:
    import torch.distributed as dist

    module, said, check = importlib.import_module(name), dict[str, str](), ""
    try:
        for check in checks_of(module):
            if not said:
                _join(rank, size, backend, folder)
            dist.barrier()  # no rank is gone before the others have done the check before
            getattr(module, check)(rank, size)
            said[check] = ""
            (folder / f"{rank}.json").write_text(json.dumps(said))  # should the next one never end
    except Exception:
        said[check] = traceback.format_exc()
    finally:
        (folder / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def _join(rank: int, size: int, backend: str, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    named: dict[str, Any] = {}
    if backend == "nccl":
        global DEVICE
        DEVICE = f"cuda:{rank}"
        torch.cuda.set_device(rank)
        named = {"device_id": torch.device(DEVICE)}  # else a barrier warns, and warnings are errors
    store = f"file://{folder / 'store'}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=size, timeout=PATIENCE, **named)
