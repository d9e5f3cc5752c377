"""Candidates as they are typed, NAME=FRAMEWORK:MODULE:FUNCTION, and the tolerances, DTYPE=ULP."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from crosscheck.cases import DTYPES
from crosscheck.controls import CONTROLS
from crosscheck.registry import BACKENDS, Backend

__all__ = ["CONTRACT", "CandidateError", "candidate_backends", "tolerances"]

CONTRACT = "contract"  # what the tables of agreement call it
_BASES = {("torch", "cpu"): "torch-cpu", ("torch", "cuda"): "torch-cuda", ("jax", "cpu"): "jax-cpu",
          ("jax", "cuda"): "jax-gpu"}  # fmt: skip
_ADAPTERS = {"torch": "TorchCandidate", "jax": "JaxCandidate"}
_PATH = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_FORM = "expected NAME=torch:MODULE:FUNCTION or NAME=jax:MODULE:FUNCTION, as in mine=torch:my_package.head:lm_head"


class CandidateError(ValueError):
    """What was typed cannot be used; the text is one sentence."""


def candidate_backends(specs: Sequence[str], device: str, taken: Sequence[str] = ()) -> list[Backend]:
    """A backend for each candidate, in the process settings of its framework on the device.

    Arguments:
        specs: as typed.
        device: "cpu" or "cuda".
        taken: names that a candidate may not have, beside those of the known backends.

    Raises:
        CandidateError.

    Example:
        >>> candidate_backends(["mine=torch:pkg.head:lm_head"], "cpu")[0].target
        'pkg.head:lm_head'
    """
    found: dict[str, Backend] = {}
    reserved = {*BACKENDS, *taken, *(control.backend.name for control in CONTROLS), CONTRACT}
    for spec in specs:
        matched = re.fullmatch(rf"([^=]*)=([^:]*):({_PATH}:{_PATH})", spec)
        if matched is None:
            raise CandidateError(f"the candidate {spec!r} cannot be read; {_FORM}")
        name, framework, target = matched.groups()
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise CandidateError(f"{name!r} is no name for a candidate; expected letters, digits, '_', '.' and '-'")
        if name in reserved:
            raise CandidateError(f"a candidate cannot be called {name!r}, which is a name of crosscheck's own")
        if name in found:
            raise CandidateError(f"two candidates are called {name!r}; expected a name for each")
        if framework not in _ADAPTERS:
            raise CandidateError(f"the candidate {name!r} is in {framework!r}; expected torch or jax")
        base = BACKENDS[_BASES[framework, device]]
        factory = f"crosscheck.candidate_adapters:{_ADAPTERS[framework]}"
        found[name] = replace(base, name=name, factory=factory, target=target)
    return list(found.values())


def tolerances(words: Sequence[str]) -> dict[str, float]:
    """{"bfloat16": 1.0} of ["bf16=1"].

    Raises:
        CandidateError.
    """
    found: dict[str, float] = {}
    for word in words:
        dtype, _, number = word.partition("=")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if dtype not in DTYPES or not 0 <= limit < math.inf:
            raise CandidateError(
                f"the tolerance {word!r} cannot be read; expected a dtype of {', '.join(DTYPES)} and a number of ULPs, "
                "as in bf16=1"
            )
        if DTYPES[dtype].name in found:
            raise CandidateError(f"two tolerances are given for {dtype}; expected one")
        found[DTYPES[dtype].name] = limit
    return found
