"""What the HTML report shows of one verdict, and of one case: plain values for the template, from the JSON report."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from crosscheck.report_plots import bars, bit_fields, heat_map
from crosscheck.report_table import short
from crosscheck.report_text import sentences
from crosscheck.reproducer_report import Reproducer
from crosscheck.verdict import NOT_OFFERED, counted

__all__ = ["SIGNS", "anchor", "bad_words", "case_detail", "failing", "verdict_detail"]

View = dict[str, Any]
Report = Mapping[str, Any]
MISSING = "not made"
SIGNS = {"different": "≠", "failed": "!", "incomplete": "…", "equal": "=", NOT_OFFERED: "–", MISSING: "·"}


def anchor(verdict: Report) -> str:
    """The id of a verdict's place on the page; that of a case is its own id."""
    return f"{verdict['case']}:{verdict['backend']}:{verdict['mode']}"


def failing(verdict: Report) -> list[str]:
    """What a verdict failed in, in words of one column: the checks, or why it has none."""
    if verdict["status"] != "judged":
        return [verdict["status"]]
    return [name for name, check in verdict["checks"].items() if check["failed"]] or ["tolerance"]


def bad_words(verdicts: Sequence[Report]) -> list[str]:
    """By what the filter finds a case: of each verdict that is not equal, where and in what."""
    bad = [verdict for verdict in verdicts if verdict["failed"]]
    return [f"{verdict['backend']} {verdict['mode']} {' '.join(failing(verdict))}" for verdict in bad]


# A verdict that is not equal -------------------------------------------------------------------------------
def verdict_detail(verdict: Report, bins: Report) -> View:
    said = sentences(verdict)
    failures = [(name, failure) for name, check in verdict["checks"].items() for failure in check["failed"]]
    return {
        **{name: verdict[name] for name in ("case", "backend", "mode", "implementation", "outcome", "repeat")},
        "anchor": anchor(verdict),
        "failing": failing(verdict),
        "lead": said[0],
        "others": said[len(failures) :] if verdict["status"] == "judged" else said,
        "checks": [_check(name, check) for name, check in verdict["checks"].items()],
        "first": _first(failures),
        "trials": [_trial(name, failure) for name, failure in failures],
        "spread": _spread(verdict, failures, bins["distances"]),
        "accuracy": _accuracy(verdict, bins["errors"]),
        "left_out": _left_out(verdict),
        "reproducers": [Reproducer(**said).sentence() for said in verdict["reproducers"]],
        "facts": _facts(verdict),
    }


def _check(name: str, check: Report) -> View:
    total = check["passed"] + len(check["failed"])
    return {"name": name, "state": check["state"], "passed": check["passed"], "total": total}


def _trial(name: str, failure: Report) -> View:
    difference = failure["difference"]
    view = {"check": name, "trial": failure["trial"], "text": failure["text"]}
    if difference is None or difference["kind"] != "bits":
        return view
    dtype = difference["actual_dtype"]
    return {
        **view,
        **{name: difference[name] for name in ("count", "total", "ulp", "max_ulp", "actual_bits", "expected_bits")},
        "dtype": dtype,
        "shape": list(difference["actual_shape"]),
        "index": list(difference["index"]),
        "actual": _value(difference["actual"], dtype),
        "expected": _value(difference["expected"], dtype),
    }


