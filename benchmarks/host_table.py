"""Rows of a table of 20 GB in host memory, against the same table on the GPU and against the bus.

`python benchmarks/host_table.py`. Each framework runs in a process of its own; 60 GB of host memory are needed.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu import rounds

K = 4096
V = 20_000_000_000 // (2 * K)  # rows of bfloat16
ROWS = 8192  # gathered by one call


@dataclass(frozen=True)
class Line:
    """One way to get ROWS rows to the GPU.

    Arguments:
        milliseconds: median of the rounds.
        peak: bytes of device memory that a call takes beside the table, its result included; None where the table
            itself is there.
    """

    what: str
    milliseconds: float
    peak: int | None = None


def emit(lines: list[Line], versions: str) -> None:
    """For a framework's process: hand the lines to the one that prints."""
    print(json.dumps({"versions": versions, "lines": [asdict(line) for line in lines]}))


def main() -> int:
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for half in ("host_table_torch.py", "host_table_jax.py"):
        command = [sys.executable, str(Path(__file__).with_name(half)), "--rounds", str(rounds())]
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        if run.returncode:
            print(f"{half} ended with exit code {run.returncode}", file=sys.stderr)
            return 2
        result = json.loads(run.stdout.splitlines()[-1])
        lines = [Line(**fields) for fields in result["lines"]]
        device, bus = (next(x for x in lines if x.what.startswith(name)) for name in ("device", "bus"))
        print(f"\n{result['versions']}; {ROWS} rows of {K} bfloat16 out of {V}\n")
        print("| what | ms | rows/s | GB/s | time / device's | time / bus's | peak device memory |")
        print("|---|---|---|---|---|---|---|")
        for x in lines:
            rate, nbytes = ROWS / x.milliseconds * 1e3, 2 * K * ROWS
            peak = "" if x.peak is None else f"{x.peak / 1e6:,.0f} MB"
            print(
                f"| {x.what} | {x.milliseconds:.3f} | {rate:,.0f} | {nbytes / x.milliseconds / 1e6:,.1f} "
                f"| {x.milliseconds / device.milliseconds:.2f} | {x.milliseconds / bus.milliseconds:.2f} | {peak} |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
