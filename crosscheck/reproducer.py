"""Reproducers: for the first failure of each kind of a backend or candidate, its inputs made small, and a script.

A reproducer is a folder with a golden (`crosscheck golden verify` reads it: the outputs are the contract's) and beside
its files `reproduce.py`. Failures are shrunk in a process of the backend's own: one that crashes, hangs or runs out of
time ends the shrinking of its failure, with what was found. A script that was written is run, to see that it fails.
"""

import itertools
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes

from crosscheck.bench import digest_of_inputs
from crosscheck.calls import contract_result
from crosscheck.cases import Inputs
from crosscheck.failing import Failing, failings, trial_of
from crosscheck.golden_answer import ALL_INPUTS
from crosscheck.golden_write import Answered, made_by, write_golden
from crosscheck.gradients import contract_gradients
from crosscheck.invariance import Trial
from crosscheck.judge import Judged
from crosscheck.lanes import Progress
from crosscheck.process import WorkerDied, WorkerProcess, WorkerTimedOut, stored_array
from crosscheck.registry import Backend
from crosscheck.reproducer_report import Reproducer
from crosscheck.reproducer_script import CALL, Target, script
from crosscheck.runner import Run
from crosscheck.shrink import sizes
from crosscheck.threads import fair_threads
from crosscheck.verdict import Verdict

__all__ = ["MOST_OF_A_BACKEND", "first_failures", "reproduce"]

MOST_OF_A_BACKEND = 6
SCRIPT = "reproduce.py"
LARGE = 2**26  # bytes
START = 60.0  # seconds that a script may take for its imports
GRACE = 30.0  # seconds beyond its time until a process that shrinks is ended
_FRAMEWORKS = {"TorchAdapter": "torch", "TorchCandidate": "torch", "JaxAdapter": "jax", "JaxCandidate": "jax"}


@dataclass(frozen=True)
class _Found:
    """Smaller inputs, and the arguments that what fails takes by name."""

    inputs: Inputs
    takes: tuple[str, ...]


def reproduce(
    run: Run,
    cases: Sequence[Judged],
    backends: Sequence[Backend],
    folder: Path,
    *,
    timeout: float,
    seconds: float,
    progress: Progress = lambda backend, doing: None,
) -> None:
    """Shrink the first failure of each kind of each backend, and enter what was written in its verdict.

    Arguments:
        folder: for the reproducers, made if it is missing.
        timeout: seconds for one call.
        seconds: for all the shrinking.
        progress: told what each backend does.

    Raises:
        OSError, GoldenError: a reproducer cannot be written.
    """
    by_id = {case.id: case for case in cases}
    left = sum(len(first_failures(run.verdicts, backend)) for backend in backends)
    for backend in backends:
        threads = run.environments.get(backend.name, {}).get("threads", fair_threads(1))
        counts = Counter(failing.kind for _, failing in _failures(run.verdicts, backend))
        with _Shrinker(backend, threads, timeout, progress) as shrinker:
            for verdict, failing in first_failures(run.verdicts, backend):
                made = _made(shrinker, verdict, by_id[verdict.case], failing, folder, seconds / left)
                verdict.reproducers.append(asdict(replace(made, more=counts[failing.kind] - 1)))
                progress(backend.name, "")
                left, seconds = left - 1, max(0.0, seconds - shrinker.took)
        for verdict, failing in _firsts(run.verdicts, backend)[MOST_OF_A_BACKEND:]:
            note = f"no reproducer: a backend or candidate gets {MOST_OF_A_BACKEND} at most"
            made = Reproducer(failing.kind, failing.title, note=note, more=counts[failing.kind] - 1)
            verdict.reproducers.append(asdict(made))


def first_failures(verdicts: Sequence[Verdict], backend: Backend) -> list[tuple[Verdict, Failing]]:
    """The first of each kind, no more than MOST_OF_A_BACKEND."""
    return _firsts(verdicts, backend)[:MOST_OF_A_BACKEND]


def _firsts(verdicts: Sequence[Verdict], backend: Backend) -> list[tuple[Verdict, Failing]]:
    found: dict[str, tuple[Verdict, Failing]] = {}
    for verdict, failing in _failures(verdicts, backend):
        found.setdefault(failing.kind, (verdict, failing))
    return list(found.values())


def _failures(verdicts: Sequence[Verdict], backend: Backend) -> Iterator[tuple[Verdict, Failing]]:
    for verdict in verdicts:
        if verdict.backend == backend.name:
            yield from ((verdict, failing) for failing in failings(verdict))


# Shrinking ---------------------------------------------------------------------------------------------
class _Shrinker:
    """A backend's process, started when it is needed, and anew after it has ended."""

    def __init__(self, backend: Backend, threads: int, timeout: float, progress: Progress) -> None:
        self.backend, self.threads, self.timeout, self.progress = backend, threads, timeout, progress
        self.process: WorkerProcess | None = None
        self.took = 0.0  # seconds, of the last shrinking

    def __enter__(self) -> "_Shrinker":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None

    def shrink(self, case: Judged, mode: str, failing: Failing, seconds: float) -> tuple[_Found | None, str]:
        """The smallest that was found, if any, and why nothing more was, where something was in the way."""
        last: dict[str, Any] = {}
        self.took = 0.0
        with tempfile.TemporaryDirectory(prefix="crosscheck-") as folder:
            request = {"case": case.to_json(), "mode": mode}
            request["shrink"] = {"failing": asdict(failing), "seconds": seconds, "folder": folder}
            ended = self._ask(request, seconds, last)
            if not last:
                return None, ended
            inputs = {name: stored_array(*file) for name, file in last["inputs"].items()}
        return _Found(inputs, tuple(last["takes"])), ended

    def _ask(self, request: dict[str, Any], seconds: float, last: dict[str, Any]) -> str:
        try:
            if self.process is None:
                self.process = WorkerProcess(self.backend, self.threads)
                if reason := self.process.greet()["reason"]:
                    raise WorkerDied(reason)
            started = time.monotonic()
            try:
                answer = self.process.ask(
                    request, self.timeout, lambda doing: self.progress(self.backend.name, doing),
                    on_found=last.update, most=seconds + GRACE,
                )  # fmt: skip
            finally:
                self.took = time.monotonic() - started
        except (WorkerDied, WorkerTimedOut) as error:
            self.close()
            return str(error)
        return str(answer.get("raised", ""))


