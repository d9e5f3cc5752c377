"""The report: what the tables count, and that they can be read on any terminal and without the source."""

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import planted
import pytest
from click.testing import CliRunner
from rich.console import Console

from crosscheck.accuracy import Accuracy
from crosscheck.backends import NumpyAdapter
from crosscheck.cases import Case, full_suite
from crosscheck.cli import main
from crosscheck.judge import expected_answer, judge
from crosscheck.report import (
    CELLS_LEGEND,
    CHECKS_LEGEND,
    GRADIENTS_LEGEND,
    IDS_LEGEND,
    ULP_LEGEND,
    UNANSWERED_LEGEND,
    counted,
    print_environments,
    print_report,
    repeat_command,
)
from crosscheck.report_json import as_json
from crosscheck.report_table import _power
from crosscheck.runner import Run
from crosscheck.verdict import CHECKS, Verdict

DOCS = Path(__file__).resolve().parents[1] / "docs"
CASES = [Case("lm_head", dtype, (3,), 16, 9, digits) for dtype in ("bf16", "fp32") for digits in (2, 3)]
COMMAND = ["crosscheck", "run"]


def verdicts(adapter: type[NumpyAdapter], name: str) -> list[Verdict]:
    return [judge(adapter("cpu", 1), name, case, "eager", expected_answer(case)) for case in CASES]


def raised(name: str) -> Verdict:
    return Verdict(CASES[0].id, "lm_head", name, "eager", "planted", "raised", "ValueError: no, in: the call itself")


def printed(found: list[Verdict], width: int = 80, *, verbose: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width)
    print_report(console, Run({"some": {}}, found), COMMAND, verbose=verbose)
    return out.getvalue().splitlines()


def in_one_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def row(lines: list[str], name: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(f" {name} eager")]
    return line.split()[2:]


# What is explained -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [40, 80, 124])
def test_signs_that_are_shown_are_explained_and_no_others(width):
    logits = in_one_line(printed(verdicts(planted.Planted, "some"), width))
    assert CELLS_LEGEND in logits and ULP_LEGEND in logits and GRADIENTS_LEGEND in logits
    assert UNANSWERED_LEGEND not in logits and IDS_LEGEND not in logits
    crashed = in_one_line(printed([raised("some")], width))
    assert UNANSWERED_LEGEND in crashed and IDS_LEGEND in crashed
    assert ULP_LEGEND not in crashed and GRADIENTS_LEGEND not in crashed


def kinds(text: str) -> set[str]:
    """The words of a text or the parts of an id, with numbers and float types taken for one."""
    return {re.sub(r"(bf|fp)\d+|\d+(x\d+)*", "#", word) for word in re.findall(r"\w+", text)}


@pytest.mark.parametrize("where", ["--help", "docs"])
def test_every_part_of_a_case_id_is_explained(where):
    page = (DOCS / "crosscheck.md").read_text()
    text = CliRunner().invoke(main, ["run", "--help"]).stdout if where == "--help" else page
    ids = " ".join(case.id.replace("_fp32-", "-") for case in full_suite())
    assert {"N#", "Nscalar", "dauto", "bias_#", "#x#", "int#"} <= kinds(ids)
    assert kinds(ids) - kinds(text) == set()


@pytest.mark.parametrize("check", CHECKS)
def test_every_column_is_explained_in_the_docs(check):
    assert f"| `{check}` |" in (DOCS / "crosscheck.md").read_text()


def test_one_is_no_plural():
    assert [counted(number, "verdict") for number in (0, 1, 2)] == ["0 verdicts", "1 verdict", "2 verdicts"]


def test_an_interrupted_run_is_not_headed_equal():
    def last(found: list[Verdict]) -> str:
        out = io.StringIO()
        run = Run({"some": {}}, found, complete=False, due=9)
        print_report(Console(file=out, width=80), run, COMMAND, verbose=False)
        return out.getvalue().splitlines()[-1]

    good, bad = verdicts(planted.Planted, "some")[0], verdicts(planted.FlipsBits, "some")[0]
    size = "(1 case, 1 backend, 1 verdict)"
    assert last([good]) == f"INTERRUPTED: 1 of 9 verdicts made; no bit that was compared differs {size}"
    assert last([bad]) == f"INTERRUPTED: 1 of 9 verdicts made; 1 verdict with other bits {size}"


