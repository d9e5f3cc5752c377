"""A report goes where its path leads, replaces nothing but a report, and is there also of a part of a run."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

import planted
import pytest
from click.testing import CliRunner, Result

from crosscheck.checkpoint import CheckpointError, load_tensor
from crosscheck.cli import main
from crosscheck.report_json import check_writable, write_json, write_text

CASE = "lm_head-bf16-N3-K100-V33-d3-bias"
FILES = ["index.html", "junit.xml", "report.json"]


def run(*arguments: str | Path, backends: str = "Planted,FlipsBits") -> Result:
    words = ["run", "--backends", backends, "--filter", CASE, *map(str, arguments)]
    result = CliRunner().invoke(main, words, obj=planted.REGISTRY)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# Paths -----------------------------------------------------------------------------------------------------


def test_a_link_to_a_report_stays_a_link(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("x")
    link.symlink_to(real)
    write_json(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads(real.read_text()) == {"a": 1}


def test_a_device_is_written_to_and_stays_a_device():
    null = Path("/dev/null")
    check_writable(null)
    write_json(null, {"a": 1})
    assert stat.S_ISCHR(null.stat().st_mode)


def test_checking_a_path_leaves_no_trace(tmp_path):
    check_writable(tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_report_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "index.html"
    path.write_text("old")

    def interrupt(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old" and names(tmp_path) == ["index.html"]


def test_lists_of_numbers_have_a_line_each_and_texts_stay_what_they_are(tmp_path):
    report = {"grid": [[1, 2], [-3, 4.5e-7]], "text": "[\n 1,\n 2\n]", "empty": [], "mixed": [1, "inf"]}
    write_json(tmp_path / "report.json", report)
    text = (tmp_path / "report.json").read_text()
    assert json.loads(text) == report
    assert "  [1, 2],\n  [-3, 4.5e-07]\n" in text


# --report and --junit --------------------------------------------------------------------------------------
def test_a_folder_is_made_and_gets_the_report_in_three_forms(tmp_path):
    folder = tmp_path / "some" / "where"
    assert run("--report", folder, "--junit", tmp_path / "also.xml").exit_code == 1
    assert names(folder) == FILES
    report = json.loads((folder / "report.json").read_text())
    assert [verdict["outcome"] for verdict in report["verdicts"]] == ["equal", "different"]
    assert report["verdicts"][1]["repeat"] == f"crosscheck run --filter {CASE} --backends FlipsBits"
    assert "repeat" not in report["verdicts"][0]
    assert report["summary"].startswith("DIFFERENT: 1 verdict with other bits") and report["due"] == 2
    html = (folder / "index.html").read_text()
    assert "<title>DIFFERENT · crosscheck</title>" in html and report["verdicts"][1]["digest"] in html
    assert ElementTree.parse(folder / "junit.xml").getroot().get("failures") == "1"
    assert (tmp_path / "also.xml").read_text() == (folder / "junit.xml").read_text()


def test_a_second_run_replaces_the_report_and_leaves_the_folder_s_other_files(tmp_path):
    for name in (*FILES, "mine.txt"):
        (tmp_path / name).write_text("old")
    run("--report", tmp_path, backends="Planted")
    assert names(tmp_path) == sorted([*FILES, "mine.txt"])
    assert [name for name in names(tmp_path) if (tmp_path / name).read_text() == "old"] == ["mine.txt"]


@pytest.mark.parametrize(
    ("option", "path", "reason"),
    [
        ("--report", "a-file", "a-file: File exists"),
        ("--report", "a-file/below", "a-file/below: Not a directory"),
        ("--report", "taken", "taken/index.html: Is a directory"),
        ("--junit", "no/such/junit.xml", "no/such/junit.xml: No such file or directory"),
        ("--junit", "taken", "taken: Is a directory"),
    ],
)
def test_what_cannot_be_written_is_said_before_any_work(tmp_path, option, path, reason):
    (tmp_path / "a-file").touch()
    (tmp_path / "taken" / "index.html").mkdir(parents=True)
    result = run(option, tmp_path / path, backends="Hangs")
    assert result.exit_code == 2
    assert result.stderr == f"crosscheck: the report cannot be written to {tmp_path}/{reason}\n"
    assert names(tmp_path) == ["a-file", "taken"] and names(tmp_path / "taken") == ["index.html"]


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path):
    assert run("--report", tmp_path / "some" / "where", backends="Unavailable").exit_code == 2
    assert names(tmp_path) == []


@pytest.mark.parametrize("option", ["--json", "--junit", "--report"])
def test_a_list_of_cases_has_no_report(option, tmp_path):
    result = run("--list", option, tmp_path / "x")
    assert result.exit_code == 2
    assert f"--list judges nothing, so there is no report for {option}; expected one of the two" in result.stderr


def test_a_run_that_is_ended_writes_what_there_is(tmp_path, monkeypatch):
    left = tmp_path / "left"
    monkeypatch.setenv("PLANTED_FILE", str(left))

    def end_the_run() -> None:
        """Once one backend hangs, as a scheduler does it."""
        deadline = time.monotonic() + 60
        while not (left.exists() and left.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end_the_run)
    thread.start()
    result = run("--report", tmp_path / "report", backends="Planted,Hangs")
    thread.join()
    assert result.exit_code == 130
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["outcome"] == "interrupted" and len(report["verdicts"]) < report["due"] == 2
    assert "This run was interrupted." in (tmp_path / "report" / "index.html").read_text()
    root = ElementTree.parse(tmp_path / "report" / "junit.xml").getroot()
    assert root.find("testsuite[@name='the run itself']/testcase/error").get("type") == "interrupted"


def test_the_page_s_library_is_imported_where_a_page_is_made_and_no_earlier():
    program = "import sys, crosscheck.cli; print('jinja2' in sys.modules); import crosscheck.report_html"
    program += "; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


# Checkpoints -----------------------------------------------------------------------------------------------
def test_a_deeply_nested_index_is_refused_in_a_sentence(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="is no checkpoint index"):
        load_tensor(index, "w")


@pytest.mark.parametrize("shard", ["/etc/passwd", "../model.safetensors"])
def test_an_index_cannot_lead_out_of_its_folder(shard, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(CheckpointError, match="expected the name of a file beside it"):
        load_tensor(index, "w")


def test_two_reports_for_one_file_are_refused_before_any_work(tmp_path):
    place = tmp_path / "report"
    result = run("--json", place, "--junit", place)
    assert result.exit_code == 2 and not place.exists()
    assert f"two reports are to be written to {place}; expected a file for each" in result.output
