"""Recording a backend: its process answers one case after the other, and the answers become a golden."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosscheck.golden_write import SAMPLE_ROWS, WHOLE_UP_TO, Answered, check_target, made_by, write_golden
from crosscheck.judge import Judged
from crosscheck.judge_gradient import gradient_call
from crosscheck.process import WorkerDied, WorkerProcess, WorkerTimedOut, stored_array
from crosscheck.registry import Backend
from crosscheck.runner import BackendMissing
from crosscheck.threads import fair_threads
from crosscheck.verdict import NOT_OFFERED, counted

__all__ = ["NoAnswer", "Recording", "record"]


class NoAnswer(Exception):
    """The backend raised, crashed or ran out of time, for the case that the text names, or it offers no case."""


@dataclass(frozen=True)
class Recording:
    """What was written.

    Arguments:
        cases: how many were recorded.
        size: of the golden, in bytes.
        notes: sentences on what a candidate does not offer.
    """

    cases: int
    size: int
    notes: list[str]


def record(
    folder: Path,
    cases: Sequence[Judged],
    backend: Backend,
    mode: str,
    *,
    timeout: float,
    gradients: bool = False,
    candidate: str = "",
    whole_up_to: int = WHOLE_UP_TO,
    sample_rows: int = SAMPLE_ROWS,
    force: bool = False,
    heard: Callable[[str], None] = lambda case_id: None,
) -> Recording:
    """Run each case once and write the golden.

    Arguments:
        timeout: seconds for one call: that of a case, or of its gradients.
        candidate: as it was typed, where the backend is one.
        heard: told the id of the case that is about to run.

    Raises:
        BackendMissing, NoAnswer, GoldenError: nothing was written.
    """
    check_target(folder, force)
    threads = fair_threads(1)
    process = WorkerProcess(backend, threads)
    try:
        said = process.greet()
        if said["reason"] is not None:
            raise BackendMissing({backend.name: said["reason"]})
        maker = made_by(backend.name, mode, said, {**os.environ, **backend.environment(threads)})
        maker |= {"candidate": candidate} if candidate else {}
        with tempfile.TemporaryDirectory(prefix="crosscheck-") as scratch:
            answers = _Answers(process, mode, timeout, gradients, Path(scratch))
            size = write_golden(
                folder, answers.of(cases, heard), maker, whole_up_to=whole_up_to, sample_rows=sample_rows,
                force=force, not_offered=answers.not_offered,
            )  # fmt: skip
        return Recording(len(cases) - len(answers.not_offered), size, answers.notes())
    finally:
        process.close()


class _Answers:
    """A backend's process, asked for one case after the other."""

    def __init__(self, process: WorkerProcess, mode: str, timeout: float, gradients: bool, scratch: Path) -> None:
        self.process, self.timeout, self.scratch = process, timeout, scratch
        self.request = {"record": str(scratch), "mode": mode, "gradients": gradients}
        self.not_offered: dict[str, str] = {}
        self.said: dict[str, list[str]] = {}  # what there is to say of cases: their ids

    def notes(self) -> list[str]:
        return [f"{ids[0] if len(ids) == 1 else counted(len(ids), 'case')} {text}" for text, ids in self.said.items()]

    def of(self, cases: Sequence[Judged], heard: Callable[[str], None]) -> Iterator[Answered]:
        for case in cases:
            heard(case.id)
            answer = self._ask(case)
            if NOT_OFFERED in answer:
                self.not_offered[case.id] = answer[NOT_OFFERED]
                self._say(f"left out: {answer[NOT_OFFERED]}", case)
            else:
                yield self._answered(case, answer["recorded"])
        if len(self.not_offered) == len(cases):
            raise NoAnswer("; ".join(self.notes()))

    def _ask(self, case: Judged) -> dict[str, Any]:
        try:
            answer = self.process.ask({**self.request, "case": case.to_json()}, self.timeout)
        except (WorkerDied, WorkerTimedOut) as error:
            raise NoAnswer(f"{case.id}: {error}") from error
        if "raised" in answer:
            raise NoAnswer(f"{case.id}: raised {answer['raised']}")
        return answer

    def _answered(self, case: Judged, said: Mapping[str, Any]) -> Answered:
        outputs = {}
        for name, dtype in said["arrays"].items():
            path = self.scratch / f"{name}.npy"
            outputs[name] = stored_array(path, dtype)
            path.unlink()
        inputs = case.inputs()
        if len(outputs) > 1:
            inputs = {**inputs, "grad": gradient_call(case.op, inputs, case.seed)["grad"]}
        if said["gradients"].startswith(NOT_OFFERED):
            self._say(f"without gradients, {said['gradients']}", case)
        if said["untold"]:
            self._say(f"cannot be held against the contract: {said['untold']}", case)
        return Answered(case, inputs, outputs, said["implementation"], said["gradients"], said["untold"])

    def _say(self, text: str, case: Judged) -> None:
        self.said.setdefault(text, []).append(case.id)
