"""The options of `crosscheck run` that write reports: checked before any work, written at its end, also of a part."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from crosscheck.cli_cases import Unusable
from crosscheck.report_json import check_writable, write_json, write_text

__all__ = ["REPORT_OPTIONS", "Reports", "report_options"]

_FILE = click.Path(path_type=Path)
_OPTIONS = (
    click.option("--json", "json_path", type=_FILE, metavar="FILE", help="Write the report as JSON."),
    click.option("--junit", "junit_path", type=_FILE, metavar="FILE", help="Write it as JUnit XML, for a CI system."),
    click.option("--report", "report_folder", type=_FILE, metavar="DIR",
                 help="Write it as index.html, report.json and junit.xml in a folder, made if it is missing."),
)  # fmt: skip
Write = Callable[[Path, dict[str, Any]], None]
REPORT_OPTIONS = {"json_path": "--json", "junit_path": "--junit", "report_folder": "--report"}


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _json(path: Path, report: dict[str, Any]) -> None:
    write_json(path, report)


def _html(path: Path, report: dict[str, Any]) -> None:
    from crosscheck.report_html import page  # Jinja is imported where it is used, and by no other command

    write_text(path, page(report))


def _junit(path: Path, report: dict[str, Any]) -> None:
    from crosscheck.report_junit import junit

    write_text(path, junit(report))


_IN_FOLDER: dict[str, Write] = {"index.html": _html, "report.json": _json, "junit.xml": _junit}
_ALONE: dict[str, Write] = {"json_path": _json, "junit_path": _junit}


@dataclass(frozen=True)
class Reports:
    """Which files are to be written.

    Arguments:
        files: each with what writes a report to it.
        folder: that is to hold some of them; None where there is none.
    """

    files: Sequence[tuple[Path, Write]]
    folder: Path | None = None

    @staticmethod
    def of(options: Mapping[str, Any]) -> "Reports":
        """By the command's parameters."""
        folder: Path | None = options["report_folder"]
        files: list[tuple[Path, Write]] = []
        if folder is not None:
            files += [(folder / name, write) for name, write in _IN_FOLDER.items()]
        files += [(options[name], write) for name, write in _ALONE.items() if options[name] is not None]
        return Reports(files, folder)

    def check(self) -> None:
        """Before the work, so that no verdict is lost to a mistyped path. Leaves no trace.

        Raises:
            Unusable: one sentence.
        """
        places = [path.resolve() for path, _ in self.files]
        for path in places:
            if places.count(path) > 1:
                raise Unusable(f"two reports are to be written to {path}; expected a file for each")
        made = []
        try:
            if self.folder is not None:
                made = [place for place in (self.folder, *self.folder.parents) if not place.exists()]
                with _told(self.folder, "cannot"):
                    if not self.folder.is_dir():
                        self.folder.mkdir(parents=True)
            for path, _ in self.files:
                with _told(path, "cannot"):
                    check_writable(path)
        finally:
            for place in made:
                if place.is_dir():
                    place.rmdir()

    def write_part(self, report_of: Callable[[Any], dict[str, Any]], partial: Any) -> None:
        """While the run goes on, write what --resume takes: a run that is killed is continued from it.

        A fault is left to `write`, which meets it again at the end.
        """
        files = [path for path, write in self.files if write is _json]
        report = report_of(partial) if files else {}
        for path in files:
            with suppress(OSError):
                path.parent.mkdir(parents=path.parent == self.folder, exist_ok=True)
                write_json(path, report)

    def continued_by(self, made: int) -> str:
        """How an interrupted run of which some verdicts were made is continued, as the end of a sentence."""
        paths = [path for path, write in self.files if write is _json]
        if not paths:
            lost = "they are lost: " if made else ""
            return f"; {lost}with --json FILE a run leaves its verdicts, and --resume FILE goes on from them"
        return f"; --resume {shlex.quote(str(paths[0]))} keeps them" if made else ""

    def write(self, report: dict[str, Any]) -> None:
        """
        Raises:
            Unusable: one sentence; the files before it in the list have been written.
        """
        if self.folder is not None:
            with _told(self.folder, "could not"):
                self.folder.mkdir(parents=True, exist_ok=True)
        for path, write in self.files:
            with _told(path, "could not"):
                write(path, report)


@contextmanager
def _told(path: Path, how: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unusable(f"the report {how} be written to {path}: {error.strerror}") from error
