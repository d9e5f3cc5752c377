"""The options of `crosscheck run` that name candidates, and what a run with candidates does in addition."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from crosscheck.candidates import CandidateError, candidate_backends, tolerances
from crosscheck.controls import CONTROLS, control_cases, looked_at
from crosscheck.registry import Backend
from crosscheck.runner import Run, run

__all__ = ["Candidates", "candidate_options", "read_candidates"]

_OPTIONS = (
    click.option("--candidate", "candidates", multiple=True, metavar="NAME=FRAMEWORK:MODULE:FUNCTION",
                 help="Judge your own function, in torch or jax; may be repeated. Needs one --op."),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
                 help="Where the candidates run."),
    click.option("--tolerance", "tolerances", multiple=True, metavar="DTYPE=ULP",
                 help="The error that a result of this dtype may have, in ULPs of a logit's scale."),
)  # fmt: skip


def candidate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Candidates:
    """What was typed.

    Arguments:
        named: for each candidate, the options that name it.
        limits: the tolerance of each dtype of a result.
    """

    backends: list[Backend] = field(default_factory=list)
    named: dict[str, list[str]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    op: str = ""

    def __bool__(self) -> bool:
        return bool(self.backends)

    def mark(self, result: Run) -> None:
        """Enter the tolerances, and how candidates were named."""
        for verdict in result.verdicts:
            verdict.tolerance = self.limits.get(verdict.dtype) if verdict.accuracy is not None else None
        result.candidates = self.named

    def finish(self, result: Run, timeout: float) -> None:
        """Hold the errors against the tolerances and, where there are candidates, judge the controls."""
        self.mark(result)
        if self and result.complete:
            controls = run(control_cases(self.op), [control.backend for control in CONTROLS], timeout=timeout)
            result.controls = looked_at(controls.verdicts)
            result.complete = controls.complete


def read_candidates(options: Mapping[str, Any], given: Collection[str], taken: Collection[str]) -> Candidates:
    """
    Arguments:
        options: of the command, by parameter name.
        given: the names of those that were typed.
        taken: names of backends.

    Raises:
        CandidateError: what was typed cannot be used, in one sentence.
    """
    limits, specs, device = tolerances(options["tolerances"]), options["candidates"], options["device"]
    if not specs:
        if "device" in given:
            raise CandidateError("--device means something with --candidate only; --backends name their device")
        return Candidates(limits=limits)
    backends = candidate_backends(specs, device, list(taken))
    if len(set(options["ops"])) != 1:
        raise CandidateError(
            "a candidate is a function of one operator; expected one --op, as in --op lm_head: run crosscheck once "
            "for each"
        )
    on_device = ["--device", device] if "device" in given else []
    named = {backend.name: ["--candidate", spec, *on_device] for backend, spec in zip(backends, specs, strict=True)}
    return Candidates(backends, named, limits, options["ops"][0])
