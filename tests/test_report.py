"""The report: what the tables count, and that they can be read at 80 and at 120 columns."""

import io
import math

import planted
import pytest
from rich.console import Console

from crosscheck.accuracy import Accuracy
from crosscheck.backends import NumpyAdapter
from crosscheck.cases import Case
from crosscheck.judge import expected_result, judge
from crosscheck.report import LEGEND, _power, print_environments, print_report, repeat_command
from crosscheck.report_json import as_json
from crosscheck.runner import Run
from crosscheck.verdict import Verdict

CASES = [Case("lm_head", dtype, (3,), 16, 9, digits) for dtype in ("bf16", "fp32") for digits in (2, 3)]
COMMAND = ["crosscheck", "run"]


def verdicts(adapter: type[NumpyAdapter], name: str) -> list[Verdict]:
    return [judge(adapter("cpu", 1), name, case, "eager", expected_result(case)) for case in CASES]


def raised(name: str) -> Verdict:
    return Verdict(CASES[0].id, "lm_head", name, "eager", "planted", "raised", "ValueError: no, in: the call itself")


def printed(found: list[Verdict], width: int = 80, *, verbose: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width)
    print_report(console, Run({"some": {}}, found), COMMAND, verbose=verbose)
    return out.getvalue().splitlines()


def row(lines: list[str], name: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(f" {name} eager")]
    return line.split()[2:]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (2e-12, "2e-12"), (5e-5, "5e-5"), (1.0, "1"), (3e5, "3e5"), (4e10, "4e10"), (math.inf, "inf")],
)
def test_powers_of_ten_are_short(value, shown):
    assert _power(value) == shown


@pytest.mark.parametrize("width", [80, 120])
def test_every_line_of_the_tables_fits(width):
    lines = printed(verdicts(planted.Planted, "torch-cuda") + verdicts(planted.Planted, "jax-cpu"), width)
    assert max(map(len, lines[:-1])) <= width
    assert not any("…" in line for line in lines)


def test_words_are_full_where_there_is_room_and_explained_where_there_is_not():
    found = verdicts(planted.Planted, "some")
    wide, narrow = printed(found, 120), printed(found, 80)
    for word in ("bits", "inputs", "population", "position", "neighbours", "padding", "chunking", "layout", "repeat"):
        assert word in wide[0].split()
    assert " ".join(narrow).count(LEGEND[:40]) == 1
    for short in narrow[0].split()[2:]:
        assert short in LEGEND


def test_cells_count_cases_that_passed_of_those_judged():
    lines = printed(verdicts(planted.FlipsBits, "bad") + verdicts(planted.SpoilsPadding, "pads"))
    assert row(lines, "bad")[:9] == ["0/4"] + ["4/4"] * 8
    assert row(lines, "pads")[:9] == ["4/4"] * 5 + ["0/4"] + ["4/4"] * 3


def test_a_case_without_an_answer_counts_as_bits_that_differ():
    lines = printed([*verdicts(planted.Planted, "some")[1:], raised("some")])
    assert row(lines, "some")[:2] == ["3/4", "3/3"]
    only = printed([raised("some")])
    assert row(only, "some")[:9] == ["0/1"] + ["-"] * 8
    assert "  raised: ValueError: no, in: the call itself" in only


def test_what_ran_is_named():
    narrow = printed(verdicts(planted.Planted, "some"))
    assert any(line.split()[:2] == ["runs", "planted"] for line in narrow)
    assert row(printed(verdicts(planted.Planted, "some"), 120), "some")[0] == "planted"


def test_equal_backends_share_one_line_of_accuracy_and_others_do_not():
    same = printed(verdicts(planted.Planted, "one") + verdicts(planted.Planted, "two"))
    assert sum(line.startswith("lm_head, 3") for line in same) == 1
    assert not any(line.startswith("  one eager") for line in same)
    other = printed(verdicts(planted.Planted, "one") + verdicts(planted.FlipsBits, "two"))
    assert {line.split()[0] for line in other if line.startswith(("  one eager", "  two eager"))} == {"one", "two"}


def test_verbose_shows_every_failed_trial():
    found = verdicts(planted.SpoilsPadding, "pads")
    short = [line for line in printed(found) if line.startswith("  padding, ")]
    assert len(short) == 4 and all(line.endswith("(and 3 more trials)") for line in short)
    assert len([line for line in printed(found, verbose=True) if line.startswith("  padding, ")]) == 16


def test_environments_say_what_ran_and_which_layouts_were_tried():
    out = io.StringIO()
    console = Console(file=out, width=80)
    good = {
        "reason": None,
        "device": "cpu",
        "threads": 1,
        "versions": {"numpy": "2", "python": "3"},
        "layouts": "views",
    }
    print_environments(console, {"numpy": good, "gone": {"reason": "not installed"}})
    assert out.getvalue() == "numpy: cpu, 1 thread; numpy 2, python 3\n  layouts: views\n"


def test_the_command_that_repeats_a_case_is_safe_in_a_shell():
    verdict = Verdict("id*", "lm_head", "numpy", "eager", "x")
    command = repeat_command(["crosscheck", "run", "--checkpoint", "my model"], verdict)
    assert command == "crosscheck run --checkpoint 'my model' --filter 'id*' --backends numpy"


def test_json_has_no_number_that_json_has_not():
    verdict = verdicts(planted.Planted, "some")[0]
    verdict.accuracy = Accuracy(math.inf, math.nan, 0.5, 3)
    report = as_json(Run({}, [verdict]), [], COMMAND, [])
    assert report["verdicts"][0]["accuracy"] == {
        "max_ulp": "inf", "mean_ulp": "nan", "max_relative": 0.5, "samples": 3,
    }  # fmt: skip
