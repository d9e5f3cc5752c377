"""Calls of a backend or candidate in its own process, many at a time: the parent's side of `calls.py`."""

import tempfile
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from crosscheck.order.masks import SIGNIFICANDS
from crosscheck.process import WorkerDied, WorkerProcess, WorkerTimedOut, store_array, stored_array
from crosscheck.registry import Backend
from crosscheck.runner import BackendMissing

__all__ = ["Calls", "NoResult"]

Array = NDArray[Any]


class NoResult(Exception):
    """The candidate raised, crashed or ran out of time, or gave another shape or dtype; the text says which.

    `ended`: its process has gone, or is about to.
    """

    def __init__(self, text: str, *, ended: bool = False) -> None:
        super().__init__(text)
        self.ended = ended


class Calls:
    """A process and the calls that are made in it; it is an `order_bench.Call`.

    Arguments:
        op: "lm_head" or "lm_head_fp32".
        timeout: seconds for one call.
    """

    def __init__(self, backend: Backend, op: str, mode: str, *, threads: int, timeout: float) -> None:
        self.backend, self.op, self.mode, self.timeout = backend, op, mode, timeout
        self.folder = tempfile.TemporaryDirectory(prefix="crosscheck-")
        self.process = WorkerProcess(backend, threads)

    def greet(self) -> dict[str, Any]:
        """What it says about itself.

        Raises:
            BackendMissing.
        """
        said = self.process.greet()
        if said["reason"] is not None:
            raise BackendMissing({self.backend.name: said["reason"]})
        return said

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self.process.close()
        self.folder.cleanup()

    def __call__(self, hidden: Array, weight: Array, rows: int, vocab: int) -> Array:
        folder = Path(self.folder.name)
        files = {}
        for name, array in (("hidden", hidden), ("weight", weight)):
            path = folder / f"{name}.npy"
            files[name] = (str(path), store_array(path, array))
        request = {"op": self.op, "mode": self.mode, "rows": rows, "vocab": vocab, **files}
        try:
            answer = self.process.ask({"calls": request, "store": str(folder / "results.npy")}, self.timeout)
        except WorkerDied as error:
            raise NoResult(f"it crashed: {error}", ended=True) from error
        except WorkerTimedOut as error:
            raise NoResult(f"it hung: {error}; --timeout SECONDS allows more", ended=True) from error
        if "raised" in answer:
            raise NoResult(f"it raised {answer['raised']}")
        results = stored_array(folder / "results.npy", answer["called"])
        if results.shape != (len(hidden), rows, vocab):
            raise NoResult(f"its result has shape {list(results.shape[1:])}; expected {[rows, vocab]}")
        if answer["called"] not in SIGNIFICANDS:
            raise NoResult(f"its result is {answer['called']}; expected {', '.join(SIGNIFICANDS)}")
        return results
