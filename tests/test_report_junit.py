"""The JUnit report: a CI system that reads it sees every verdict as what it is, and never a part as the whole."""

from collections import Counter
from xml.etree import ElementTree

import pytest
from reported import (
    CASES,
    FAULTS,
    HOSTILE,
    OTHERS,
    REPRODUCER,
    candidates_report,
    equal_report,
    interrupted_report,
    planted_report,
    renamed,
)

from crosscheck.report_junit import junit
from crosscheck.report_text import printable

RESULTS = {"different": "failure", "failed": "error", "incomplete": "error", "not offered": "skipped", "equal": None}


def parsed(report: dict) -> ElementTree.Element:
    return ElementTree.fromstring(junit(report))


def result(test: ElementTree.Element) -> str | None:
    found = [element.tag for element in test]
    assert len(found) < 2
    return found[0] if found else None


def test_each_backend_and_mode_is_a_suite_and_each_case_a_test():
    suites = parsed(planted_report()).findall("testsuite")
    assert [suite.get("name") for suite in suites] == [
        f"{name} eager" for name in (*(fault.__name__ for fault in FAULTS), *OTHERS)
    ]
    for suite in suites:
        assert [test.get("name") for test in suite.findall("testcase")] == [case.id for case in CASES]


def test_every_outcome_has_its_element():
    report = planted_report()
    root = parsed(report)
    tests = {(test.get("classname"), test.get("name")): test for test in root.iter("testcase")}
    seen = set()
    for verdict in report["verdicts"]:
        test = tests[f"crosscheck.{verdict['backend']}.{verdict['mode']}", verdict["case"]]
        assert result(test) == RESULTS[verdict["outcome"]], verdict["case"]
        seen.add(verdict["outcome"])
    assert seen == set(RESULTS)


@pytest.mark.parametrize("make", [planted_report, equal_report, candidates_report])
def test_the_numbers_are_those_of_the_tests(make):
    root = parsed(make())
    for element in (root, *root.findall("testsuite")):
        found = Counter(map(result, element.iter("testcase")))
        said = {name: int(element.get(name)) for name in ("tests", "failures", "errors", "skipped")}
        assert said == {
            "tests": found.total(), "failures": found["failure"], "errors": found["error"], "skipped": found["skipped"],
        }  # fmt: skip


def test_a_failure_has_every_trial_and_the_command_that_repeats_it():
    root = parsed(planted_report())
    (failure,) = root.findall(f"testsuite[@name='FlipsBits eager']/testcase[@name='{CASES[0].id}']/failure")
    assert failure.get("message").startswith("bits, the call itself: 27 of 27 elements of bfloat16 (3, 9) differ")
    assert failure.get("type") == "different"
    lines = failure.text.splitlines()
    assert lines[0] == failure.get("message")
    assert lines[-2] == f"repeat: crosscheck run --filter {CASES[0].id} --backends FlipsBits"
    assert lines[-1] == f"reproducer: {REPRODUCER.sentence()}"


def test_what_xml_cannot_hold_is_escaped_and_the_rest_is_what_it_was():
    text = junit(planted_report())
    assert "\x1b" not in text and "\u202e" not in text
    (error,) = ElementTree.fromstring(text).findall(
        f"testsuite[@name='Dies eager']/testcase[@name='{CASES[0].id}']/error"
    )
    shown = f"crashed: its process exited, last words: {printable(HOSTILE)}"
    assert error.get("message") == shown and error.text.splitlines()[0] == shown
    assert "\\x1b[31m\\u202e" in shown and "<script>" in shown and "]]>" in shown


def test_a_hostile_name_stays_one_name():
    root = parsed(renamed(planted_report(), "Dies", 'a"><b\0\ud800'))
    assert 'a"><b\\x00\\ud800 eager' in [suite.get("name") for suite in root.findall("testsuite")]


def test_an_interrupted_run_is_an_error_although_all_that_was_judged_is_equal():
    report = interrupted_report(1)
    assert [verdict["outcome"] for verdict in report["verdicts"]] == ["equal"]
    root = parsed(report)
    (error,) = root.findall("testsuite[@name='the run itself']/testcase/error")
    assert error.get("message").startswith("INTERRUPTED: 1 of 21 verdicts made")
    assert root.get("errors") == "1"


def test_a_control_that_was_not_caught_is_a_failure():
    root = parsed(candidates_report())
    tests = root.findall("testsuite[@name='the run itself']/testcase")
    assert [(test.get("name"), result(test)) for test in tests] == [
        ("a batch-variant backend", None),
        ("a flipped bit", "failure"),
    ]


def test_a_complete_run_without_candidates_says_nothing_of_itself():
    assert parsed(equal_report()).findall("testsuite[@name='the run itself']") == []
