"""The options of `crosscheck run` on how it runs: in how many processes, from which report on, and with reproducers."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from crosscheck.cli_cases import Unusable
from crosscheck.cli_types import SECONDS
from crosscheck.goldens import GoldenError
from crosscheck.judge import Judged
from crosscheck.progress import shown
from crosscheck.registry import Backend
from crosscheck.reproducer import first_failures, reproduce
from crosscheck.resume import Ledger, ResumeError, read_report
from crosscheck.runner import BackendMissing, Run, run
from crosscheck.threads import ThreadsError

__all__ = ["RUNNING_OPTIONS", "Running", "read_running", "running_options"]

_PATH = click.Path(path_type=Path)
_OPTIONS = (
    click.option("--timeout", type=SECONDS, default=120.0, show_default=True,
                 help="Seconds for one call; a case makes some thirty."),
    click.option("--jobs", type=click.IntRange(1), metavar="N",
                 help="How many processes judge at the same time; one for each backend and mode where not given."),
    click.option("--gpu-jobs", type=click.IntRange(1), default=1, show_default=True, metavar="N",
                 help="How many of them may share one mode of a backend on a GPU."),
    click.option("--resume", "resume_path", type=_PATH, metavar="FILE",
                 help="Keep what still holds of an earlier run's JSON report, also of one that was interrupted."),
    click.option("--reproducers", "reproducers_folder", type=_PATH, metavar="DIR",
                 help="Make the first failure of each kind small, and write its inputs and a script; a new folder."),
    click.option("--shrink-seconds", type=SECONDS, default=60.0, show_default=True,
                 help="How long to make failures smaller, all of them together."),
)  # fmt: skip
# What a command that repeats one failure does not need.
RUNNING_OPTIONS = ("jobs", "gpu_jobs", "resume_path", "reproducers_folder", "shrink_seconds")
_NEEDS = {"gpu_jobs": ("jobs", "--jobs"), "shrink_seconds": ("reproducers_folder", "--reproducers")}
_NOT_LISTED = ("resume_path", "reproducers_folder")


def running_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Running:
    """What was typed."""

    timeout: float
    jobs: int | None
    gpu_jobs: int
    resume: Path | None
    reproducers: Path | None
    shrink_seconds: float

    def check(self) -> None:
        """Before the work: whether reproducers can be written. Leaves no trace.

        Raises:
            Unusable: one sentence.
        """
        if self.reproducers is None:
            return
        there = next(place for place in (self.reproducers, *self.reproducers.absolute().parents) if place.exists())
        cannot = f"reproducers cannot be written to {self.reproducers}"
        if not there.is_dir():
            raise Unusable(f"{cannot}: {there} is no folder")
        if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
            raise Unusable(f"{cannot}: {there} may not be written to")
        if self.reproducers.exists() and any(self.reproducers.iterdir()):
            raise Unusable(
                f"{cannot}: it is not empty, and scripts of an earlier run would be taken for those of this one; "
                "expected a new folder or an empty one"
            )

    def judge(
        self, cases: Sequence[Judged], backends: Sequence[Backend], save: Callable[[Run], None]
    ) -> tuple[Run, list[str]]:
        """The run, and sentences on what it took from an earlier one.

        Raises:
            Unusable: the earlier report or OMP_NUM_THREADS cannot be used, or a backend is missing.
        """
        places = {(case.id, backend.name, mode) for case in cases for backend in backends for mode in backend.modes}
        try:
            earlier = None if self.resume is None else read_report(self.resume, places)
        except ResumeError as error:
            raise Unusable(str(error)) from error
        totals = {backend.name: len(backend.modes) * len(cases) for backend in backends}
        try:
            with shown(totals) as progress:
                result = run(
                    cases, backends, timeout=self.timeout, progress=progress, jobs=self.jobs, gpu_jobs=self.gpu_jobs,
                    ledger=Ledger(os.environ, earlier), save=save,
                )  # fmt: skip
        except BackendMissing as error:
            raise Unusable(f"{error}; nothing was compared") from error
        except ThreadsError as error:
            raise Unusable(str(error)) from error
        return result, [] if earlier is None else earlier.notes(result.due)

    def reproduce(self, result: Run, cases: Sequence[Judged], backends: Sequence[Backend]) -> str:
        """Write reproducers, where they were asked for; why one could not be written, in words."""
        if self.reproducers is None or not result.complete:
            return ""
        totals = {backend.name: len(first_failures(result.verdicts, backend)) for backend in backends}
        try:
            with shown({name: total for name, total in totals.items() if total}) as progress:
                reproduce(
                    result, cases, backends, self.reproducers, timeout=self.timeout, seconds=self.shrink_seconds,
                    progress=progress,
                )  # fmt: skip
        except KeyboardInterrupt:
            result.complete = False
        except GoldenError as error:
            return str(error)
        except OSError as error:
            return f"reproducers could not be written to {self.reproducers}: {error.strerror}"
        return ""


def read_running(options: Mapping[str, Any], given: Collection[str]) -> Running:
    """
    Arguments:
        options: of the command, by parameter name.
        given: the names of those that were typed.

    Raises:
        Unusable: an option that would be ignored.
    """
    for name, (needed, typed) in _NEEDS.items():
        if name in given and needed not in given:
            raise Unusable(f"--{name.replace('_', '-')} means something with {typed} only")
    for name in _NOT_LISTED:
        if name in given and "list_only" in given:
            option = "--resume" if name == "resume_path" else "--reproducers"
            raise Unusable(f"--list judges nothing, so there is nothing for {option}; expected one of the two")
    return Running(
        options["timeout"], options["jobs"], options["gpu_jobs"], options["resume_path"],
        options["reproducers_folder"], options["shrink_seconds"],
    )  # fmt: skip
