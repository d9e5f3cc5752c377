"""What is said of candidates: one sentence each, who agrees with whom, and whether the controls were caught."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from crosscheck.agreement import agreement, print_agreement
from crosscheck.judge_candidate import BAD_ID, BATCH, VOCAB, of_nan_alone
from crosscheck.runner import Run
from crosscheck.verdict import NOT_OFFERED, Failure, Verdict, counted

__all__ = ["candidates_json", "print_candidates", "sentence"]


SIZES = ("population", "padding", "chunking")  # the columns that change how many rows there are


# One sentence ------------------------------------------------------------------------------------------
def sentence(verdicts: Sequence[Verdict]) -> str:
    """What a candidate is, by the verdicts on it in all modes: what is worst, then what goes with it."""
    judged = [verdict for verdict in verdicts if verdict.status == "judged"]
    unanswered = [verdict for verdict in verdicts if verdict.status not in ("judged", NOT_OFFERED)]
    if not judged:
        return _no_answer(unanswered[0]) if unanswered else f"nothing was judged: {verdicts[0].message}"
    parts = [_what_it_is(judged), *_and_also(verdicts, judged)]
    if unanswered:
        parts.append(
            f"no answer in {len(unanswered)} of {counted(len(verdicts), 'verdict')}: it {_no_answer(unanswered[0])}"
        )
    return "; ".join(parts)


def _no_answer(verdict: Verdict) -> str:
    what = {"timed out": "hung", "not run": "was not run"}.get(verdict.status, verdict.status)
    return f"{what}: {verdict.message}"


def _failures(judged: Sequence[Verdict], *columns: str) -> list[Failure]:
    return [
        failure
        for verdict in judged
        for column in columns
        for failure in verdict.checks[column].failed
        if failure.difference is not None
    ]


def _what_it_is(judged: Sequence[Verdict]) -> str:
    bits = _failures(judged, "bits")
    kinds = {failure.difference["kind"]: failure for failure in reversed(bits) if failure.difference is not None}
    for kind in ("dtype", "shape"):
        if kind in kinds:
            return f"returns another {kind}: {kinds[kind].text}"
    changes = _failures(judged, "repeat", *BATCH, "layout")
    serious = [failure for failure in changes if not of_nan_alone(failure.difference)]
    if serious:
        return _depends(judged, serious[0])
    varied = any(verdict.checks[column].passed for verdict in judged for column in SIZES)
    invariant = "batch-invariant" if varied else "not tried in batches of another size"
    if changes:
        invariant = f"batch-invariant but for NaN patterns ({changes[0].trial})"
    if bits and all(failure.trial.startswith(BAD_ID) for failure in bits):
        return f"answers a bad id with another row, where an error or a row of NaN is due: {bits[0].trial}"
    if bits:
        return f"{invariant}, with other bits than the contract{_only(judged)}"
    compared = [verdict.checks["bits"] for verdict in judged]
    if not any(check.passed for check in compared):
        return f"{invariant}; not compared with the contract: {compared[0].not_applicable[0]['reason']}"
    return f"exactly the contract's bits, {invariant}" if changes or not varied else "exactly the contract's bits"


def _depends(judged: Sequence[Verdict], worst: Failure) -> str:
    """On what; changes of the batch are told with the fewest rows that show one."""
    if worst.trial in {failure.trial for failure in _failures(judged, "repeat")}:
        return f"not repeatable: {worst.trial}"
    if worst.trial in {failure.trial for failure in _failures(judged, "layout")}:
        return f"depends on how its arguments are stored: {worst.trial}"
    of_rows = [f for f in _failures(judged, *BATCH) if f.trial not in VOCAB and not of_nan_alone(f.difference)]
    if not of_rows:
        return f"depends on the rest of the vocab: {worst.trial}"
    found = [verdict.smallest for verdict in judged if verdict.smallest is not None]
    if not found:
        return f"depends on the batch: {of_rows[0].trial}"
    smallest = min(found, key=lambda one: int(one["rows"]))
    return f"depends on the batch: {smallest['transform']}, from {counted(smallest['rows'], 'row')} on"


def _only(judged: Sequence[Verdict]) -> str:
    natures = [verdict.nature for verdict in judged if verdict.checks["bits"].failed]
    return f" (only {', '.join(dict.fromkeys(natures))})" if all(natures) else ""


def _and_also(verdicts: Sequence[Verdict], judged: Sequence[Verdict]) -> list[str]:
    parts = []
    changed = dict.fromkeys(failure.trial.partition(" after")[0] for failure in _failures(judged, "inputs"))
    if changed:
        parts.append(f"changes its arguments: {', '.join(changed)}")
    raised = [
        failure
        for verdict in judged
        for name, check in verdict.checks.items()
        for failure in check.failed
        if failure.difference is None and name != "grad"
    ]
    if raised:
        parts.append(f"{raised[0].text} under a transform: {raised[0].trial}")
    parts += _compiled(verdicts)
    worst = max((verdict.accuracy.max_scaled_ulp for verdict in judged if verdict.accuracy is not None), default=None)
    if worst is not None:
        parts.append(f"at most {worst:.3g} ULP of a logit's scale from the exact answer")
    if above := [verdict for verdict in judged if verdict.intolerable]:
        parts.append(f"above the tolerance in {len(above)} of {counted(len(judged), 'verdict')}")
    return [*parts, *_gradients(judged)]


def _compiled(verdicts: Sequence[Verdict]) -> list[str]:
    """Eager code against compiled code, over the cases that both have judged."""
    refused = [v for v in verdicts if v.status == NOT_OFFERED and "cannot be compiled" in v.message]
    if refused:
        return [refused[0].message]
    eager = {v.case: v.digest for v in verdicts if v.mode == "eager" and v.digest}
    both = [v for v in verdicts if v.mode != "eager" and v.digest and v.case in eager]
    other = sum(v.digest != eager[v.case] for v in both)
    if not both:
        return []
    said = f"other bits in {other} of {counted(len(both), 'case')}" if other else "the same bits"
    return [f"compiled, {said}"]


def _gradients(judged: Sequence[Verdict]) -> list[str]:
    checks = [verdict.checks["grad"] for verdict in judged]
    reasons = [entry["reason"] for check in checks for entry in check.not_applicable]
    refused = [reason for reason in reasons if reason.startswith(NOT_OFFERED)]
    failed = [failure for check in checks for failure in check.failed]
    if changed := [failure for failure in failed if not failure.trial.startswith("the call itself")]:
        return [f"gradients that change with: {changed[0].trial}"]
    if failed:
        return ["gradients with other bits" if failed[0].difference else f"gradients: {failed[0].text}"]
    if any(check.passed for check in checks):
        return ["gradients with exactly the contract's bits"]
    return [f"gradients {refused[0]}"] if refused else []


# Report ------------------------------------------------------------------------------------------------
def _of(run: Run, name: str) -> list[Verdict]:
    return [verdict for verdict in run.verdicts if verdict.backend == name]


def _said(run: Run, name: str) -> str:
    """The sentence; of an interrupted run it holds for what was judged by then."""
    own = sentence(_of(run, name))
    return own if run.complete else f"so far, {own}"


def candidates_json(run: Run) -> dict[str, Any]:
    """The members of the JSON report that a run with candidates has in addition."""
    if not run.candidates:
        return {}
    said = {name: _said(run, name) for name in run.candidates if _of(run, name)}
    return {
        "candidates": said,
        "agreement": agreement(run.verdicts).to_json(),
        "controls": [control.to_json() for control in run.controls],
    }


def print_candidates(console: Console, run: Run) -> None:
    if not run.candidates:
        return
    console.print(Text("Candidates", style="bold"))
    for name in run.candidates:
        if _of(run, name):
            console.print(Text(f"  {name}: {_said(run, name)}"), soft_wrap=True)
    print_agreement(console, agreement(run.verdicts))
    for control in run.controls:
        said = "caught" if control.caught else "NOT CAUGHT"
        style = "dim" if control.caught else "bold red"
        console.print(Text(f"  control, {control.what}: {said}", style=style), soft_wrap=True)
