"""Writing a golden: one safetensors file a case, the manifest last, and a folder that appears whole or not at all."""

import importlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from crosscheck import contract
from crosscheck.bits import as_numpy, digest
from crosscheck.calls import contract_result
from crosscheck.cases import Inputs
from crosscheck.golden_answer import gradients_of
from crosscheck.golden_arrays import Whole, as_stored, block_rows
from crosscheck.goldens import MANIFEST, SCHEMA, GoldenError
from crosscheck.gradients import contract_gradients
from crosscheck.judge import Judged
from crosscheck.judge_gradient import gradient_call
from crosscheck.report_json import machine, program_version

__all__ = ["SAMPLE_ROWS", "WHOLE_UP_TO", "Answered", "check_target", "contract_answers", "made_by", "write_golden"]

Array = NDArray[Any]
WHOLE_UP_TO = 2**24  # bytes
SAMPLE_ROWS = 3
VARIABLES = ("BLIS_", "CUDA_", "JAX_", "MKL_", "NPROC", "NPY_", "OMP_", "OPENBLAS_", "TORCH", "TRITON_", "XLA_")


@dataclass(frozen=True)
class Answered:
    """A case, its inputs, and what an implementation gave for them.

    Arguments:
        inputs: the arguments by name, with gradients also the upstream gradient, "grad".
        outputs: {"result": array}, with gradients also "grad.NAME" for each argument that has one.
        gradients, untold: as in `GoldenCase`.
    """

    case: Judged
    inputs: Inputs
    outputs: Mapping[str, Array]
    implementation: str
    gradients: str = ""
    untold: str = ""


def contract_answers(
    cases: Iterable[Judged], heard: Callable[[str], None] = lambda case_id: None, *, gradients: bool = False
) -> Iterator[Answered]:
    """The contract's own answers, in NumPy."""
    for case in cases:
        heard(case.id)
        inputs = case.inputs()
        outputs = {"result": contract_result(case.op, inputs, case.digits)}
        if not gradients:
            yield Answered(case, inputs, outputs, "contract")
            continue
        call = gradient_call(case.op, inputs, case.seed)
        grad = call.pop("grad")
        outputs |= {f"grad.{name}": array for name, array in contract_gradients(call, grad, case.digits).items()}
        yield Answered(case, {**inputs, "grad": grad}, outputs, "contract", gradients_of(inputs))


def made_by(backend: str, mode: str, said: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """What made a golden.

    Arguments:
        said: "device", "versions" and "threads", as the backend names them.
        environment: of the process that computed; the variables that choose code paths are kept.
    """
    return {
        "backend": backend,
        "mode": mode,
        "device": said["device"],
        "versions": {"numpy": np.__version__, **said["versions"]},
        "threads": said["threads"],
        "machine": machine(),
        "cpu_features": cpu_features(),
        "environment": {name: environment[name] for name in sorted(environment) if name.startswith(VARIABLES)},
    }


def cpu_features() -> list[str]:
    """The instruction sets that NumPy found and may use; `np.show_runtime` prints the same."""
    core: Any = importlib.import_module("numpy._core._multiarray_umath")  # NumPy only prints it in public
    features = getattr(core, "__cpu_features__", {})
    return [name for name, found in features.items() if found]


# Files -------------------------------------------------------------------------------------------------
def write_golden(
    folder: Path,
    answers: Iterable[Answered],
    maker: Mapping[str, Any],
    *,
    whole_up_to: int = WHOLE_UP_TO,
    sample_rows: int = SAMPLE_ROWS,
    force: bool = False,
    not_offered: Mapping[str, str] | None = None,
) -> int:
    """Write a golden and return how many bytes it has.

    Arguments:
        maker: what `made_by` gives.
        whole_up_to: larger arrays, in bytes, are stored as digests of their blocks and `sample_rows` rows.
        force: replace a golden that is there.
        not_offered: as in `Golden`; read when all answers have come.

    Raises:
        GoldenError: a folder that must not be replaced, or an array whose dtype has no place in a golden.
    """
    check_target(folder, force)
    with _appearing(folder) as new:
        cases = {}
        for answered in answers:
            cases[answered.case.id] = _write_case(new, answered, whole_up_to, sample_rows)
        manifest = {
            "schema": SCHEMA,
            "contract": contract.VERSION,
            "crosscheck": program_version(),
            "made_by": dict(maker),
            "cases": cases,
            **({"not_offered": dict(not_offered)} if not_offered else {}),
        }
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        return sum(file.stat().st_size for file in new.iterdir())


def _write_case(folder: Path, answered: Answered, whole_up_to: int, sample_rows: int) -> dict[str, Any]:
    case = answered.case
    arrays, tensors = {}, {}
    for kind, group in (("inputs", answered.inputs), ("outputs", answered.outputs)):
        for name, x in group.items():
            full = f"{kind}.{name}"
            try:
                array = as_stored(as_numpy(x, f"{full} of {case.id}"))
            except TypeError as error:
                raise GoldenError(str(error)) from error
            arrays[full], stored = _entry(full, array, whole_up_to, sample_rows)
            tensors.update(stored)
    file = f"{case.id}.safetensors"
    try:
        save_file(tensors, folder / file)
    except SafetensorError as error:
        raise GoldenError(f"{file} cannot be written: {error}") from error
    return {
        "op": case.op,
        "digits": case.digits,
        "file": file,
        "implementation": answered.implementation,
        "case": case.to_json(),
        "arrays": arrays,
        **{name: text for name in ("gradients", "untold") if (text := getattr(answered, name))},
    }


def _entry(name: str, array: Array, whole_up_to: int, sample_rows: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """What the manifest says of an array, and the tensors that go to the file."""
    whole = Whole.of(array)
    said: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": whole.sha256}
    if array.nbytes <= whole_up_to:
        return {**said, "stored": "whole"}, {name: array}
    blocks = whole.blocks(sample_rows)
    said |= {
        "stored": "blocks",
        "block_rows": block_rows(array.shape),
        "sampled_rows": list(blocks.indices),
        "blocks_sha256": digest(blocks.digests),
        "sampled_sha256": digest(blocks.sampled),
    }
    return said, {f"{name}.blocks": as_stored(blocks.digests), f"{name}.sampled": as_stored(blocks.sampled)}


def check_target(folder: Path, force: bool) -> None:
    """Before the work: raise where the folder may not be written."""
    if not folder.parent.is_dir():
        raise GoldenError(f"{folder} cannot be written: {folder.parent} is no folder")
    if not os.access(folder.parent, os.W_OK):
        raise GoldenError(f"{folder} cannot be written: {folder.parent} may not be written to")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / MANIFEST).is_file():
        raise GoldenError(f"{folder} is there and is no golden: it is not replaced; name another folder")
    if not force:
        raise GoldenError(f"{folder} is there: name another folder, or replace it with --force")


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A new folder that takes the name of `folder` when the block has ended, and is removed where it raised."""
    folder = folder.resolve()
    new = _unused(folder, "new")
    new.mkdir()
    try:
        yield new
        if folder.exists():
            old = _unused(folder, "old")
            folder.rename(old)
            try:
                new.rename(folder)
            except BaseException:
                old.rename(folder)
                raise
            shutil.rmtree(old)
        else:
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _unused(folder: Path, what: str) -> Path:
    names = (folder.with_name(f".{folder.name}.{what}-{os.getpid()}-{i}") for i in itertools.count())
    return next(name for name in names if not name.exists())
