"""One rule on threads for all commands: what OMP_NUM_THREADS says, else the cores are shared by what runs at once."""

import json

import planted
import planted_orders
import pytest
from click.testing import CliRunner

from crosscheck.cli import main
from crosscheck.threads import ThreadsError, fair_threads

CASE = "lm_head-bf16-N3-K100-V33-d3-bias"


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_without_the_variable_the_cores_are_shared_fairly(monkeypatch):
    assert [fair_threads(n) for n in (0, 1, 3, 5, 100)] == [16, 16, 5, 3, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", " ")
    assert fair_threads(2) == 8


@pytest.mark.parametrize(("said", "threads"), [("3", 3), (" 12 ", 12), ("64", 64), ("4,2", 4)])
def test_the_variable_is_honoured_however_many_processes_there_are(monkeypatch, said, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert [fair_threads(n) for n in (1, 2, 100)] == [threads] * 3


def threads_of(command: str, folder) -> set[int]:
    """What the processes of a command were given, of two backends where it takes two."""
    report = folder / "report.json"
    sizes = ("--width", "4", "--rows", "1", "--vocab", "1")
    words, known = {
        "run": (["--backends", "Planted,OtherNan", "--filter", CASE, "--json", str(report)], planted.REGISTRY),
        "record": (["-o", str(folder / "golden"), "--backend", "Planted", "--filter", CASE], planted.REGISTRY),
        "order": (
            ["--op", "lm_head", "--backend", "InOrder", *sizes, "--json", str(report)],
            planted_orders.REGISTRY,
        ),
    }[command]
    result = CliRunner().invoke(main, [command, *words], obj=known)
    assert result.exit_code in (0, 1) and result.stderr == "", result.output
    if command == "record":
        return {json.loads((folder / "golden" / "manifest.json").read_text())["made_by"]["threads"]}
    said = json.loads(report.read_text())["environments" if command == "order" else "backends"]
    return {of_one["threads"] for of_one in said.values()}


@pytest.mark.parametrize(("command", "shared"), [("run", 8), ("record", 16), ("order", 16)])
def test_every_command_keeps_the_rule(command, shared, tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    assert threads_of(command, tmp_path) == {shared}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_of(command, tmp_path / "one") == {3}


@pytest.mark.parametrize("said", ["0", "-1", "many", "1.5", ",2", "99999999999"])
def test_a_number_that_cannot_be_read_is_refused(monkeypatch, said, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    text = (
        f"OMP_NUM_THREADS is {said!r}; expected a number of threads from 1 to 65536, or no such variable: then the "
        "cores are shared among the processes"
    )
    with pytest.raises(ThreadsError) as refused:
        fair_threads(1)
    assert str(refused.value) == text
    for words in (
        ["run", "--backends", "Planted", "--filter", CASE],
        ["record", "-o", str(tmp_path / "golden"), "--backend", "Planted", "--filter", CASE],
        ["order", "--op", "lm_head", "--backend", "Planted"],
        ["info"],
    ):
        result = CliRunner().invoke(main, words, obj=planted.REGISTRY)
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"crosscheck: {text}\n"), words
