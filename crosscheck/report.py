"""The report in the terminal: the tables, how to read them, every failure with its repetition, and the outcome."""

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from crosscheck.candidate_report import print_candidates
from crosscheck.report_table import print_accuracy, print_checks
from crosscheck.reproducer_report import print_reproducers
from crosscheck.runner import Run
from crosscheck.verdict import NOT_OFFERED, OUTCOMES, Verdict, counted

__all__ = ["print_environments", "print_report", "repeat_command", "summary"]

SHOWN = 10  # failures shown unless all are asked for
CHECKS_LEGEND = (
    "bits: equal to the contract. input: left unmodified. The others compare a backend with itself: popul(ation): "
    "rows removed or added; posit(ion): reordered; neigh(bours): other rows replaced; pad(ding); chunk(ing): in two "
    "calls; lay(out): strides and offsets; rep(eat): the same call again."
)
GRADIENTS_LEGEND = (
    "grad: the gradients of hidden, weight and bias, of the table, or of logits, equal to the contract and under the "
    "transforms."
)
CELLS_LEGEND = "A cell: cases passed/judged; -: none could be judged."
UNANSWERED_LEGEND = "A case without an answer counts in bits alone, as not passed."
ULP_LEGEND = (
    "ULP (max, ~mean): how far sampled results are from the exact ones, not from another backend. The contract rounds, "
    "so equal bits have an error, too, and it is large where a logit cancels to nearly 0."
)
IDS_LEGEND = (
    "Case ids: operator-dtypes-N(rows)-K or H(width)-V(vocab)-d(digits)-bias or dtype of the ids; "
    "`crosscheck run --help` explains each part."
)
STYLES = {"equal": "bold green", "incomplete": "bold yellow", "interrupted": "bold yellow"}  # else bold red


def print_environments(console: Console, environments: dict[str, dict[str, Any]]) -> None:
    """For each backend its device, threads and versions, and what its column `layout` really tries."""
    for name, said in environments.items():
        if said["reason"] is None:
            versions = ", ".join(f"{what} {version}" for what, version in said["versions"].items())
            _line(console, f"{name}: {said['device']}, {counted(said['threads'], 'thread')}; {versions}")
            _line(console, f"  layouts: {said['layouts']}", style="dim")


def print_report(console: Console, run: Run, command: Sequence[str], *, verbose: bool) -> None:
    """The whole report.

    Arguments:
        command: what repeats the run, less --filter and --backends.
        verbose: show all failures, and for each check all its trials.
    """
    wide = print_checks(console, run.verdicts)
    for sentence in _legend(run, wide=wide):
        console.print(Text(sentence, style="dim"))
    print_accuracy(console, run.verdicts)
    print_candidates(console, run)
    print_reproducers(console, run)
    failed = [verdict for verdict in run.verdicts if verdict.failed]
    for verdict in failed if verbose else failed[:SHOWN]:
        repeat = repeat_command(command, verdict, run.candidates.get(verdict.backend, ()))
        _failure(console, verdict, repeat, verbose)
    if not verbose and len(failed) > SHOWN:
        more = counted(len(failed) - SHOWN, "more failure")
        _line(console, f"... and {more}: --verbose shows all, --report DIR keeps them")
    if failed:
        console.print(Text(IDS_LEGEND, style="dim"))
    _line(console, summary(run), style=STYLES.get(run.outcome, "bold red"))


def _legend(run: Run, *, wide: bool) -> list[str]:
    """What this report needs to be read, and no more."""
    parts = [] if wide else [CHECKS_LEGEND]
    if any(verdict.checks for verdict in run.verdicts):
        parts.append(GRADIENTS_LEGEND)
    unanswered = not all(verdict.checks or verdict.status == NOT_OFFERED for verdict in run.verdicts)
    parts.append(f"{CELLS_LEGEND} {UNANSWERED_LEGEND}" if unanswered else CELLS_LEGEND)
    if any(verdict.accuracy is not None for verdict in run.verdicts):
        parts.append(ULP_LEGEND)
    return parts


