"""Recording a backend: its process answers one case after the other, and the answers become a golden."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from crosscheck.golden_write import SAMPLE_ROWS, WHOLE_UP_TO, Answered, check_target, made_by, write_golden
from crosscheck.judge import Judged
from crosscheck.process import WorkerDied, WorkerProcess, WorkerTimedOut, stored_array
from crosscheck.registry import Backend
from crosscheck.runner import BackendMissing, fair_threads

__all__ = ["NoAnswer", "record"]


class NoAnswer(Exception):
    """The backend raised, crashed or ran out of time; the text says for which case."""


def record(
    folder: Path,
    cases: Sequence[Judged],
    backend: Backend,
    mode: str,
    *,
    timeout: float,
    whole_up_to: int = WHOLE_UP_TO,
    sample_rows: int = SAMPLE_ROWS,
    force: bool = False,
    heard: Callable[[str], None] = lambda case_id: None,
) -> int:
    """Run each case once and write the golden; returns its size in bytes.

    Arguments:
        timeout: seconds for one case.
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
        with tempfile.TemporaryDirectory(prefix="crosscheck-") as scratch:
            answers = _answers(process, cases, mode, timeout, Path(scratch), heard)
            return write_golden(
                folder, answers, maker, whole_up_to=whole_up_to, sample_rows=sample_rows, force=force
            )  # fmt: skip
    finally:
        process.close()


def _answers(
    process: WorkerProcess,
    cases: Sequence[Judged],
    mode: str,
    timeout: float,
    scratch: Path,
    heard: Callable[[str], None],
) -> Iterator[Answered]:
    for case in cases:
        heard(case.id)
        path = scratch / "result.npy"
        try:
            answer = process.ask({"record": str(path), "case": case.to_json(), "mode": mode}, timeout)
        except (WorkerDied, WorkerTimedOut) as error:
            raise NoAnswer(f"{case.id}: {error}") from error
        if "raised" in answer:
            raise NoAnswer(f"{case.id}: raised {answer['raised']}")
        said = answer["recorded"]
        result = stored_array(path, said["dtype"])
        yield Answered(case, case.inputs(), {"result": result}, said["implementation"])
        path.unlink()