# Writing -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Stored:
    """A call in the golden of a reproducer."""

    id: str
    op: str
    digits: int | None
    of: str
    seed: int = 0
    thorough: bool = False
    divided: bool = False
    shared_out: bool = False

    def inputs(self) -> Inputs:
        raise NotImplementedError("they are stored whole, and drawn from nothing")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "shrunk", "of": self.of}


def _made(
    shrinker: _Shrinker, verdict: Verdict, case: Judged, failing: Failing, folder: Path, seconds: float
) -> Reproducer:
    backend, kind, title = shrinker.backend, failing.kind, failing.title
    framework = _FRAMEWORKS.get(backend.factory.partition(":")[2])
    if framework is None:
        note = f"no reproducer: {backend.name} is neither a candidate nor a backend of torch or JAX"
        return Reproducer(kind, title, note=note)
    found, ended = shrinker.shrink(case, verdict.mode, failing, seconds)
    if found is None:
        return Reproducer(kind, title, note=f"no reproducer: {ended or 'in a process of its own it does not fail'}")
    shrunk = sizes(found.inputs)
    if sum(array.nbytes for array in found.inputs.values()) > LARGE:
        note = f"no reproducer: more than {LARGE // 2**20} MB, and there was no time to shrink it further"
        return Reproducer(kind, title, shrunk, note=note)
    target = Target(
        f"{backend.name}, {verdict.mode}", framework, backend.target or f"rlk_{framework}:{case.op}", backend.device,
        verdict.mode != "eager", found.takes, case.digits,
    )  # fmt: skip
    path = _write(_unused(folder, f"{backend.name}-{kind}"), case, failing, found.inputs, target)
    shrinker.progress(backend.name, f"running {path}")
    problem = _problem(path, failing.error or "BitsDiffer", shrinker.timeout)
    notes = [f"the shrinking ended early: {ended}" if ended else "", problem]
    return Reproducer(kind, title, shrunk, str(path), not problem, "; ".join(filter(None, notes)))


def _unused(folder: Path, name: str) -> Path:
    """A place for a reproducer: names of backends have hyphens, too, so two of them may give the same."""
    names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    return next(folder / name for name in names if not (folder / name).exists())


def _write(place: Path, case: Judged, failing: Failing, inputs: Inputs, target: Target) -> Path:
    """The golden, and beside its files the script."""
    trial = trial_of(failing, inputs, case.seed) if failing.trial and failing.kind != "bad-id" else None
    calls = _calls(inputs, trial)
    answers = {name: _answered(case, name, arrays) for name, arrays in calls}
    place.parent.mkdir(parents=True, exist_ok=True)
    write_golden(place, answers.values(), _maker(), whole_up_to=LARGE)
    files = [name for name, _ in calls[1:]]
    path = place / SCRIPT
    path.write_text(script(target, failing, inputs, f"shrunk to {sizes(inputs)}", trial, files), encoding="utf-8")
    return path


def _calls(inputs: Inputs, trial: Trial[Any] | None) -> list[tuple[str, Inputs]]:
    """The call, and then those of the transform, each with the name of its file."""
    calls = [(CALL, inputs)]
    for i, other in enumerate(trial.calls if trial is not None else ()):
        name = "transformed" if trial is not None and len(trial.calls) == 1 else f"transformed_{i + 1}"
        calls.append((CALL if digest_of_inputs(other) == digest_of_inputs(inputs) else name, other))
    return calls


def _answered(case: Judged, name: str, inputs: Inputs) -> Answered:
    """With the contract's answer."""
    stored = _Stored(name, case.op, case.digits, case.id)
    arguments = {argument: array for argument, array in inputs.items() if argument != "grad"}
    outputs = {"result": contract_result(case.op, arguments, case.digits)}
    if "grad" in inputs:
        gradients = contract_gradients(arguments, inputs["grad"], case.digits)
        outputs |= {f"grad.{argument}": array for argument, array in gradients.items()}
    return Answered(stored, inputs, outputs, "contract", ALL_INPUTS if "grad" in inputs else "")


def _maker() -> dict[str, Any]:
    versions = {"python": platform.python_version(), "ml_dtypes": ml_dtypes.__version__}
    return made_by("numpy", "eager", {"device": "cpu", "versions": versions, "threads": fair_threads(1)}, os.environ)


def _problem(path: Path, error: str, timeout: float) -> str:
    """Run a script as its reader would; what is wrong, in words, where it does not end with this error."""
    places = [entry or str(Path.cwd()) for entry in sys.path]
    try:
        done = subprocess.run(
            [sys.executable, str(path)], env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            timeout=timeout + START, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"alone in a process its script does not end within {timeout + START:g} s"
    said = done.stderr.strip().splitlines()
    types = {line.partition(":")[0].rpartition(".")[2] for line in said}  # of a traceback's last line the exception's
    if done.returncode == 1 and error in types:
        return ""
    return f"alone in a process its script ends with {done.returncode}" + (f": {said[-1]}" if said else "")
