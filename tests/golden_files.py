"""Small goldens with planted contents, and the commands on them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import planted
from click.testing import CliRunner, Result

from crosscheck.cli import main
from crosscheck.golden_write import Answered, made_by, write_golden
from crosscheck.goldens import MANIFEST
from crosscheck.registry import BACKENDS

CASE = "lm_head-bf16-N3-K100-V33-d3-bias"
MAKER = made_by("numpy", "eager", {"device": "cpu", "versions": {}, "threads": 1}, {})


@dataclass(frozen=True)
class PlantedCase:
    """A case that only has a name."""

    id: str = "planted"
    op: str = "lm_head"
    digits: int | None = 3
    seed: int = 0
    thorough: bool = False
    shared_out: ClassVar[bool] = False

    def inputs(self) -> dict[str, Any]:
        return {"hidden": np.float32([[1, 2]]), "weight": np.float32([[3, 4]])}

    def to_json(self) -> dict[str, Any]:
        return {"kind": "planted"}


def answered(result: Any, inputs: Mapping[str, Any] | None = None, **case: Any) -> Answered:
    planted_case = PlantedCase(**case)
    return Answered(planted_case, dict(inputs or planted_case.inputs()), {"result": result}, "planted")


def write(folder: Path, result: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> Path:
    """A golden of one planted case."""
    write_golden(folder, [answered(result, inputs)], MAKER, **options)
    return folder


def crosscheck(*arguments: str | Path) -> Result:
    """A command, which must not end in a traceback, nor say anything but sentences of its own on stderr."""
    known = {**planted.REGISTRY, **BACKENDS}
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], obj=known)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    assert all(line.startswith("crosscheck: ") for line in result.stderr.splitlines()), result.stderr
    return result


def changed_manifest(folder: Path, change: Any) -> None:
    """Let `change` edit the manifest in place."""
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
