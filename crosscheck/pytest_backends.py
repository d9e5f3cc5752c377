"""The backends that the fixture `crosscheck_backend` calls, each in a process of its own until the session ends."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from crosscheck.cases import Case
from crosscheck.process import WorkerDied, WorkerProcess, WorkerTimedOut, stored_array
from crosscheck.pytest_cases import DrawnCase
from crosscheck.registry import BACKENDS, Backend
from crosscheck.runner import BackendMissing
from crosscheck.threads import fair_threads

__all__ = ["BackendFailed", "BackendPool", "CallableBackend"]

LIMIT = 300.0  # seconds for one call


class BackendFailed(AssertionError):
    """A backend raised, ended or hung in a call; the text says which, and how."""


class CallableBackend:
    """A backend, to be called with cases.

    Arguments:
        name: as in --crosscheck-backends.
        modes: "eager", and "compile" or "jit" where it has it.
    """

    def __init__(self, backend: Backend, threads: int) -> None:
        self.name, self.modes = backend.name, backend.modes
        self._backend, self._threads = backend, threads
        self._process: WorkerProcess | None = None
        self._said: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<crosscheck backend {self.name}>"

    def __call__(self, case: DrawnCase | Case, mode: str = "eager") -> NDArray[Any]:
        """The backend's result for a built-in case, as a NumPy array.

        Raises:
            BackendFailed: it raised, ended or hung. The next call gets a fresh process.
            ValueError: a mode that it has not, or a case of a golden, whose inputs may be any.
        """
        __tracebackhide__ = True
        if mode not in self.modes:
            raise ValueError(f"{self.name} has no mode {mode!r}; expected one of {', '.join(self.modes)}")
        built_in = case.case if isinstance(case, DrawnCase) else case
        if built_in is None:
            raise ValueError(f"{case.id} is a case of a golden, and backends are called with built-in ones")
        self.start()
        assert self._process is not None
        with tempfile.TemporaryDirectory(prefix="crosscheck-") as folder:
            request = {"record": folder, "case": built_in.to_json(), "mode": mode, "gradients": False}
            try:
                answer = self._process.ask(request, LIMIT)
            except (WorkerDied, WorkerTimedOut) as error:
                self.close()
                raise BackendFailed(f"{self.name} gave no answer to {case.id} ({mode}): {error}") from None
            if "raised" in answer:
                raise BackendFailed(f"{self.name} raised {answer['raised']}, in {case.id} ({mode})")
            return stored_array(Path(folder) / "result.npy", answer["recorded"]["arrays"]["result"])

    @property
    def device(self) -> str:
        """The name of its device."""
        self.start()
        return str(self._said["device"])

    def start(self) -> None:
        """Start its process, unless it runs.

        Raises:
            BackendMissing: it cannot run here.
        """
        if self._said.get("reason") is None and self._process is None:
            self._process = WorkerProcess(self._backend, self._threads)
            self._said = self._process.greet()
        if self._said["reason"] is not None:
            self.close()
            raise BackendMissing({self.name: self._said["reason"]})

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


class BackendPool:
    """The backends of a session. Workers of pytest-xdist are sessions of their own, and share the cores."""

    def __init__(self, names: Sequence[str]) -> None:
        sessions = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        threads = fair_threads(sessions * len(names))
        self._backends = {name: CallableBackend(BACKENDS[name], threads) for name in names}

    def backend(self, name: str) -> CallableBackend:
        """The backend, started.

        Raises:
            BackendMissing: it cannot run here.
        """
        self._backends[name].start()
        return self._backends[name]

    def close(self) -> None:
        for backend in self._backends.values():
            backend.close()
