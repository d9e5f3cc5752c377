"""Times of the GPU kernels and of their peers, taken in turns in one run: `python benchmarks/gpu.py`

Each framework runs in a process of its own. A ratio compares two things timed in the same rounds; a bound is
what the project holds itself to. Random data; the tables are far larger than the card's cache.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

V, K = 151936, 4096  # Qwen3-8B
TOKENS = 131072
GRADIENT_TOKENS = 65536
SMALL = (1, 16, 1024)


@cache
def rounds() -> int:
    """How often the peers take turns: `--rounds N`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    return int(parser.parse_args().rounds)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Arguments:
        milliseconds: median of the rounds.
        rate: GB/s moved or TOPS, with its unit.
        peer, ratio: what it is compared with, and its time in units of the peer's.
        bound: what the ratio may be at most; None where nothing is promised.
    """

    what: str
    rows: int
    milliseconds: float
    rate: str
    peer: str
    ratio: float
    bound: float | None = None


def emit(rows: list[Row], versions: str) -> None:
    """For a framework's process: hand the rows to the one that prints."""
    print(json.dumps({"versions": versions, "rows": [asdict(row) for row in rows]}))


def bandwidth(nbytes: int, milliseconds: float) -> str:
    return f"{nbytes / milliseconds / 1e6:,.0f} GB/s"


def tops(products: int, rows: int, milliseconds: float) -> str:
    return f"{2 * products * rows * V * K / milliseconds / 1e9:,.0f} TOPS"


def main() -> int:
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    missed = 0
    for half in ("gpu_torch.py", "gpu_jax.py"):
        command = [sys.executable, str(Path(__file__).with_name(half)), "--rounds", str(rounds())]
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        if run.returncode:
            print(f"{half} ended with exit code {run.returncode}", file=sys.stderr)
            return 2
        result = json.loads(run.stdout.splitlines()[-1])
        print(f"\n{result['versions']}\n")
        print("| what | rows | ms | rate | ratio | to | bound |\n|---|---|---|---|---|---|---|")
        for row in (Row(**fields) for fields in result["rows"]):
            bound = "" if row.bound is None else f"{row.bound:.2f}" + ("" if row.ratio <= row.bound else " missed")
            missed += bound.endswith("missed")
            print(
                f"| {row.what} | {row.rows} | {row.milliseconds:.4f} | {row.rate} | {row.ratio:.3f} | {row.peer} "
                f"| {bound} |"
            )
    print(f"\n{missed} bounds missed" if missed else "\nevery bound held")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
