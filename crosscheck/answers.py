"""The contract's result of each case, computed once for all the processes of a run, in a thread of its own."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from crosscheck.judge import Judged, expected_answer
from crosscheck.lanes import Files
from crosscheck.process import store_array

__all__ = ["Answers"]


class Answers:
    """`futures`: for each case the files of unsigned integers that hold its answer, or what computing it raised."""

    def __init__(self, cases: Sequence[Judged], folder: Path) -> None:
        self.cases, self.folder = cases, folder
        self.futures: list[Future[Files]] = [Future() for _ in cases]
        self.stopped = threading.Event()

    def compute(self, numbers: Sequence[int]) -> None:
        """The cases of these numbers, in order, until `stop`."""
        for i in numbers:
            future = self.futures[i]
            if self.stopped.is_set() or not future.set_running_or_notify_cancel():
                return
            try:
                answer = expected_answer(self.cases[i])
                gradients = {name: self._store(f"{i}-{name}", array) for name, array in answer.gradients.items()}
                result = self._store(str(i), answer.result)
                future.set_result({"result": result, "gradients": gradients, "inputs": answer.inputs_digest})
            except Exception as error:  # becomes the verdict of this case on every backend
                future.set_exception(error)

    def stop(self) -> None:
        self.stopped.set()
        for future in self.futures:
            future.cancel()

    def _store(self, name: str, array: NDArray[Any]) -> tuple[str, str]:
        path = self.folder / f"{name}.npy"
        return str(path), store_array(path, array)
