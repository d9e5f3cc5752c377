"""A run goes on from an earlier report: what still holds is kept and marked, and what changed is judged again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted
import pytest
from click.testing import CliRunner, Result

from crosscheck.cases import Case
from crosscheck.cli import main
from crosscheck.registry import Backend
from crosscheck.resume import LATE, SAID, Ledger, ResumeError, read_report
from crosscheck.runner import Run, run

CASE = "lm_head-bf16-N3-K100-V33-d3-bias"
CASES = "lm_head-*-N3-K100-V33-*"  # three, one of each dtype
MINE = """
from pathlib import Path
from crosscheck.backends import NumpyAdapter

class Mine(NumpyAdapter):
    def run(self, op, inputs, digits, mode):
        import my_helper
        with Path("calls").open("a") as file:
            file.write("x")
        return super().run(op, inputs, digits, mode)
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with a backend of its own, which notes its calls, and a module that it imports late."""
    (tmp_path / "my_adapter.py").write_text(MINE)
    (tmp_path / "my_helper.py").write_text("number = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def crosscheck(*arguments: str | Path, backends: str = "mine") -> Result:
    known = {"mine": Backend("mine", "my_adapter:Mine", "cpu", ("eager",)), **planted.REGISTRY}
    typed = ["run", "--backends", backends, "--filter", CASES, *map(str, arguments)]
    result = CliRunner().invoke(main, typed, obj=known)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def report_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def notes(result: Result) -> list[str]:
    return [line.removeprefix("note: ") for line in result.stdout.splitlines() if line.startswith("note: ")]


def calls(here: Path) -> int:
    """How many the backend has made since it was last asked."""
    path = here / "calls"
    count = len(path.read_text()) if path.exists() else 0
    path.write_text("")
    return count


def edited(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    report = report_of(path)
    change(report)
    path.write_text(json.dumps(report))


# Kept ------------------------------------------------------------------------------------------------------
def test_what_holds_is_kept_without_a_call_and_marked_as_kept(here):
    assert crosscheck("--json", "one.json").exit_code == 0
    assert calls(here) > 0
    again = crosscheck("--resume", "one.json", "--json", "two.json")
    assert again.exit_code == 0 and calls(here) == 0
    assert notes(again) == ["3 of 3 verdicts kept from one.json"]
    assert again.stdout.splitlines()[-1].endswith("(3 cases, 1 backend, 3 verdicts, 3 of them kept)")
    one, two = report_of(here / "one.json"), report_of(here / "two.json")
    assert [verdict.pop("kept") for verdict in one["verdicts"]] == [False] * 3
    assert [verdict.pop("kept") for verdict in two["verdicts"]] == [True] * 3
    assert one["verdicts"] == two["verdicts"] and one["bases"] == two["bases"]
    assert notes(crosscheck("--resume", "two.json")) == ["3 of 3 verdicts kept from two.json"]


def test_what_was_not_in_the_report_is_made(here):
    crosscheck("--filter", CASE, "--json", "one.json")
    calls(here)
    again = crosscheck("--resume", "one.json", "--json", "two.json")
    assert again.exit_code == 0 and calls(here) > 0
    assert notes(again) == ["1 of 3 verdicts kept from one.json; 2 were not in it"]
    assert {v["case"]: v["kept"] for v in report_of(here / "two.json")["verdicts"]}[CASE]


def test_a_failure_is_kept_with_all_its_numbers(tmp_path):
    """Also those that JSON has not: the NaN of a difference."""
    path = tmp_path / "one.json"
    crosscheck("--json", path, backends="OtherNan")
    again = crosscheck("--resume", path, "--json", tmp_path / "two.json", backends="OtherNan")
    assert again.exit_code == 1 and again.stdout.splitlines()[-1].startswith("DIFFERENT: 3 verdicts with other bits")
    one, two = report_of(path)["verdicts"], report_of(tmp_path / "two.json")["verdicts"]
    assert one[0]["checks"]["bits"]["failed"][0]["difference"]["actual"] == "nan"
    assert [verdict["checks"] for verdict in one] == [verdict["checks"] for verdict in two]


# Judged again ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["my_adapter.py", "my_helper.py"])
def test_changed_code_is_judged_again_also_where_it_is_imported_late(here, name):
    crosscheck("--json", "one.json")
    (here / name).write_text((here / name).read_text() + "\n# changed\n")
    calls(here)
    again = crosscheck("--resume", "one.json", "--json", "two.json")
    assert calls(here) > 0
    assert notes(again) == [f"0 of 3 verdicts kept from one.json; 3 judged again: {name} changed"]
    assert [verdict["kept"] for verdict in report_of(here / "two.json")["verdicts"]] == [False] * 3


def test_a_file_of_the_package_that_was_never_imported_counts_as_well(here):
    package = here / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernel.cu").write_text("// one")
    (package / "adapter.py").write_text(MINE)
    known = {"packed": Backend("packed", "my_package.adapter:Mine", "cpu", ("eager",))}
    typed = ["run", "--backends", "packed", "--filter", CASE]
    CliRunner().invoke(main, [*typed, "--json", "one.json"], obj=known)
    (package / "kernel.cu").write_text("// two")
    again = CliRunner().invoke(main, [*typed, "--resume", "one.json"], obj=known)
    assert notes(again) == ["0 of 1 verdict kept from one.json; 1 judged again: my_package/kernel.cu changed"]


def test_other_versions_threads_or_variables_are_judged_again_and_said(here, monkeypatch):
    crosscheck("--json", "one.json")
    edited(here / "one.json", lambda report: [b["versions"].update(numpy="1.0") for b in report["bases"].values()])
    (note,) = notes(crosscheck("--resume", "one.json", "--json", "two.json"))
    assert note.startswith("0 of 3 verdicts kept from one.json; 3 judged again: versions: numpy was 1.0 and is ")
    monkeypatch.setenv("NPY_DISABLE_CPU_FEATURES", "")
    (note,) = notes(crosscheck("--resume", "two.json"))
    assert note.endswith("; 3 judged again: variables: NPY_DISABLE_CPU_FEATURES was not there and is ")


def test_other_inputs_and_another_effort_are_judged_again(here):
    crosscheck("--json", "one.json")

    def change(report: dict[str, Any]) -> None:
        report["verdicts"][0]["inputs_digest"] = "another"
        report["verdicts"][1]["effort"]["gradients"] = False

    edited(here / "one.json", change)
    assert notes(crosscheck("--resume", "one.json")) == [
        "1 of 3 verdicts kept from one.json; 1 judged again: the inputs are others; 1 judged again: something else is "
        "tried, since there are more cases or fewer"
    ]


def test_what_had_no_answer_is_judged_again(tmp_path):
    path = tmp_path / "one.json"
    crosscheck("--json", path, backends="Raises")
    assert notes(crosscheck("--resume", path, backends="Raises")) == [
        f"0 of 3 verdicts kept from {path}; 3 judged again: no answer was there (raised)"
    ]


def test_a_file_that_changes_during_a_run_is_never_as_it_was():
    ledger = Ledger({})
    said: dict[str, Any] = {name: {} for name in SAID}
    name = ledger.enter(planted.backend(planted.Planted), 1, said)
    for digest in ("one", "one", "two", "one"):
        ledger.add_sources(name, {"late.py": digest})
    assert ledger.bases[name][LATE] == {"late.py": "changed during the run"}


# Refused ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("earlier") / "report.json"
    assert crosscheck("--json", path, backends="Planted").exit_code == 0
    return path.read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"contract": "fixed-k/0"},
            "was made with contract fixed-k/0, and this is fixed-k/1: none of its verdicts can",
        ),
        ({"crosscheck": "0.0.1"}, "was made with crosscheck 0.0.1, and this is "),
        ({"schema": "another"}, "is no report of crosscheck run --json; expected schema 'crosscheck-report/1'"),
        ({"verdicts": [{"case": "x"}]}, "is damaged: its verdicts cannot be read; run without --resume"),
        ({"verdicts": []}, "has no verdict of a case, backend and mode that is to be judged here"),
        ({"bases": [1]}, "is damaged: its verdicts cannot be read"),
        (None, "is no JSON: it may be truncated; expected what run --json writes"),
    ],
)
def test_a_report_that_cannot_be_continued_is_2_and_says_why(earlier, tmp_path, change, message):
    path = tmp_path / "report.json"
    path.write_text(earlier[:-100] if change is None else json.dumps({**json.loads(earlier), **change}))
    result = crosscheck("--resume", path, backends="Planted")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("crosscheck: ") and message in result.stderr


def test_a_report_that_is_not_there_and_one_of_another_run_are_refused(earlier, tmp_path):
    with pytest.raises(ResumeError, match=r"the report nowhere\.json cannot be read: No such file"):
        read_report(Path("nowhere.json"), set())
    (tmp_path / "report.json").write_text(earlier)
    with pytest.raises(ResumeError, match="expected the options of the run that wrote it"):
        read_report(tmp_path / "report.json", {("another case", "Planted", "eager")})


def test_a_report_without_bases_keeps_nothing(earlier, tmp_path):
    """As those of versions that did not write down what verdicts rest on."""
    report = json.loads(earlier)
    (tmp_path / "report.json").write_text(json.dumps({name: x for name, x in report.items() if name != "bases"}))
    (note,) = notes(crosscheck("--resume", tmp_path / "report.json", backends="Planted"))
    assert note.endswith("; 3 judged again: the report does not say what they rest on")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--list", "--resume", "x.json"], "--list judges nothing, so there is nothing for --resume; expected one of"),
        (["--gpu-jobs", "2"], "--gpu-jobs means something with --jobs only"),
        (["--jobs", "0"], "0 is not in the range"),
    ],
)
def test_options_that_would_be_ignored_are_refused(arguments, message):
    result = crosscheck(*arguments, backends="Planted")
    assert (result.exit_code, result.stdout) == (2, "") and message in result.stderr


def test_a_run_that_is_given_no_ledger_keeps_no_basis():
    found: Run = run([Case("lm_head", "bf16", (3,), 16, 9)], [planted.backend(planted.Planted)], timeout=60)
    assert found.bases == {} and found.verdicts[0].basis == ""
