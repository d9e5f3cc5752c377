"""One call as a golden keeps it: its result and, where asked for, its gradients. This runs in the backend's process.

The upstream gradient of a golden's gradients is that of a run: it is drawn with the case.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from crosscheck.backends import Adapter
from crosscheck.candidate_adapters import Candidate
from crosscheck.cases import Inputs
from crosscheck.gradients import part_of
from crosscheck.judge import Judged
from crosscheck.judge_gradient import GradientScope, gradient_call
from crosscheck.process import store_array
from crosscheck.verdict import NOT_OFFERED, NotOffered

__all__ = ["ALL_INPUTS", "answer_call", "gradients_of"]

ALL_INPUTS = "all inputs"


def gradients_of(inputs: Inputs) -> str:
    """In words: which part of a call's inputs its gradients are of, since those of a large weight are as large."""
    return part_of(inputs)[1] or ALL_INPUTS


def answer_call(
    adapter: Adapter, case: Judged, mode: str, folder: Path, gradients: bool, announce: Callable[[str], None]
) -> dict[str, Any]:
    """Make the call and store what it gives as NAME.npy in the folder.

    Returns:
        {"not offered": reason}, or {"recorded": what the parent is to know}: `arrays`, {NAME: dtype} of the files,
        with the names "result" and "grad.ARGUMENT"; `implementation`; `gradients`, in words; and `untold`, why a
        candidate was not told the case's digits.

    Raises:
        Whatever the call raises.
    """
    inputs = case.inputs()
    arguments = {name: adapter.from_numpy(array) for name, array in inputs.items()}
    try:
        result = adapter.to_numpy(adapter.run(case.op, arguments, case.digits, mode))
    except NotOffered as lacking:
        return {NOT_OFFERED: str(lacking)}
    said = {"result": store_array(folder / "result.npy", result)}
    words = ""
    if gradients:
        announce("the gradients")
        try:
            said |= _store_gradients(GradientScope(adapter, case.op, case.digits, mode), case, inputs, folder)
            words = gradients_of(inputs)
        except NotOffered as lacking:
            words = f"{NOT_OFFERED}: {lacking}"
    untold = adapter.uncompared(case.op, arguments, case.digits) if isinstance(adapter, Candidate) else None
    implementation = adapter.implementation(case.op, arguments, case.digits)
    return {"recorded": {"arrays": said, "implementation": implementation, "gradients": words, "untold": untold or ""}}


def _store_gradients(scope: GradientScope, case: Judged, inputs: Inputs, folder: Path) -> dict[str, str]:
    found = scope.gradients(scope.arguments(gradient_call(case.op, inputs, case.seed)))
    return {f"grad.{name}": store_array(folder / f"grad.{name}.npy", array) for name, array in found.items()}