def test_where_nothing_answered_nothing_is_said_to_be_equal():
    last = printed([raised("some")])[-1]
    assert last == "FAILED: 1 verdict raised; nothing was compared (1 case, 1 backend, 1 verdict)"


# What is counted -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (2e-12, "2e-12"), (5e-5, "5e-5"), (1.0, "1"), (3e5, "3e5"), (4e10, "4e10"), (math.inf, "inf")],
)
def test_powers_of_ten_are_short(value, shown):
    assert _power(value) == shown


@pytest.mark.parametrize("width", [40, 60, 72, 80, 124])
def test_every_line_of_the_tables_fits(width):
    lines = printed(verdicts(planted.Planted, "torch-cuda") + verdicts(planted.Planted, "jax-cpu"), width)
    assert max(map(len, lines[:-1])) <= width
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80, 124])
@pytest.mark.parametrize("cases", [1, 400])
def test_no_word_of_a_table_is_broken(width, cases):
    (verdict, *_), ops = verdicts(planted.Planted, "torch-cuda"), ("embedding_fp32", "lm_head_fp32")
    lines = printed([replace(verdict, op=op) for op in ops] * cases, width)
    assert {*ops, "torch-cuda", "eager", "planted", f"{cases}/{cases}"} <= {
        word.rstrip(",") for line in lines for word in line.split()
    }


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_gets_each_check_by_its_full_name(width):
    lines = printed(verdicts(planted.SpoilsPadding, "pads") + verdicts(planted.Planted, "good"), width)
    text = " ".join(" ".join(lines[lines.index("lm_head") :]).split())
    pads, good = text.split(" good eager, runs planted ")
    assert pads.startswith("lm_head pads eager, runs planted ")
    for check in CHECKS:
        assert f"{check} {0 if check == 'padding' else 4}/4" in pads
        assert f"{check} 4/4" in good
    assert re.search(r"ULP [\de.]+ ~[\de.]+", good)


def test_a_narrow_terminal_gets_one_line_for_each_accuracy():
    text = in_one_line(printed(verdicts(planted.Planted, "some"), 40))
    assert re.search(r"lm_head, 2 bfloat16 out [\de.]+ [\de.]+ [\de.-]+ float32 out [\de.]+ [\de.]+ [\de.-]+ lm_", text)


def test_words_are_full_where_there_is_room_and_explained_where_there_is_not():
    found = verdicts(planted.Planted, "some")
    wide, narrow = printed(found, 124), printed(found, 80)
    for word in (
        "bits",
        "inputs",
        "population",
        "position",
        "neighbours",
        "padding",
        "chunking",
        "layout",
        "repeat",
        "grad",
    ):
        assert word in wide[0].split()
    assert in_one_line(narrow).count(CHECKS_LEGEND) == 1
    for short in narrow[0].split()[2:]:
        assert short in CHECKS_LEGEND + GRADIENTS_LEGEND


def test_cells_count_cases_that_passed_of_those_judged():
    lines = printed(verdicts(planted.FlipsBits, "bad") + verdicts(planted.SpoilsPadding, "pads"))
    assert row(lines, "bad")[:10] == ["0/4"] + ["4/4"] * 9
    assert row(lines, "pads")[:10] == ["4/4"] * 5 + ["0/4"] + ["4/4"] * 4


def test_a_case_without_an_answer_counts_as_bits_that_differ():
    lines = printed([*verdicts(planted.Planted, "some")[1:], raised("some")])
    assert row(lines, "some")[:2] == ["3/4", "3/3"]
    only = printed([raised("some")])
    assert row(only, "some")[:10] == ["0/1"] + ["-"] * 9
    assert "  raised: ValueError: no, in: the call itself" in only


def test_what_ran_is_named():
    narrow = printed(verdicts(planted.Planted, "some"))
    assert any(line.split()[:2] == ["runs", "planted"] for line in narrow)
    assert row(printed(verdicts(planted.Planted, "some"), 124), "some")[0] == "planted"


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
    report = as_json(Run({}, [verdict]), [], "crosscheck run", [])
    assert report["verdicts"][0]["accuracy"] == {
        "max_ulp": "inf", "mean_ulp": "nan", "max_relative": 0.5, "samples": 3, "max_scaled_ulp": 0.0,
        "histogram": {},
    }  # fmt: skip
