"""How many threads a process has: one rule for all commands.

Where OMP_NUM_THREADS is set, as many as it says; else the cores are shared among the processes that run at once.
"""

import os

__all__ = ["ThreadsError", "fair_threads"]

VARIABLE = "OMP_NUM_THREADS"
MOST = 2**16


class ThreadsError(ValueError):
    """OMP_NUM_THREADS cannot be read; the text is one sentence."""


def fair_threads(processes: int) -> int:
    """Threads for each of several processes that run at once.

    Raises:
        ThreadsError.
    """
    asked = os.environ.get(VARIABLE, "").strip()
    if asked:
        first = asked.partition(",")[0].strip()  # OpenMP takes a list, of which the first is that of the outer level
        if not first.isascii() or not first.isdigit() or not 1 <= int(first) <= MOST:
            raise ThreadsError(
                f"{VARIABLE} is {asked!r}; expected a number of threads from 1 to {MOST}, or no such variable: then "
                "the cores are shared among the processes"
            )
        return int(first)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, processes))
