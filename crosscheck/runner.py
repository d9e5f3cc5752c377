"""Run cases on backends, each backend and mode in its own process, side by side.

One thread asks each process for one verdict after the other; one more computes the contract's result of each
case once and stores it for all of them. A process that crashes, hangs or raises costs the verdict of that case;
the next case gets a fresh process, until LIVES of them have ended one after another.
"""

import os
import queue
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from crosscheck.controls import Caught
from crosscheck.judge import Effort, Judged, expected_answer
from crosscheck.process import WorkerDied, WorkerProcess, WorkerTimedOut, store_array
from crosscheck.registry import Backend
from crosscheck.verdict import NOT_OFFERED, Verdict, worst

__all__ = ["BackendMissing", "Progress", "Run", "describe", "run"]

LIVES = 3
Progress = Callable[[str, str], None]  # backend, what it does now
Files = dict[str, Any]  # "result" and "gradients" of the contract: a path and a dtype each


class BackendMissing(Exception):
    """Requested backends that cannot run here: {name: reason}."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name} is not available: {reason}" for name, reason in reasons.items()))
        self.reasons = dict(reasons)


@dataclass
class Run:
    """What backends said about themselves, and the verdicts.

    Arguments:
        complete: False after an interrupt.
        due: how many verdicts a complete run makes.
        candidates: for each candidate, the options that name it.
        controls: of a run with candidates, whether the planted faults were caught.
    """

    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    complete: bool = True
    due: int = 0
    candidates: dict[str, list[str]] = field(default_factory=dict)
    controls: list[Caught] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """ "interrupted", else the worst of the verdicts' outcomes; "failed" at least where a control escaped."""
        if not self.complete:
            return "interrupted"
        outcomes = [verdict.outcome for verdict in self.verdicts if verdict.outcome != NOT_OFFERED]
        if self.verdicts and not outcomes:
            outcomes.append("incomplete")  # nothing was judged
        return worst([*outcomes, *("failed" for control in self.controls if not control.caught)])


