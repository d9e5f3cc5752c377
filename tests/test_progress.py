"""Long work shows how far it has come, on a terminal and in a log, and none of it on stdout; ids are listed first."""

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import planted
import pytest
from click.testing import CliRunner
from golden_files import crosscheck

from crosscheck.cases import default_suite
from crosscheck.cli import main
from crosscheck.progress import shown, shown_cases

SOME = "lm_head-*-N3-K100-V33-*"  # three cases
IDS = [case.id for case in default_suite() if case.op == "lm_head" and (case.rows, case.width) == ((3,), 100)]
PROGRAM = "import planted; from crosscheck.cli import main; main(obj=planted.REGISTRY)"


@pytest.fixture(scope="module")
def golden(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("golden") / "one"
    assert crosscheck("golden", "write", folder, "--filter", SOME).exit_code == 0
    return folder


def on_a_terminal(*arguments: str) -> tuple[str, str]:
    """What a command writes to stdout, which is a pipe, and to stderr, which is a terminal."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TERM": "xterm",
        "COLUMNS": "100",
    }
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment
    ) as process:  # fmt: skip
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # how Linux says that the other side is closed
                break
            if not part:
                break
            said += part
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(ours)
    return out, said.decode()


@pytest.mark.parametrize("command", ["write", "record", "verify", "compare", "run"])
def test_every_long_command_shows_the_case_it_is_at_and_their_number(command, golden, tmp_path):
    arguments = {
        "write": ["golden", "write", str(tmp_path / "new"), "--filter", SOME],
        "record": ["record", "-o", str(tmp_path / "new"), "--backend", "Planted", "--filter", SOME],
        "verify": ["golden", "verify", str(golden)],
        "compare": ["compare", str(golden), str(golden)],
        "run": ["run", "--backends", "Planted", "--filter", SOME],
    }[command]
    out, err = on_a_terminal(*arguments)
    assert "/3" in err and any(case[:20] in err for case in IDS), err
    assert "\x1b" in err and "\x1b" not in out


def test_a_filter_is_counted_out_of_what_it_chooses(golden):
    _, err = on_a_terminal("golden", "verify", str(golden), "--filter", IDS[0])
    assert "0/1" in err and "/3" not in err


def test_what_is_no_terminal_gets_nothing_of_short_work(golden, tmp_path, capfd):
    for arguments in (
        ["golden", "verify", golden],
        ["compare", golden, golden],
        ["golden", "write", tmp_path / "new", "--filter", SOME],
    ):
        result = crosscheck(*arguments)
        assert result.exit_code == 0 and result.stderr == "" and "\x1b" not in result.stdout
    with shown({"one": 2}) as heard, shown_cases("two", 2) as begun:
        heard("one", "doing")
        heard("one", "")
        begun("first")
        begun("second")
    assert capfd.readouterr() == ("", "")


def lines_of(monkeypatch, capfd, totals, work) -> list[str]:
    """What is written within a moment to what is no terminal."""
    monkeypatch.setattr("crosscheck.progress.EVERY", 0.05)
    with shown(totals) as heard:
        work(heard)
        deadline, said = time.monotonic() + 30, ""
        while said.count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            captured = capfd.readouterr()
            assert captured.out == ""
            said += captured.err
    capfd.readouterr()
    time.sleep(0.2)
    assert capfd.readouterr() == ("", "")
    return said.splitlines()


def test_what_is_no_terminal_gets_a_line_now_and_then_on_stderr(monkeypatch, capfd):
    def work(heard):
        for _ in range(2):
            heard("two", "a call")
            heard("two", "")
        heard("one", "")
        heard("one", "id eager: rows added")

    *_, line = lines_of(monkeypatch, capfd, {"one": 3, "two": 2}, work)
    assert re.fullmatch(r"crosscheck: after \d+ s: one 1/3 \(id eager: rows added\); two 2/2", line)


def test_a_line_comes_also_where_nothing_is_heard(monkeypatch, capfd):
    *_, line = lines_of(monkeypatch, capfd, {"one": 3}, lambda heard: None)
    assert re.fullmatch(r"crosscheck: after \d+ s: one 0/3 \(starting\)", line)


# What is chosen --------------------------------------------------------------------------------------------
def test_list_prints_the_ids_that_every_command_would_choose_and_does_nothing_else(golden, tmp_path):
    new = str(tmp_path / "new")
    for arguments in (
        ["golden", "write", new],
        ["record", "-o", new, "--backend", "Planted"],
        ["golden", "verify", str(golden)],
        ["compare", str(golden), str(golden)],
        ["run", "--backends", "Planted"],
    ):
        result = CliRunner().invoke(main, [*arguments, "--filter", SOME, "--list"], obj=planted.REGISTRY)
        assert (result.exit_code, result.stderr) == (0, ""), arguments
        assert result.stdout.split() == IDS
        (one,) = (
            CliRunner().invoke(main, [*arguments, "--filter", IDS[1], "--list"], obj=planted.REGISTRY).stdout.split()
        )
        assert one == IDS[1]
    assert not (tmp_path / "new").exists()
