"""A run that was ended at any time leaves a whole report, and goes on from it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_resume import CASES, crosscheck, notes, report_of

from crosscheck.cli_report import Reports

PROGRAM = (
    "import signal, planted; from crosscheck.cli import main\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits it ignored\n"
    "main(obj=planted.REGISTRY)"
)


def has_content(path: Path) -> bool:
    """Before the work a run tries, with an empty file, whether it can write there."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_ended_run_leaves_a_report_that_is_continued(tmp_path, monkeypatch, how):
    """Whatever ends it: a report that is written while it runs is whole at any time. The backend waits for a file."""
    path = tmp_path / "report.json"
    monkeypatch.setenv("PLANTED_FILE", str(tmp_path / "go_on"))
    typed = ["run", "--backends", "Waits", "--filter", CASES, "--json", str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *typed], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not has_content(path) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(how)
    try:
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    report = report_of(path)
    made, due = len(report["verdicts"]), 3
    assert report["outcome"] == "interrupted" and 1 <= made < due
    assert report["summary"].startswith(f"INTERRUPTED: {made} of {due} verdicts made")
    if how != signal.SIGKILL:
        words = f"{made} of {due} verdicts made; --resume {path} keeps them"
        assert (process.returncode, err) == (130, f"crosscheck: interrupted: {words}\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]
    (tmp_path / "go_on").touch()
    again = crosscheck("--resume", path, "--json", path, backends="Waits")
    assert again.exit_code == 0
    lacking = f"{due - made} {'was' if due - made == 1 else 'were'} not in it"
    assert notes(again) == [f"{made} of {due} verdicts kept from {path}; {lacking}"]
    assert report_of(path)["outcome"] == "equal" and len(report_of(path)["verdicts"]) == due


def test_a_report_folder_has_what_is_continued_while_the_run_goes_on(tmp_path):
    reports = Reports.of(
        {"report_folder": tmp_path / "report", "json_path": None, "junit_path": tmp_path / "junit.xml"}
    )
    reports.check()
    reports.write_part(lambda partial: {"made": partial}, 1)
    assert [path.name for path in tmp_path.rglob("*")] == ["report", "report.json"]
    assert report_of(tmp_path / "report" / "report.json") == {"made": 1}
    assert reports.continued_by(1) == f"; --resume {tmp_path / 'report' / 'report.json'} keeps them"
