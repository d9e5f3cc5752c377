"""The report as one HTML page, which needs no network and, but for its filter, no script.

The page is made from the JSON report alone (`crosscheck.report_json`), so it says nothing that the JSON does not.
Texts come from outside, from candidates and what they raise: the template escapes all of them, and the page's own
policy lets no script run but the one that is written here.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from crosscheck.cases import OPS
from crosscheck.report_detail import MISSING, SIGNS, anchor, bad_words, case_detail, failing, verdict_detail
from crosscheck.report_legend import CASE_ID_PARTS, CHECK_MEANINGS, OUTCOME_MEANINGS
from crosscheck.report_text import printable_tree
from crosscheck.verdict import CHECKS, NOT_OFFERED, OUTCOMES, counted

__all__ = ["page"]

View = dict[str, Any]
Report = Mapping[str, Any]
Column = tuple[str, str]  # backend, mode
OPEN = 3  # verdicts that are not equal, up to which they are shown without a click


def page(report: Report) -> str:
    """The HTML of a report, the tree of `crosscheck.report_json`."""
    shown = printable_tree(dict(report))
    environment = Environment(
        loader=PackageLoader("crosscheck", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    loader = environment.loader
    assert loader is not None
    style, script = (loader.get_source(environment, f"report_page.{kind}")[0] for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return environment.get_template("report_page.html.j2").render(
        report=shown,
        style=Markup(style),
        script=Markup(script),
        script_digest=digest,
        signs=SIGNS,
        check_names=CHECKS,
        counted=counted,
        outcome_meanings=OUTCOME_MEANINGS,
        check_meanings=CHECK_MEANINGS,
        case_id_parts=CASE_ID_PARTS,
        **_views(shown),
    )


def _views(report: Report) -> View:
    columns, verdicts = _columns(report), report["verdicts"]
    of_case: dict[str, dict[Column, Report]] = {case: {} for case in report["cases"]}
    for verdict in verdicts:
        of_case.setdefault(verdict["case"], {})[verdict["backend"], verdict["mode"]] = verdict
    failed = [verdict for verdict in verdicts if verdict["failed"]]
    return {
        "columns": columns,
        "heads": list(Counter(backend for backend, _ in columns).items()),
        "judged": _judged(report),
        "counts": _counts(report),
        "checks": _check_rows(verdicts),
        "groups": _groups(report, of_case, columns),
        "failures": [verdict_detail(verdict, report["bins"]) for verdict in failed],
        "open": len(failed) <= OPEN,
        "details": [case_detail(case, list(own.values()), report["bins"]) for case, own in of_case.items() if own],
        "sides": [_side(name, said, verdicts) for name, said in report["backends"].items()],
        "agreement": _agreement(report["agreement"]) if "agreement" in report else None,
    }


def _columns(report: Report) -> list[Column]:
    """The backends in their modes: those that are due, and those that there are verdicts of."""
    due = [(name, mode) for name, said in report["backends"].items() for mode in said.get("modes", ())]
    made = [(verdict["backend"], verdict["mode"]) for verdict in report["verdicts"]]
    columns = list(dict.fromkeys([*due, *made]))
    backends = list(dict.fromkeys(backend for backend, _ in columns))
    return sorted(columns, key=lambda column: backends.index(column[0]))


def _judged(report: Report) -> dict[str, int]:
    """How many candidates and backends, by the noun."""
    candidates = sum(name in report.get("candidates", {}) for name in report["backends"])
    counts = {"candidate": candidates, "backend": len(report["backends"]) - candidates}
    return {noun: count for noun, count in counts.items() if count}


def _counts(report: Report) -> list[View]:
    found = Counter(verdict["outcome"] for verdict in report["verdicts"])
    missing = max(0, report["due"] - len(report["verdicts"]))
    order = ("equal", *(outcome for outcome in OUTCOMES if outcome != "equal"))
    counts = [{"outcome": outcome, "count": found[outcome]} for outcome in order if found[outcome]]
    return counts + ([{"outcome": MISSING, "count": missing}] if missing else [])


# Tables ----------------------------------------------------------------------------------------------------
def _check_rows(verdicts: Sequence[Report]) -> list[View]:
    """A row for each operator, backend, mode and implementation; a cell counts cases, passed and judged."""
    groups: dict[tuple[str, ...], list[Report]] = {}
    for verdict in verdicts:
        key = tuple(verdict[name] for name in ("op", "backend", "mode", "implementation"))
        groups.setdefault(key, []).append(verdict)
    rows = []
    for (op, backend, mode, implementation), own in sorted(groups.items(), key=lambda item: OPS.index(item[0][0])):
        cells = [_check_cell(name, own) for name in CHECKS]
        rows.append({"op": op, "backend": backend, "mode": mode, "implementation": implementation, "cells": cells})
    return rows


def _check_cell(name: str, verdicts: Sequence[Report]) -> View:
    """A verdict without an answer counts in the bits alone, as not passed."""
    states = [verdict["checks"][name]["state"] for verdict in verdicts if verdict["checks"]]
    unanswered = [verdict for verdict in verdicts if not verdict["checks"] and verdict["outcome"] != NOT_OFFERED]
    passed = states.count("pass")
    return {"passed": passed, "total": passed + states.count("fail") + (len(unanswered) if name == "bits" else 0)}


def _groups(report: Report, of_case: Mapping[str, Mapping[Column, Report]], columns: Sequence[Column]) -> list[View]:
    """The cases of each operator: of each, what every column says."""
    groups: dict[str, list[View]] = {}
    for case, own in of_case.items():
        op = report["cases"][case]["op"] if case in report["cases"] else next(iter(own.values()))["op"]
        cells = [_cell(own.get(column)) for column in columns]
        words = bad_words(list(own.values()))
        groups.setdefault(op, []).append(
            {"id": case, "rest": case.removeprefix(f"{op}-"), "cells": cells, "bad": words}
        )
    return [{"op": op, "cases": cases} for op, cases in groups.items()]


def _cell(verdict: Report | None) -> View:
    if verdict is None:
        return {"outcome": MISSING, "to": None, "what": "", "more": 0}
    if not verdict["failed"]:
        return {"outcome": verdict["outcome"], "to": verdict["case"], "what": "", "more": 0}
    what = failing(verdict)
    return {"outcome": verdict["outcome"], "to": anchor(verdict), "what": what[0], "more": len(what) - 1}


# Around the verdicts ---------------------------------------------------------------------------------------
def _agreement(found: Report) -> View:
    """The matrix, a cell for each two members."""
    pairs = {frozenset((pair["a"], pair["b"])): pair for pair in found["pairs"]}
    rows = [[None if a == b else pairs[frozenset((a, b))] for b in found["members"]] for a in found["members"]]
    alone = [members[0] for members in found["classes"] if len(members) == 1]
    return {**found, "rows": list(zip(found["members"], rows, strict=True)), "alone": alone}


def _side(name: str, said: Report, verdicts: Sequence[Report]) -> View:
    """A backend's environment, with what really ran."""
    own = [verdict for verdict in verdicts if verdict["backend"] == name]
    ran: dict[tuple[str, str], dict[str, None]] = {}
    for verdict in own:
        ran.setdefault((verdict["op"], verdict["implementation"]), {})[verdict["mode"]] = None
    threads = said.get("threads")
    facts = {
        "cannot run": [said["reason"]] if said.get("reason") else [],
        "device": [said["device"]] if said.get("device") else [],
        "threads": [str(threads)] if threads else [],
        "versions": [f"{what} {number}" for what, number in (said.get("versions") or {}).items()],
        "runs": [f"{op}: {implementation} ({', '.join(modes)})" for (op, implementation), modes in ran.items()],
        "layouts tried": [said["layouts"]] if said.get("layouts") else [],
    }
    return {"name": name, "facts": {what: lines for what, lines in facts.items() if lines}}
