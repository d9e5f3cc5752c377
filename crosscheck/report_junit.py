"""The report as JUnit XML, which CI systems show: a test suite for each backend and mode, a test for each case.

A verdict that is "different" is a failure, one that is "failed" or "incomplete" an error, one that is "not offered"
skipped. What fails a run beside its verdicts is a suite of its own: negative controls, and an interrupt, so that a
part of a run never passes for the whole.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from crosscheck.report_text import printable_tree, sentences
from crosscheck.reproducer_report import Reproducer
from crosscheck.verdict import NOT_OFFERED

__all__ = ["junit"]

Report = Mapping[str, Any]
_TAGS = {"different": "failure", "failed": "error", "incomplete": "error", NOT_OFFERED: "skipped"}
_COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def junit(report: Report) -> str:
    """The XML of a report, the tree of `crosscheck.report_json`."""
    shown = printable_tree(dict(report))
    root = ElementTree.Element("testsuites", name="crosscheck")
    lanes: dict[tuple[str, str], list[Report]] = {}
    for verdict in shown["verdicts"]:
        lanes.setdefault((verdict["backend"], verdict["mode"]), []).append(verdict)
    for (backend, mode), verdicts in lanes.items():
        suite = ElementTree.SubElement(root, "testsuite", name=f"{backend} {mode}", timestamp=shown["written"][:19])
        _properties(suite, shown, backend)
        for verdict in verdicts:
            _verdict(suite, verdict)
    _of_the_run(root, shown)
    for suite in root:
        _count(suite, suite.iter("testcase"))
    _count(root, root.iter("testcase"))
    ElementTree.indent(root, " ")
    text: str = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _properties(suite: ElementTree.Element, report: Report, backend: str) -> None:
    said = report["backends"].get(backend, {})
    versions = {f"version of {name}": number for name, number in (said.get("versions") or {}).items()}
    facts = {"command": report["command"], "contract": report["contract"], "device": said.get("device"), **versions}
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in facts.items():
        if value:
            ElementTree.SubElement(properties, "property", name=name, value=str(value))


def _verdict(suite: ElementTree.Element, verdict: Report) -> None:
    name = f"crosscheck.{verdict['backend']}.{verdict['mode']}"
    test = ElementTree.SubElement(
        suite, "testcase", classname=name, name=verdict["case"], time=f"{verdict['seconds']:.3f}"
    )
    tag = _TAGS.get(verdict["outcome"])
    if tag is None:
        return
    said = sentences(verdict)
    found = ElementTree.SubElement(test, tag, message=said[0])
    if tag != "skipped":
        found.set("type", verdict["outcome"])
        said += [f"implementation: {verdict['implementation']}", f"repeat: {verdict['repeat']}"]
        said += [f"reproducer: {Reproducer(**made).sentence()}" for made in verdict["reproducers"]]
        found.text = "\n".join(said)


def _of_the_run(root: ElementTree.Element, report: Report) -> None:
    controls = report.get("controls", [])
    if not controls and report["outcome"] != "interrupted":
        return
    suite = ElementTree.SubElement(root, "testsuite", name="the run itself", timestamp=report["written"][:19])
    for control in controls:
        test = ElementTree.SubElement(
            suite, "testcase", classname="crosscheck.controls", name=control["what"], time="0"
        )
        if not control["caught"]:
            ElementTree.SubElement(
                test, "failure", type="not caught", message="a planted fault was not caught: believe none of this run"
            )
    if report["outcome"] == "interrupted":
        test = ElementTree.SubElement(suite, "testcase", classname="crosscheck.run", name="complete", time="0")
        ElementTree.SubElement(test, "error", type="interrupted", message=report["summary"])


def _count(suite: ElementTree.Element, tests: Iterable[ElementTree.Element]) -> None:
    """Set the attributes that say how many tests there are, and how many of each result."""
    found, seconds = dict.fromkeys(_COUNTED.values(), 0), 0.0
    number = 0
    for test in tests:
        number, seconds = number + 1, seconds + float(test.get("time", 0))
        for result in test:
            found[_COUNTED[result.tag]] += 1
    counts = {"tests": number, **found}
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("time", f"{seconds:.3f}")
