"""The command line: exit codes, plain sentences for whatever is wrong, and no traceback ever."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import planted
import pytest
from click.testing import CliRunner, Result

from crosscheck.cases import default_suite, full_suite
from crosscheck.cli import main
from crosscheck.report_json import SCHEMA
from crosscheck.runner import Run
from crosscheck.verdict import Verdict, in_one_line

CASE = "lm_head-bf16-N3-K100-V33-d3-bias"


def crosscheck(*arguments: str | Path, obj=planted.REGISTRY) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], obj=obj)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


def run(*arguments: str | Path, backends: str = "Planted", pattern: str = CASE, **options) -> Result:
    return crosscheck("run", "--backends", backends, "--filter", pattern, *arguments, **options)


# Exit codes ------------------------------------------------------------------------------------------------
def test_equal_is_0():
    result = run()
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == (
        "EQUAL: every bit is the contract's, under every transform (1 case, 1 backend, 1 verdict)"
    )


@pytest.mark.parametrize(
    ("fault", "outcome", "what"),
    [
        ("FlipsBits", "different", "with other bits"),
        ("OtherShape", "different", "with other bits"),
        ("SpoilsPadding", "different", "with other bits"),
        ("Raises", "failed", "raised; no bit that was compared differs"),
        ("RaisesOnPadding", "failed", "raised under a transform; no bit that was compared differs"),
        ("Exits", "failed", "crashed; no bit that was compared differs"),
        ("IsKilled", "failed", "crashed; no bit that was compared differs"),
        ("Hangs", "incomplete", "timed out; no bit that was compared differs"),
    ],
)
def test_what_is_not_equal_is_1_and_headed_by_what_happened(fault, outcome, what, tmp_path):
    result = run("--timeout", "2", "--json", tmp_path / "report.json", backends=f"Planted,{fault}")
    assert result.exit_code == 1
    head = outcome.upper()
    assert f"{head} {CASE} on {fault}, eager (planted)" in result.stdout.splitlines()
    assert result.stdout.splitlines()[-1] == f"{head}: 1 verdict {what} (1 case, 2 backends, 2 verdicts)"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["outcome"] == outcome
    assert [verdict["outcome"] for verdict in report["verdicts"]] == ["equal", outcome]


def test_a_run_is_headed_by_the_worst_that_happened():
    last = run(backends="Exits,Planted,FlipsBits").stdout.splitlines()[-1]
    assert last == "DIFFERENT: 1 verdict with other bits, 1 crashed (1 case, 3 backends, 3 verdicts)"


@pytest.mark.parametrize("backends", ["Planted", "FlipsBits", "Raises", "Planted,SpoilsRepeat"])
def test_one_is_never_a_plural(backends):
    output = run(backends=backends).stdout
    assert re.findall(r"(?<![\d.])1 (?:more )?(?:cases|backends|verdicts|failures|trials|threads)", output) == []


def test_a_failure_shows_both_patterns_and_the_command_that_repeats_it():
    result = run(backends="FlipsBits")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("  bits, the call itself:")]
    assert "first at [0, 0]: actual" in line and line.count("(0x") == 2
    assert f"  repeat: crosscheck run --filter {CASE} --backends FlipsBits" in result.stdout.splitlines()


def test_the_command_that_repeats_a_failure_repeats_it():
    (line,) = [line for line in run(backends="FlipsBits").stdout.splitlines() if line.startswith("  repeat: ")]
    again = crosscheck(*line.removeprefix("  repeat: crosscheck ").split())
    assert again.exit_code == 1 and "DIFFERENT: 1 verdict with other bits" in again.stdout


def test_the_command_that_repeats_a_failure_has_what_was_typed_and_does_not_replace_the_report(tmp_path):
    typed = ("--verbose", "--suite", "full", "--timeout", "12.5", "--op", "lm_head_fp32", "--op", "lm_head")
    result = run(*typed, "--json", tmp_path / "report.json", backends="Planted,FlipsBits")
    assert (
        "  repeat: crosscheck run --suite full --op lm_head_fp32 --op lm_head --timeout 12.5 --verbose "
        f"--filter {CASE} --backends FlipsBits"
    ) in result.stdout.splitlines()


def test_a_hang_is_1_and_bounded_and_says_what_to_do():
    result = run("--timeout", "1", backends="Hangs")
    assert result.exit_code == 1
    assert (
        "  timed out: no answer within 1 s, in: the call itself; --timeout SECONDS allows more"
    ) in result.stdout.splitlines()
    assert f"  repeat: crosscheck run --timeout 1 --filter {CASE} --backends Hangs" in result.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backends", "pytorch"], "no backend 'pytorch'; the known ones are numpy, torch-cpu, torch-cuda, jax-cpu"),
        (["--backends", "numpy,cuda,tpu"], "no backend 'cuda', 'tpu'; the known ones are"),
        (["--backends", ","], "no backend is named; the known ones are"),
        (["--filter", "nothing*"], "nothing compared: no case matches 'nothing*'; --list shows the ids"),
        (["--op", "lm_head", "--filter", "embedding-*"], "nothing compared"),
        (["--hidden", "hidden.npy"], "--hidden means something with --checkpoint only"),
        (["--dtype", "bf16"], "--dtype means something with --checkpoint only"),
        (["--checkpoint", "x"], "--checkpoint needs --embedding-key and --token-ids as well"),
        (["--max-rows", "32"], "--max-rows means something with --checkpoint only"),
        (["--checkpoint", "x", "--suite", "full"], "--suite chooses among the built-in cases, and --checkpoint"),
        (["--checkpoint", "x", "--suite", "default"], "expected one of the two: run crosscheck twice for both"),
        (["--list", "--json", "x.json"], "--list judges nothing, so there is no report for --json"),
        (["--json", "/no/such/folder/report.json"], "the report cannot be written to /no/such/folder/report.json: No"),
        (["--json", "."], "the report cannot be written to .: Is a directory"),
        (["--op", "softmax"], "'softmax' is not one of 'embedding'"),
        (["--timeout", "0"], "0.0 is not in the range"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_unusable_arguments_are_2_and_say_what_is_wrong(arguments, message):
    result = crosscheck("run", *arguments, obj=None)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_missing_backend_is_2_and_nothing_is_compared():
    result = run(backends="Planted,Unavailable")
    assert result.exit_code == 2
    assert result.stderr == "crosscheck: Unavailable is not available: planted: not here; nothing was compared\n"
    assert result.stdout == ""


def test_gpu_backends_are_known_and_without_a_gpu_not_available():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    result = crosscheck("run", "--backends", "torch-cuda,jax-gpu", obj=None)
    assert result.exit_code == 2
    assert "torch-cuda is not available: " in result.stderr
    assert "jax-gpu is not available: " in result.stderr


# What is printed -------------------------------------------------------------------------------------------
def test_list_prints_ids_and_judges_nothing():
    result = crosscheck("run", "--list", "--backends", "Unavailable")
    assert result.exit_code == 0
    assert result.stdout.split() == [case.id for case in default_suite()]
    options = ("--suite", "full", "--op", "embedding", "--filter", "*-bf16-*")
    some = crosscheck("run", "--list", *options, obj=None).stdout.split()
    assert some == [case.id for case in full_suite() if case.op == "embedding" and case.dtype == "bf16"]


def test_what_is_no_terminal_gets_no_escape_codes():
    result = run(backends="Planted,FlipsBits")
    assert "\x1b" not in result.output
    assert "\r" not in result.output


def test_version():
    assert crosscheck("--version").stdout.startswith("crosscheck, version ")


def test_info_lists_every_backend_with_its_reason():
    result = crosscheck("info", obj={name: planted.REGISTRY[name] for name in ("Planted", "Unavailable")})
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.stdout.splitlines()[1:] if not line.startswith(" ")}
    assert rows["Planted"].split()[1] == "yes"
    assert rows["Unavailable"].split()[1:] == ["no", "eager", "planted:", "not", "here"]


def test_info_fits_a_narrow_terminal():
    known = {name: planted.REGISTRY[name] for name in ("Planted", "FailsToStart")}
    lines = CliRunner().invoke(main, ["info"], obj=known, env={"COLUMNS": "40"}).stdout.splitlines()
    assert max(map(len, lines)) <= 40
    assert [line.split()[0] for line in lines if " available: " in line] == ["Planted", "FailsToStart"]


def test_many_failures_are_cut_short_unless_asked_for():
    pattern = "lm_head-*-N[13]-*"
    short = run(backends="Raises", pattern=pattern).stdout
    assert short.count("FAILED") < run("--verbose", backends="Raises", pattern=pattern).stdout.count("FAILED")
    assert "more failures: --verbose shows all" in short


# The report file -------------------------------------------------------------------------------------------
def test_the_json_report_holds_every_verdict(tmp_path):
    result = run("--json", tmp_path / "report.json", backends="Planted,OtherNan,Exits")
    assert result.exit_code == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["schema"] == SCHEMA == "crosscheck-report/1"
    assert report["contract"] == "fixed-k/1"
    assert report["outcome"] == "different"
    assert list(report["cases"]) == [CASE]
    assert {name: said["device"] for name, said in report["backends"].items()} == dict.fromkeys(
        ("Planted", "OtherNan", "Exits"), "cpu"
    )
    assert set(report["backends"]["Planted"]["versions"]) == {"python", "numpy", "ml_dtypes"}
    assert {"system", "architecture", "processor", "cores", "instruction_set"} == set(report["machine"])
    good, other, exited = report["verdicts"]
    assert [verdict["failed"] for verdict in report["verdicts"]] == [False, True, True]
    assert good["checks"]["bits"] == {"state": "pass", "passed": 1, "failed": [], "not_applicable": []}
    assert good["accuracy"]["samples"] > 0
    assert other["checks"]["bits"]["failed"][0]["difference"]["actual"] == "nan"
    assert exited["status"] == "crashed" and exited["checks"] == {}


def test_the_json_report_holds_the_command_that_was_typed(tmp_path):
    typed = ["run", "--backends", "Planted,FlipsBits", "--filter", CASE, "--timeout", "30", "--json"]
    typed.append(str(tmp_path / "my report.json"))
    crosscheck(*typed)
    command = json.loads((tmp_path / "my report.json").read_text())["command"]
    assert command == shlex.join(["crosscheck", *typed])


def test_an_old_report_survives_a_run_that_does_not_come_to_an_end(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    assert run("--json", path, backends="Unavailable").exit_code == 2
    assert path.read_text() == "old"
    assert run("--json", tmp_path / "new.json", backends="Unavailable").exit_code == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("made", "options", "hint"),
    [
        (1, [], "they are lost: with --json FILE a run leaves its verdicts, and --resume FILE goes on from them"),
        (0, [], "with --json FILE a run leaves its verdicts, and --resume FILE goes on from them"),
        (1, ["--json", "my report.json"], "--resume 'my report.json' keeps them"),
        (1, ["--report", "folder"], "--resume folder/report.json keeps them"),
        (0, ["--report", "folder"], ""),
    ],
)
def test_an_interrupt_says_how_to_go_on(tmp_path, monkeypatch, made, options, hint):
    verdict = Verdict(CASE, "lm_head", "Planted", "eager", "planted", "timed out", "no answer")
    stopped = Run(verdicts=[verdict] * made, complete=False, due=9)
    monkeypatch.setattr("crosscheck.cli_running.run", lambda *cases, **how: stopped)
    monkeypatch.chdir(tmp_path)
    result = run(*options)
    assert result.exit_code == 130
    assert result.stderr == f"crosscheck: interrupted: {made} of 9 verdicts made{hint and f'; {hint}'}\n"


# Ctrl-C ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_130_and_leaves_neither_process_nor_file(tmp_path, how):
    program = (
        "import signal, planted; from crosscheck.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits it ignored\n"
        "main(obj=planted.REGISTRY)"
    )
    arguments = ["run", "--backends", "Hangs", "--filter", CASE, "--json", str(tmp_path / "report.json")]
    pid_file = tmp_path / "pid"
    (tmp_path / "temporary").mkdir()
    environment = {
        **os.environ,
        "PLANTED_FILE": str(pid_file),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TMPDIR": str(tmp_path / "temporary"),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(how)
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "crosscheck: interrupted: 0 of 1 verdict made\n"
    assert "Traceback" not in out
    assert not any((tmp_path / "temporary").iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["outcome"] == "interrupted"


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "0", "-1"])
def test_a_time_limit_that_cannot_be_waited_for_is_refused(seconds):
    result = CliRunner().invoke(main, ["run", "--timeout", seconds, "--list"])
    assert result.exit_code == 2
    assert (
        f"Error: Invalid value for '--timeout': {float(seconds)} is not in the range 0<x<=1000000.0." in result.stderr
    )


def test_what_an_exception_says_is_shown_without_control_characters():
    assert (
        in_one_line(RuntimeError("bad \ud800 \x1b[31m\x01 \u00fc")) == "RuntimeError: bad \\ud800 \\x1b[31m\\x01 \u00fc"
    )