def _line(console: Console, text: str, style: str = "") -> None:
    """One line, however long: the terminal wraps it, and a file or a pipe keeps it whole."""
    console.print(Text(text, style=style), soft_wrap=True)


def _failure(console: Console, verdict: Verdict, repeat: str, verbose: bool) -> None:
    where = f"{verdict.case} on {verdict.backend}, {verdict.mode} ({verdict.implementation})"
    style = STYLES.get(verdict.outcome, "bold red")
    console.print(Text.assemble((f"{verdict.outcome.upper()} ", style), where), soft_wrap=True)
    if verdict.status != "judged":
        remedy = "; --timeout SECONDS allows more" if verdict.status == "timed out" else ""
        _line(console, f"  {verdict.status}: {verdict.message}{remedy}")
    for name, check in verdict.checks.items():
        for failure in check.failed if verbose else check.failed[:1]:
            more = len(check.failed) - 1
            others = f" (and {counted(more, 'more trial')})" if more and not verbose else ""
            _line(console, f"  {name}, {failure.trial}: {failure.text}{others}")
    if verdict.intolerable and verdict.accuracy is not None:
        error = f"{verdict.accuracy.max_scaled_ulp:.3g} ULP of the logit's scale from the exact answer"
        _line(console, f"  accuracy: {error}; tolerated are {verdict.tolerance:g}")
    _line(console, f"  repeat: {repeat}", style="dim")


def repeat_command(command: Sequence[str], verdict: Verdict, named: Sequence[str] = ()) -> str:
    """`named`: the options that name a candidate."""
    return shlex.join([*command, "--filter", verdict.case, *(named or ("--backends", verdict.backend))])


def summary(run: Run) -> str:
    """The outcome, and what it rests on: a bit that differs is told from an answer that is missing."""
    cases = counted(len({verdict.case for verdict in run.verdicts}), "case")
    verdicts = counted(len(run.verdicts), "verdict")
    kept = sum(verdict.kept for verdict in run.verdicts)
    of_earlier = f", {kept} of them kept" if kept else ""
    size = f"({cases}, {_who(run)}, {verdicts}{of_earlier})"
    if run.outcome == "equal":
        return f"EQUAL: every bit is the contract's, under every transform {size}"
    said = [] if run.complete else [f"{len(run.verdicts)} of {counted(run.due, 'verdict')} made"]
    failed = sorted((v for v in run.verdicts if v.failed), key=lambda verdict: OUTCOMES.index(verdict.outcome))
    failures = Counter(map(_what_happened, failed))
    if failures:
        (what, count), *others = failures.items()
        said.append(", ".join([f"{counted(count, 'verdict')} {what}", *(f"{n} {other}" for other, n in others)]))
    escaped = sum(not control.caught for control in run.controls)
    if escaped:
        said.append(f"{counted(escaped, 'negative control')} not caught, so this judge is not to be believed")
    judged = [verdict for verdict in run.verdicts if verdict.status == "judged"]
    if judged and not any(verdict.compared for verdict in judged):
        said.append("no result was held against the contract's")
    elif not any(verdict.outcome == "different" for verdict in run.verdicts):
        compared = any(verdict.checks for verdict in run.verdicts)
        said.append("no bit that was compared differs" if compared else "nothing was compared")
    return f"{run.outcome.upper()}: {'; '.join(said)} {size}"


def _who(run: Run) -> str:
    """How many candidates were judged, and how many backends beside them."""
    candidates = sum(name in run.candidates for name in run.environments)
    backends = len(run.environments) - candidates
    counts = {"candidate": candidates, "backend": backends}
    return ", ".join(counted(count, noun) for noun, count in counts.items() if count) or counted(0, "backend")


def _what_happened(verdict: Verdict) -> str:
    if verdict.status != "judged":
        return verdict.status
    if verdict.intolerable and not any(check.failed for check in verdict.checks.values()):
        return "above the tolerance"
    return "with other bits" if verdict.outcome == "different" else "raised under a transform"
