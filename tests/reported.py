"""Reports of runs with planted faults, for the tests of what is written about them."""

from dataclasses import asdict, replace
from functools import cache
from typing import Any

import planted

from crosscheck.cases import Case
from crosscheck.controls import Caught
from crosscheck.judge import expected_answer, judge
from crosscheck.report_json import as_json
from crosscheck.reproducer_report import Reproducer
from crosscheck.runner import Run
from crosscheck.verdict import NOT_OFFERED, Verdict

CASES = (
    Case("lm_head", "bf16", (3,), 16, 9, 3),
    Case("lm_head", "fp32", (2, 40), 16, 70, 3, bias="fp32"),
    Case("embedding", "fp16", (7,), 10, 30, id_dtype="int32"),
)
FAULTS = (planted.Planted, planted.FlipsBits, planted.OtherNan, planted.FlipsOneGradientBit)
OTHERS = ("Dies", "Hangs", "Offers")
HOSTILE = """<script>hostile = 1</script> "'`]]>&amp;{{ 7 * 7 }}\x1b[31m\u202e"""

REPRODUCER = Reproducer("bits", "other bits", "1 row, K 1, V 1", "repro/FlipsBits-bits/reproduce.py", True)


@cache
def verdicts() -> tuple[Verdict, ...]:
    """Of each case: one by each planted fault, and one of each kind that has no answer."""
    found = []
    for case in CASES:
        expected = expected_answer(case)
        for fault in FAULTS:
            if fault is not planted.FlipsOneGradientBit or case.op == "lm_head":
                found.append(judge(fault("cpu", 1), fault.__name__, case, "eager", expected))
            else:
                found.append(without_answer(case, fault.__name__, NOT_OFFERED, "it takes no ids"))
        found[-len(FAULTS) + 1].reproducers.append(asdict(REPRODUCER))
        found.append(without_answer(case, "Dies", "crashed", f"its process exited, last words: {HOSTILE}"))
        found.append(without_answer(case, "Hangs", "timed out", "no answer within 1 s, in: zero rows after"))
        found.append(without_answer(case, "Offers", NOT_OFFERED, "it takes no bias"))
    return tuple(found)


def without_answer(case: Case, backend: str, status: str, message: str) -> Verdict:
    return Verdict(case.id, case.op, backend, "eager", "planted", status, message)


def environment(name: str) -> dict[str, Any]:
    return {
        "reason": None, "device": "cpu", "versions": {"numpy": "2"}, "threads": 1, "modes": ["eager"],
        "implementations": {}, "layouts": f"views for {name}",
    }  # fmt: skip


def run_of(found: list[Verdict], **fields: Any) -> Run:
    names = [*(fault.__name__ for fault in FAULTS), *OTHERS]
    return Run({name: environment(name) for name in names}, found, due=len(CASES) * len(names), **fields)


def report_of(run: Run) -> dict[str, Any]:
    return as_json(run, list(CASES), f"crosscheck run --report '{HOSTILE}'", ["a note"])


def planted_report() -> dict[str, Any]:
    return report_of(run_of(list(verdicts())))


def interrupted_report(made: int) -> dict[str, Any]:
    return report_of(run_of(list(verdicts()[:made]), complete=False))


def equal_report() -> dict[str, Any]:
    """Of two backends, which have the same errors."""
    good = [verdict for verdict in verdicts() if verdict.backend == "Planted"]
    found = [replace(verdict, backend=name) for verdict in good for name in ("one", "two")]
    return report_of(Run({name: environment(name) for name in ("one", "two")}, found, due=len(found)))


def candidates_report() -> dict[str, Any]:
    """A run with two candidates, of which one flips bits, on the cases of one operator."""
    found = [v for v in verdicts() if v.op == "lm_head" and v.backend in ("Planted", "FlipsBits")]
    controls = [Caught("control-batch", "a batch-variant backend", True), Caught("control-bit", "a flipped bit", False)]
    named = {name: ["--candidate", f"{name}=torch:mine:{name}"] for name in ("Planted", "FlipsBits")}
    return report_of(run_of(found, candidates=named, controls=controls))


def renamed(report: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The report with a backend called otherwise."""
    verdicts = [{**v, "backend": new if v["backend"] == old else v["backend"]} for v in report["verdicts"]]
    backends = {new if name == old else name: said for name, said in report["backends"].items()}
    return {**report, "verdicts": verdicts, "backends": backends}
