"""A backend in one mode: the cases that are left for it, and the processes that take them one after the other."""

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import asdict
from typing import Any, Protocol

from crosscheck.judge import Effort, Judged
from crosscheck.process import WorkerDied, WorkerProcess, WorkerTimedOut
from crosscheck.registry import FEW, Backend
from crosscheck.verdict import Verdict

__all__ = ["LIVES", "Files", "Hand", "Lane", "Ledger", "Progress"]

LIVES = 3
Progress = Callable[[str, str], None]  # backend, what it does now
Files = dict[str, Any]  # "result" and "gradients" of the contract: a path and a dtype each; a digest of the "inputs"


class Ledger(Protocol):
    """Keeps what verdicts rest on; `crosscheck.resume.Ledger` is the one."""

    def enter(self, backend: Backend, threads: int, said: dict[str, Any]) -> str:
        """The name of what the verdicts of a process rest on, by what it said when it started."""

    @property
    def bases(self) -> dict[str, dict[str, Any]]:
        """By name."""

    def add_sources(self, basis: str, sources: dict[str, str]) -> None:
        """Files that the process has imported since."""

    def keeps(self, case: Judged, backend: str, mode: str, effort: dict[str, Any], basis: str) -> Verdict | None:
        """An earlier verdict that rests on the same."""


class Lane:
    """What the processes of a backend in one mode share.

    Arguments:
        threads: of each process.
        cases: how many the run has.
    """

    def __init__(self, backend: Backend, mode: str, threads: int, cases: int = 0) -> None:
        self.backend, self.mode, self.threads, self.cases = backend, mode, threads, cases
        self.todo: deque[int] = deque()
        self.dead: set[int] = set()  # the numbers of the cases over which a process ended or hung
        self.implementations: dict[str, str] = {}
        self.basis = ""

    def effort(self, case: Judged) -> Effort:
        takes = not case.shared_out or self.backend.takes_gradients(self.mode, case.seed, self.cases)
        few = 0 < self.cases <= FEW
        thorough = few or (case.thorough and self.backend.is_thorough(self.mode, case.seed))
        compiles = self.mode in self.backend.compiling
        divided = few and case.divided if compiles else few or case.divided
        return Effort(compiles, thorough, takes, divided)

    @property
    def given_up(self) -> float:
        """The number of the first case before which processes ended or hung over LIVES cases in a row.

        In the order of cases and not of time, so that it is the same however many processes there are.
        """
        in_a_row, before = 0, -1
        for number in sorted(self.dead):
            in_a_row = in_a_row + 1 if number == before + 1 else 1
            if in_a_row == LIVES:
                return number + 1
            before = number
        return math.inf

    def not_run(self, case: Judged) -> Verdict:
        return self.failed(case, "not run", f"{LIVES} processes in a row ended or hung before this case")

    def failed(self, case: Judged, status: str, message: str) -> Verdict:
        implementation = self.implementations.get(case.op.removesuffix("_fp32"), "unknown")
        return Verdict(case.id, case.op, self.backend.name, self.mode, implementation, status, message)


class Hand:
    """A process of a lane, started anew after it has ended."""

    def __init__(self, lane: Lane, ledger: Ledger | None = None) -> None:
        self.lane, self.ledger = lane, ledger
        self.process: WorkerProcess | None = None
        self.closed = False
        self.basis = ""
        self.lock = threading.Lock()

    def greet(self) -> dict[str, Any]:
        """Start a process; what it says, or the reason why it says nothing."""
        lane = self.lane
        with self.lock:
            if self.closed:
                return {"reason": "the run was stopped"}
            self.process = WorkerProcess(lane.backend, lane.threads)
        said = self.process.greet()
        if self.ledger is not None and said["reason"] is None:
            self.basis = self.ledger.enter(lane.backend, lane.threads, said)
        said.pop("sources", None)
        said.pop("packages", None)
        said["modes"] = list(lane.backend.modes)
        lane.implementations = said.get("implementations", {})
        return said

    def judge(
        self, number: int, case: Judged, expected: "Future[Files]", timeout: float, progress: Progress
    ) -> Verdict:
        """The case, and its number among the cases, which decides whether the lane is given up."""
        lane = self.lane
        try:
            files = expected.result()
        except CancelledError:
            raise
        except Exception as error:  # stored there by the thread that computes the contract
            return lane.failed(case, "raised", f"the contract itself raised {type(error).__name__}: {error}")
        if number >= lane.given_up:
            return lane.not_run(case)
        effort = asdict(lane.effort(case))
        request = {"case": case.to_json(), "mode": lane.mode, "effort": effort, "expected": files}
        verdict = self._ask(case, request, timeout, progress)
        if verdict.status in ("crashed", "timed out"):
            lane.dead.add(number)
        verdict.basis, verdict.effort, verdict.inputs_digest = self.basis, effort, files["inputs"]
        return verdict

    def _ask(self, case: Judged, request: dict[str, Any], timeout: float, progress: Progress) -> Verdict:
        doing, lane = "starting", self.lane

        def begin(what: str) -> None:
            nonlocal doing
            doing = what
            progress(lane.backend.name, f"{case.id} {lane.mode}: {what}")

        try:
            if self.process is None and (reason := self.greet()["reason"]):
                raise WorkerDied(reason)
            assert self.process is not None
            answer = self.process.ask(request, timeout, begin)
        except (WorkerDied, WorkerTimedOut) as error:
            self.drop()
            status = "crashed" if isinstance(error, WorkerDied) else "timed out"
            return lane.failed(case, status, f"{error}, in: {doing}")
        if self.ledger is not None and "sources" in answer:
            self.ledger.add_sources(self.basis, answer["sources"])
        if "raised" in answer:
            return lane.failed(case, "raised", f"{answer['raised']}, in: {doing}")
        return Verdict.from_json(answer["verdict"])

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
