"""Run cases on backends, each backend in each mode in processes of its own.

Threads ask the processes for one verdict after the other. A process that crashes, hangs or raises costs the verdict
of that case; the next case gets a fresh process, until LIVES of them have ended one after another.
"""

import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from crosscheck.answers import Answers
from crosscheck.controls import Caught
from crosscheck.judge import Judged
from crosscheck.lanes import LIVES, Hand, Lane, Ledger, Progress
from crosscheck.registry import Backend
from crosscheck.threads import fair_threads
from crosscheck.verdict import NOT_OFFERED, Verdict, worst

__all__ = ["LIVES", "BackendMissing", "Progress", "Run", "describe", "run"]

PAUSE = 2.0  # seconds between two savings of the verdicts so far
Save = Callable[["Run"], None]


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
        bases: what verdicts rest on, by the names that they have for it.
    """

    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    complete: bool = True
    due: int = 0
    candidates: dict[str, list[str]] = field(default_factory=dict)
    controls: list[Caught] = field(default_factory=list)
    bases: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """ "interrupted", else the worst of the verdicts' outcomes; "failed" at least where a control escaped."""
        if not self.complete:
            return "interrupted"
        outcomes = [verdict.outcome for verdict in self.verdicts if verdict.outcome != NOT_OFFERED]
        judged = [verdict for verdict in self.verdicts if verdict.status == "judged"]
        if (self.verdicts and not outcomes) or (judged and not any(verdict.compared for verdict in judged)):
            outcomes.append("incomplete")  # nothing was judged, or nothing held against the contract
        return worst([*outcomes, *("failed" for control in self.controls if not control.caught)])


def describe(backends: Sequence[Backend]) -> dict[str, dict[str, Any]]:
    """What each backend says about itself, each from its own process: its reason where it cannot run."""
    hands = [Hand(Lane(backend, backend.modes[0], fair_threads(1))) for backend in backends]
    with ThreadPoolExecutor(max(1, len(hands))) as pool:
        try:
            said = list(pool.map(Hand.greet, hands))
        finally:
            for hand in hands:
                hand.close()
    for hand in hands:
        hand.drop()
    return {hand.lane.backend.name: words for hand, words in zip(hands, said, strict=True)}


