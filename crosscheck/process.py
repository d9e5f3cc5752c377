"""The parent's side of a worker process: start it, ask it, bound its time, and say in words how it ended."""

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from crosscheck.bits import to_bits
from crosscheck.registry import Backend

__all__ = ["WorkerDied", "WorkerProcess", "WorkerTimedOut", "store_array", "stored_array"]

START_LIMIT = 180.0  # seconds until a worker must have said hello


def store_array(path: str | Path, array: NDArray[Any]) -> str:
    """Put an array in a file for another process; its dtype, which the other is to be told.

    The file has unsigned integers, since NumPy's format knows no bfloat16.
    """
    np.save(path, to_bits(array))
    return array.dtype.name


def stored_array(path: str | Path, dtype: str) -> NDArray[Any]:
    bits: NDArray[Any] = np.load(path, allow_pickle=False)
    return bits.view(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


class WorkerDied(Exception):
    """The process ended without an answer; the text says how."""


class WorkerTimedOut(Exception):
    """No answer within the time limit."""


class WorkerProcess:
    """One backend's process. `hello` is what it said about itself when it started."""

    def __init__(self, backend: Backend, threads: int) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (close() closes it)
        path = [entry or str(Path.cwd()) for entry in sys.path]
        environment = {**os.environ, **backend.environment(threads), "PYTHONPATH": os.pathsep.join(path)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "crosscheck.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C reaches the parent alone
        )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        self._setup = {
            "backend": backend.name, "factory": backend.factory, "device": backend.device, "threads": threads,
            "target": backend.target,
        }  # fmt: skip

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._answers.put(line)
        self._answers.put(None)

    def hello(self) -> dict[str, Any]:
        """Start the adapter: {"reason": None, ...}, or the reason why it cannot run."""
        answer: dict[str, Any] = self.ask(self._setup, START_LIMIT)["hello"]
        return answer

    def greet(self) -> dict[str, Any]:
        """`hello`, with a reason also where the process ends or says nothing."""
        try:
            return self.hello()
        except (WorkerDied, WorkerTimedOut) as error:
            return {"reason": f"it cannot start: {error}"}

    def ask(
        self,
        request: dict[str, Any],
        limit: float,
        on_doing: Callable[[str], None] = lambda doing: None,
        *,
        on_found: Callable[[dict[str, Any]], None] = lambda found: None,
        most: float = math.inf,
    ) -> dict[str, Any]:
        """Send a request and wait for its answer; `on_doing` hears what the worker begins, `on_found` what it has.

        The limit, in seconds, is for each thing that it begins, and for the time before and after; `most` for all.

        Raises:
            WorkerDied, WorkerTimedOut.
        """
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except (BrokenPipeError, ValueError):  # ended, or closed by kill()
            raise WorkerDied(self._how_it_ended()) from None
        last = time.monotonic() + most
        deadline = min(time.monotonic() + limit, last)
        while True:
            try:
                line = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise WorkerTimedOut(f"no answer within {min(limit, most):g} s") from None
            if line is None:
                raise WorkerDied(self._how_it_ended())
            answer: dict[str, Any] = json.loads(line)
            if "found" in answer:
                on_found(answer["found"])
                continue
            if "doing" not in answer:
                return answer
            on_doing(answer["doing"])
            deadline = min(time.monotonic() + limit, last)

    def kill(self) -> None:
        """End the process and what it started. Safe to call twice, and from another thread."""
        if self._process.poll() is None:
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # unsent input of a process that has ended
                    stream.close()

    def close(self) -> None:
        """`kill`, and forget what the process wrote to stderr."""
        self.kill()
        self._errors.close()

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        self._errors.seek(0)
        written = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"its process {how}" + (f" (last words: {written[-1].strip()[:200]})" if written else "")
