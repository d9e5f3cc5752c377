"""LM head on the CPU against torch's float32 matrix product of the same values: `python benchmarks/cpu.py`.

Every number is a ratio within one run, on float32 inputs; docs/performance.md says how to read the table.
"""

import argparse
import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from gradients import lm_head_gradients, table_gradients
from libraries import LIBRARIES, Model, inputs
from memory import CALLS, temporary_bytes
from timing import Timing, take_turns

WIDTH = 1024
MANY = (64, 32768)  # rows, vocab
DECODE = (1, 151936)
MEMORY_BOUND = 512 * 2**20  # bytes
COLUMNS = "{:<50} {:<14} {:>10} {:>7} {:>6}  {}"

Peers = dict[tuple[str, str, float | None], Callable[[], object]]  # (what, library, bound of the ratio)


def many_rows() -> tuple[Callable[[], object], Peers]:
    """64 rows: with the weight aligned before, with its alignment, with 4 digits, and the alignment alone."""
    rows, vocab = MANY
    hidden, weight = inputs(rows, vocab, WIDTH)
    peers: Peers = {}
    for library, bound in zip(LIBRARIES, (3.0, 5.0, 8.0), strict=True):
        model = Model(library, hidden, weight)
        three, four = model.align(3), model.align(4)
        peers["digits 3, aligned before", library, bound] = _logits(model, 3, three)
        peers["digits 3, align included", library, 12.0] = _logits(model, 3, None)
        peers["digits 4, aligned before", library, None] = _logits(model, 4, four)
        peers["align alone, digits 3", library, None] = lambda model=model: model.align(3)  # type: ignore[misc]
    return _float32_product(hidden, weight), peers


def decode() -> tuple[Callable[[], object], Peers]:
    """One row and the vocab of a large model, with the weight aligned before."""
    hidden, weight = inputs(*DECODE, WIDTH)
    peers: Peers = {}
    for library, bound in (("torch", 4.0), ("jax", 10.0)):
        model = Model(library, hidden, weight)
        peers["digits 3, aligned before", library, bound] = _logits(model, 3, model.align(3))
        model.release_weight()
    return _float32_product(hidden, weight), peers


def gradients() -> tuple[Callable[[], object], Peers]:
    """Of the LM head of 64 rows and of a table, beside the frameworks' own; nothing is promised."""
    hidden, weight = inputs(*MANY, WIDTH)
    calls = lm_head_gradients(hidden, weight) | table_gradients(WIDTH)
    return _float32_product(hidden, weight), {(*names, None): call for names, call in calls.items()}


def _logits(model: Model, digits: int, aligned: object) -> Callable[[], object]:
    return lambda: model.logits(digits, aligned)


def _float32_product(hidden: np.ndarray, weight: np.ndarray) -> Callable[[], object]:
    x, w = torch.from_numpy(hidden), torch.from_numpy(weight)
    return lambda: x @ w.T


def print_times(title: str, section: Callable[[], tuple[Callable[[], object], Peers]], rounds: int) -> None:
    baseline, peers = section()
    names = {f"{what}|{library}": call for (what, library, _), call in peers.items()}
    seconds, timings = take_turns(baseline, names, rounds)
    print(f"\n{title}")
    print(COLUMNS.format("", "", "median ms", "ratio", "bound", ""))
    print(COLUMNS.format("float32 matrix product", "torch", f"{seconds * 1e3:.1f}", "1.00", "", ""))
    for what, library, bound in sorted(peers, key=lambda key: key[0]):
        timing = timings[f"{what}|{library}"]
        print(_line(what, library, timing, bound))


def _line(what: str, library: str, timing: Timing, bound: float | None) -> str:
    verdict = "" if bound is None else "within" if timing.ratio <= bound else "OVER"
    shown = "" if bound is None else f"{bound:g}"
    return COLUMNS.format(what, library, f"{timing.seconds * 1e3:.1f}", f"{timing.ratio:.2f}", shown, verdict)


def print_memory() -> None:
    print(f"\nTemporary memory of one call, {MANY[0]} rows, digits 3 (bound {MEMORY_BOUND >> 20} MiB)")
    for call in CALLS:
        for library in LIBRARIES:
            for vocab in (MANY[1], DECODE[1]):
                found = temporary_bytes(library, call, MANY[0], vocab, WIDTH, 3)
                shown = "not measured: needs Linux" if found is None else f"{found / 2**20:.0f} MiB"
                verdict = "" if found is None else "within" if found <= MEMORY_BOUND else "OVER"
                print(COLUMNS.format(f"{call}, vocab {vocab}", library, shown, "", "", verdict).rstrip())


def environment() -> Iterator[str]:
    yield f"Python {platform.python_version()}, " + ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "torch", "jax", "jaxlib")
    )
    yield f"{_processor()}, {torch.get_num_threads()} threads in torch, {torch.backends.cpu.get_cpu_capability()}"


def _processor() -> str:
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11, help="timed calls of each peer (default 11)")
    parser.add_argument("--no-memory", action="store_true", help="times alone")
    options = parser.parse_args()
    for line in environment():
        print(line)
    print_times("hidden 64 x weight 32768 x K 1024", many_rows, options.rounds)
    print_times("decode: hidden 1 x weight 151936 x K 1024", decode, options.rounds)
    print_times("gradients, against the product of hidden 64 x weight 32768 x K 1024", gradients, options.rounds)
    if not options.no_memory:
        print_memory()


if __name__ == "__main__":
    main()
