"""Temporary memory of one call: `python memory.py LIBRARY CALL ROWS VOCAB WIDTH DIGITS` prints it in bytes.

It is what the process's resident memory gains at most while the call runs, without the result. A process of its own
measures one call, since Linux keeps one high-water mark a process. Libraries are loaded, and a small call is made,
before it.
"""

import ctypes
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

from libraries import Model, inputs

CALLS = ("aligned before", "align included", "align")


def temporary_bytes(library: str, call: str, rows: int, vocab: int, width: int, digits: int) -> int | None:
    """Measured in a new process; None where the system is not Linux."""
    if sys.platform != "linux":
        return None
    numbers = map(str, (rows, vocab, width, digits))
    done = subprocess.run(
        [sys.executable, __file__, library, call, *numbers], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def main() -> None:
    library, call = sys.argv[1:3]
    rows, vocab, width, digits = map(int, sys.argv[3:])
    _run(Model(library, *inputs(2, 64, 64)), call, digits, None)
    model = Model(library, *inputs(rows, vocab, width))
    aligned = model.align(digits) if call == "aligned before" else None
    start = _reset()
    result = _run(model, call, digits, aligned)
    print(_memory("VmHWM") - start - _size(result))


def _run(model: Model, call: str, digits: int, aligned: Any) -> Any:
    return model.align(digits) if call == "align" else model.logits(digits, aligned)


def _reset() -> int:
    """Give freed memory back, set the high-water mark to what is left, and return that."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _size(result: Any) -> int:
    parts = [result] if hasattr(result, "nbytes") else [x for x in vars(result).values() if hasattr(x, "nbytes")]
    return sum(part.nbytes for part in parts)


if __name__ == "__main__":
    main()