def _value(value: Any, dtype: str) -> str:
    """The shortest digits that name the value in its own dtype."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).type
    with np.errstate(invalid="ignore"):  # a signalling NaN is narrowed
        return str(kind(value))


def _first(failures: Sequence[tuple[str, Report]]) -> View | None:
    """The first difference of bits, digit by digit."""
    found = next((pair for pair in failures if (pair[1]["difference"] or {}).get("kind") == "bits"), None)
    if found is None:
        return None
    view = _trial(*found)
    view["fields"] = bit_fields(view["actual_bits"], view["expected_bits"], view["dtype"])
    return view


def _spread(verdict: Report, failures: Sequence[tuple[str, Report]], bounds: Sequence[Any]) -> View | None:
    found = next(((name, failure) for name, failure in failures if failure["spread"] is not None), None)
    if found is None:
        return None
    name, failure = found
    spread = failure["spread"]
    (high, wide), (rows, columns) = spread["shape"], (len(spread["grid"]), len(spread["grid"][0]))
    return {
        **spread,
        "check": name,
        "trial": failure["trial"],
        "count": failure["difference"]["count"],
        "image": heat_map(spread["grid"], spread["shape"]),
        "bins": (rows, columns),
        "per_bin": (-(-high // rows), -(-wide // columns)),
        "axes": _axes(verdict["op"], name),
        "bars": bars([float(bound) for bound in bounds], spread["distances"], whole=True, nan=spread["nan"]),
    }


def _axes(op: str, check: str) -> tuple[str, str]:
    if check == "grad":
        return "row", "column"
    return "row", "vocab" if op.startswith("lm_head") else "column"


def _accuracy(verdict: Report, bounds: Sequence[Any]) -> View | None:
    accuracy = verdict["accuracy"]
    if accuracy is None or not accuracy["histogram"]:
        return None
    counts = accuracy["histogram"]
    return {
        "samples": accuracy["samples"],
        "max": short(float(accuracy["max_ulp"])),
        "mean": short(float(accuracy["mean_ulp"])),
        "scaled": short(float(accuracy["max_scaled_ulp"])),
        "relative": f"{float(accuracy['max_relative']):.0e}",
        "bars": bars([float(bound) for bound in bounds], counts["ulp"], counts["scaled"]),
    }


def _left_out(verdict: Report) -> list[View]:
    """The trials that could not be made, together where they share a reason."""
    reasons: dict[str, list[str]] = {}
    for name, check in verdict["checks"].items():
        for entry in check["not_applicable"]:
            what = name if entry["trial"] == "any" else f"{name}, {entry['trial']}"
            reasons.setdefault(entry["reason"], []).append(what)
    return [{"reason": reason, "trials": trials} for reason, trials in reasons.items()]


def _facts(verdict: Report) -> dict[str, str]:
    """What else is known, by what it is called."""
    smallest = verdict["smallest"]
    facts = {
        "implementation": verdict["implementation"],
        "digits": verdict["digits"],
        "dtype of the result": verdict["dtype"],
        "only differ in": verdict["nature"],
        "smallest batch": f"{counted(smallest['rows'], 'row')}: {smallest['transform']}" if smallest else "",
        "kept": "from an earlier run" if verdict["kept"] else "",
        "time": f"{verdict['seconds']:.2f} s" if verdict["seconds"] else "",
        "SHA-256 of the result": verdict["digest"],
        "of the contract's": verdict["contract_digest"] if verdict["contract_digest"] != verdict["digest"] else "",
    }
    return {name: value for name, value in facts.items() if value}


# A case ----------------------------------------------------------------------------------------------------
def case_detail(case: str, verdicts: Sequence[Report], bins: Report) -> View:
    """The verdicts on a case, and its histograms: one for all that have the same errors."""
    errors: list[tuple[Any, View, list[str]]] = []
    for verdict in verdicts:
        view = _accuracy(verdict, bins["errors"])
        if view is not None:
            names = next((names for known, _, names in errors if known == verdict["accuracy"]), None)
            if names is None:
                errors.append((verdict["accuracy"], view, names := []))
            names.append(f"{verdict['backend']} {verdict['mode']}")
    return {
        "id": case,
        "bad": bad_words(verdicts),
        "verdicts": [_row(verdict) for verdict in verdicts],
        "errors": [{**view, "names": names} for _, view, names in errors],
    }


def _row(verdict: Report) -> View:
    checks = verdict["checks"].values()
    passed = sum(check["passed"] for check in checks)
    accuracy = verdict["accuracy"]
    return {
        **{name: verdict[name] for name in ("backend", "mode", "implementation", "outcome", "dtype", "message")},
        "anchor": anchor(verdict) if verdict["failed"] else None,
        "passed": passed,
        "total": passed + sum(len(check["failed"]) for check in checks),
        "left_out": sum(len(check["not_applicable"]) for check in checks),
        "ulp": (short(float(accuracy["max_ulp"])), short(float(accuracy["mean_ulp"]))) if accuracy else None,
        "seconds": f"{verdict['seconds']:.2f}" if verdict["seconds"] else "",
        "digest": verdict["digest"][:10],
    }