def fair_threads(processes: int) -> int:
    """Threads for each of several processes that share the cores this one may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, processes))


def describe(backends: Sequence[Backend]) -> dict[str, dict[str, Any]]:
    """What each backend says about itself, each from its own process: its reason where it cannot run."""
    lanes = [_Lane(backend, backend.modes[0], fair_threads(1)) for backend in backends]
    with ThreadPoolExecutor(max(1, len(lanes))) as pool:
        try:
            said = list(pool.map(_Lane.greet, lanes))
        finally:
            for lane in lanes:
                lane.close()
    for lane in lanes:
        lane.drop()
    return {lane.backend.name: words for lane, words in zip(lanes, said, strict=True)}


def run(
    cases: Sequence[Judged],
    backends: Sequence[Backend],
    *,
    timeout: float,
    progress: Progress = lambda backend, doing: None,
) -> Run:
    """Judge every case on every backend in each of its modes.

    Arguments:
        timeout: seconds for one call; a case with its transforms makes some thirty.
        progress: told which call of which case is about to be made, and "" when a verdict has been made.

    Returns:
        The verdicts in the order of cases, backends and modes. Ctrl-C ends the processes and returns what there
        is, with `complete` False.

    Raises:
        BackendMissing: a backend cannot run here; nothing is judged.
    """
    with tempfile.TemporaryDirectory(prefix="crosscheck-") as folder:
        crew = _Crew(cases, backends, timeout, progress, Path(folder))
        try:
            return crew.work()
        finally:
            crew.dismiss()


class _Crew:
    """The threads of one run, and the queue on which they report to the main thread."""

    def __init__(
        self,
        cases: Sequence[Judged],
        backends: Sequence[Backend],
        timeout: float,
        progress: Progress,
        folder: Path,
    ) -> None:
        self.cases, self.timeout, self.progress, self.folder = cases, timeout, progress, folder
        places = [(backend, mode) for backend in backends for mode in backend.modes]
        self.lanes = [_Lane(backend, mode, fair_threads(len(places))) for backend, mode in places]
        self.expected: list[Future[Files]] = [Future() for _ in cases]
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.go, self.stop = threading.Event(), threading.Event()
        self.threads = [threading.Thread(target=self._compute, daemon=True)]
        self.threads += [threading.Thread(target=self._drive, args=(lane,), daemon=True) for lane in self.lanes]

    def work(self) -> Run:
        result = Run(due=len(self.lanes) * len(self.cases))
        try:
            for thread in self.threads:
                thread.start()
            said = dict(self._next() for _ in self.lanes)
            result.environments = {lane.backend.name: said[lane] for lane in reversed(self.lanes)}
            result.environments = dict(reversed(result.environments.items()))
            reasons = {lane.backend.name: words["reason"] for lane, words in said.items() if words["reason"]}
            if reasons:
                raise BackendMissing({name: reasons[name] for name in result.environments if name in reasons})
            self.go.set()
            while len(result.verdicts) < result.due:
                result.verdicts.append(self._next())
        except KeyboardInterrupt:
            result.complete = False
        places = [(case.id, lane.backend.name, lane.mode) for case in self.cases for lane in self.lanes]
        order = {place: i for i, place in enumerate(places)}
        result.verdicts.sort(key=lambda verdict: order[verdict.case, verdict.backend, verdict.mode])
        return result

    def _next(self) -> Any:
        event = self.events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    def dismiss(self) -> None:
        self.stop.set()
        self.go.set()
        for future in self.expected:
            future.cancel()
        for lane in self.lanes:
            lane.close()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()
        for lane in self.lanes:
            lane.drop()

    def _compute(self) -> None:
        """What the contract gives for each case, in order, as files of unsigned integers."""
        self.go.wait()
        for i, (case, future) in enumerate(zip(self.cases, self.expected, strict=True)):
            if self.stop.is_set() or not future.set_running_or_notify_cancel():
                return
            try:
                answer = expected_answer(case)
                gradients = {name: self._store(f"{i}-{name}", array) for name, array in answer.gradients.items()}
                future.set_result({"result": self._store(str(i), answer.result), "gradients": gradients})
            except Exception as error:  # becomes the verdict of this case on every backend
                future.set_exception(error)

    def _store(self, name: str, array: NDArray[Any]) -> tuple[str, str]:
        path = self.folder / f"{name}.npy"
        return str(path), store_array(path, array)

    def _drive(self, lane: "_Lane") -> None:
        try:
            self.events.put((lane, lane.greet()))
            self.go.wait()
            for case, future in zip(self.cases, self.expected, strict=True):
                if self.stop.is_set():
                    return
                self.events.put(lane.judge(case, future, self.timeout, self.progress))
                self.progress(lane.backend.name, "")
        except CancelledError:
            return
        except BaseException as error:  # a fault of this program: the main thread raises it
            self.events.put(error)


class _Lane:
    """A backend in one mode, and its present process."""

    def __init__(self, backend: Backend, mode: str, threads: int) -> None:
        self.backend, self.mode, self.threads = backend, mode, threads
        self.process: WorkerProcess | None = None
        self.deaths, self.closed = 0, False
        self.implementations: dict[str, str] = {}
        self.lock = threading.Lock()

    def greet(self) -> dict[str, Any]:
        """Start a process; what it says, or the reason why it says nothing."""
        with self.lock:
            if self.closed:
                return {"reason": "the run was stopped"}
            self.process = WorkerProcess(self.backend, self.threads)
        said = self.process.greet()
        said["modes"] = list(self.backend.modes)
        self.implementations = said.get("implementations", {})
        return said

    def judge(self, case: Judged, expected: "Future[Files]", timeout: float, progress: Progress) -> Verdict:
        doing = "starting"

        def begin(what: str) -> None:
            nonlocal doing
            doing = what
            progress(self.backend.name, f"{case.id} {self.mode}: {what}")

        try:
            effort = Effort(
                self.mode in self.backend.compiling,
                case.thorough,
                not case.shared_out or self.backend.takes_gradients(self.mode, case.seed),
            )
            request = {"case": case.to_json(), "mode": self.mode, "effort": asdict(effort)}
            request["expected"] = expected.result()
        except CancelledError:
            raise
        except Exception as error:  # stored there by the thread that computes the contract
            return self._failed(case, "raised", f"the contract itself raised {type(error).__name__}: {error}")
        if self.deaths >= LIVES:
            reason = f"{LIVES} processes in a row ended or hung before this case"
            return self._failed(case, "not run", reason)
        try:
            if self.process is None and (reason := self.greet()["reason"]):
                raise WorkerDied(reason)
            assert self.process is not None
            answer = self.process.ask(request, timeout, begin)
        except (WorkerDied, WorkerTimedOut) as error:
            self.deaths += 1
            self.drop()
            status = "crashed" if isinstance(error, WorkerDied) else "timed out"
            return self._failed(case, status, f"{error}, in: {doing}")
        self.deaths = 0
        if "raised" in answer:
            return self._failed(case, "raised", f"{answer['raised']}, in: {doing}")
        return Verdict.from_json(answer["verdict"])

    def _failed(self, case: Judged, status: str, message: str) -> Verdict:
        implementation = self.implementations.get(case.op.removesuffix("_fp32"), "unknown")
        return Verdict(case.id, case.op, self.backend.name, self.mode, implementation, status, message)

    def drop(self) -> None:
        with self.lock:
            if self.process is not None:
                self.process.close()
                self.process = None

    def close(self) -> None:
        """End the process; a thread that waits for its answer hears that it died."""
        with self.lock:
            self.closed = True
            if self.process is not None:
                self.process.kill()