def run(
    cases: Sequence[Judged],
    backends: Sequence[Backend],
    *,
    timeout: float,
    progress: Progress = lambda backend, doing: None,
    jobs: int | None = None,
    gpu_jobs: int = 1,
    ledger: Ledger | None = None,
    save: Save | None = None,
) -> Run:
    """Judge every case on every backend in each of its modes.

    Arguments:
        timeout: seconds for one call; a case with its transforms makes some thirty.
        progress: told which call of which case is about to be made, and "" when a verdict has been made.
        jobs: how many processes judge at the same time; None is one for each backend in each mode. No verdict
            depends on it, and neither do the threads that a process has.
        gpu_jobs: how many of them may share a backend's mode on a GPU.
        ledger: keeps what verdicts rest on, and gives earlier ones that rest on the same.
        save: called with the verdicts so far, now and then and at the end.

    Returns:
        The verdicts in the order of cases, backends and modes. Ctrl-C ends the processes and returns what there
        is, with `complete` False.

    Raises:
        BackendMissing: a backend cannot run here; nothing is judged.
    """
    with tempfile.TemporaryDirectory(prefix="crosscheck-") as folder:
        crew = _Crew(cases, backends, timeout, progress, Path(folder), ledger)
        crew.share_out(jobs, gpu_jobs)
        try:
            return crew.work(save)
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
        ledger: Ledger | None,
    ) -> None:
        self.cases, self.timeout, self.progress, self.ledger = cases, timeout, progress, ledger
        places = [(backend, mode) for backend in backends for mode in backend.modes]
        self.lanes = [Lane(backend, mode, fair_threads(len(places)), len(cases)) for backend, mode in places]
        self.answers, self.wanted = Answers(cases, folder), list[int]()
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.go, self.stop = threading.Event(), threading.Event()

    def share_out(self, jobs: int | None, gpu_jobs: int) -> None:
        """Give each lane its processes, and make the threads, each of which serves one process after the other.

        Where there are fewer threads than lanes, a lane's process starts at its turn, and before it one of each
        backend to greet.
        """
        jobs = len(self.lanes) if jobs is None else jobs
        counts = _processes(self.lanes, jobs, gpu_jobs)
        firsts = [Hand(lane, self.ledger) for lane in self.lanes]
        more = [Hand(lane, self.ledger) for lane, n in zip(self.lanes, counts, strict=True) for _ in range(n - 1)]
        self.hands, self.in_turn = [*firsts, *more], jobs < len(self.lanes)
        one_each = {hand.lane.backend.name: hand for hand in reversed(firsts)}
        self.greeting = [hand for hand in firsts if not self.in_turn or one_each[hand.lane.backend.name] is hand]
        queues = iter(self.greeting), iter(self.hands)  # a thread takes the next of a list
        self.threads = [
            threading.Thread(target=self._drive, args=queues, daemon=True) for _ in range(min(jobs, len(self.hands)))
        ]
        self.threads.append(threading.Thread(target=self._compute, daemon=True))

    def work(self, save: Save | None) -> Run:
        result = Run(due=len(self.lanes) * len(self.cases))
        try:
            for thread in self.threads:
                thread.start()
            result.environments = self._environments(dict(self._next() for _ in self.greeting))
            self._keep(result)
            self.go.set()
            self._collect(result, save)
        except KeyboardInterrupt:
            result.complete = False
        self._settle(result)
        return result

    def _environments(self, said: Mapping[Lane, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """By backend; what its processes are to be told is told to its lanes."""
        reasons = {lane.backend.name: words["reason"] for lane, words in said.items() if words["reason"]}
        ops = {case.op.removesuffix("_fp32") for case in self.cases}
        found: dict[str, dict[str, Any]] = {}
        for hand in self.greeting:
            lane = hand.lane
            runs = {op: what for op, what in said[lane].get("implementations", {}).items() if op in ops}
            found.setdefault(lane.backend.name, {**said[lane], "implementations": runs})
            for other in self.lanes:
                if other.backend is lane.backend and not other.basis:
                    other.basis, other.implementations = hand.basis, lane.implementations
        if reasons:
            raise BackendMissing({name: reasons[name] for name in found if name in reasons})
        return found

    def _keep(self, result: Run) -> None:
        """Take the earlier verdicts that may be kept, and leave the other cases to the lanes."""
        for lane in self.lanes:
            for i, case in enumerate(self.cases):
                effort, place = asdict(lane.effort(case)), (lane.backend.name, lane.mode)
                kept = self.ledger.keeps(case, *place, effort, lane.basis) if self.ledger is not None else None
                if kept is None:
                    lane.todo.append(i)
                else:
                    result.verdicts.append(kept)
                    self.progress(lane.backend.name, "")
        self.wanted = sorted({i for lane in self.lanes for i in lane.todo})

    def _collect(self, result: Run, save: Save | None) -> None:
        """Take what the threads report, and save it PAUSE after the last time, or more where saving takes long."""
        unsaved, due = bool(result.verdicts), 0.0
        while len(result.verdicts) < result.due or unsaved:
            now = time.monotonic()
            if unsaved and (len(result.verdicts) == result.due or now >= due):
                self._save(result, save)
                unsaved, due = False, time.monotonic() + max(PAUSE, 20 * (time.monotonic() - now))
                continue
            verdict = self._next(due - now if unsaved else None)
            if verdict is not None:
                result.verdicts.append(verdict)
                unsaved = True

    def _save(self, result: Run, save: Save | None) -> None:
        if save is not None:
            self._settle(result)
            save(replace(result, verdicts=list(result.verdicts), complete=False))

    def _settle(self, result: Run) -> None:
        """Order the verdicts; of a lane that was given up, what one of several processes judged after is not kept."""
        cases = {case.id: (i, case) for i, case in enumerate(self.cases)}
        lanes = {(lane.backend.name, lane.mode): (i, lane) for i, lane in enumerate(self.lanes)}
        for n, verdict in enumerate(result.verdicts):
            (i, case), (_, lane) = cases[verdict.case], lanes[verdict.backend, verdict.mode]
            if verdict.status != "not run" and i >= lane.given_up:
                result.verdicts[n] = lane.not_run(case)
        result.verdicts.sort(key=lambda v: (cases[v.case][0], lanes[v.backend, v.mode][0]))
        if self.ledger is not None:
            result.bases = self.ledger.bases

    def _next(self, timeout: float | None = None) -> Any:
        """What a thread reports next; None where none does in time."""
        try:
            event = self.events.get(timeout=None if timeout is None else max(0.0, timeout))
        except queue.Empty:
            return None
        if isinstance(event, BaseException):
            raise event
        return event

    def dismiss(self) -> None:
        self.stop.set()
        self.answers.stop()
        self.go.set()
        for hand in self.hands:
            hand.close()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()
        for hand in self.hands:
            hand.drop()

    def _compute(self) -> None:
        self.go.wait()
        self.answers.compute(self.wanted)

    def _drive(self, to_greet: Iterator[Hand], to_serve: Iterator[Hand]) -> None:
        try:
            for hand in to_greet:
                self.events.put((hand.lane, hand.greet()))
                if self.in_turn:
                    hand.drop()
            self.go.wait()
            for hand in to_serve:
                self._serve(hand)
        except CancelledError:
            return
        except BaseException as error:  # a fault of this program: the main thread raises it
            self.events.put(error)

    def _serve(self, hand: Hand) -> None:
        """Every case that is left to the lane, unless another of its processes takes it."""
        while not self.stop.is_set():
            try:
                i = hand.lane.todo.popleft()
            except IndexError:
                hand.drop()
                return
            self.events.put(hand.judge(i, self.cases[i], self.answers.futures[i], self.timeout, self.progress))
            self.progress(hand.lane.backend.name, "")


def _processes(lanes: Sequence[Lane], jobs: int, gpu_jobs: int) -> list[int]:
    """How many each lane gets: one, and of those that are left one at a time, lanes that compile first."""
    counts, spare = [1] * len(lanes), jobs - len(lanes)
    most = [lane.cases if lane.backend.device == "cpu" else min(lane.cases, gpu_jobs) for lane in lanes]
    order = sorted(range(len(lanes)), key=lambda i: lanes[i].mode not in lanes[i].backend.compiling)
    while spare > 0 and any(counts[i] < most[i] for i in order):
        for i in order:
            if spare > 0 and counts[i] < most[i]:
                counts[i], spare = counts[i] + 1, spare - 1
    return counts
