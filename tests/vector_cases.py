"""The cases of tests/vectors/contract.json, ready for `pytest.mark.parametrize`."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

PATH = Path(__file__).parent / "vectors" / "contract.json"
_DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}

Case = dict[str, Any]


@cache
def _all_cases() -> tuple[Case, ...]:
    return tuple(json.loads(PATH.read_text())["cases"])


def vector_cases(*ops: str) -> list[Any]:
    """The cases of these ops as pytest parameters whose ids are the cases' own; without ops, all of them."""
    unknown = set(ops) - {case["op"] for case in _all_cases()}
    if unknown:
        raise ValueError(f"no case of {PATH.name} has the op {sorted(unknown)}")
    return [pytest.param(case, id=case["id"]) for case in _all_cases() if not ops or case["op"] in ops]


def array(entry: dict[str, Any]) -> NDArray[Any]:
    """An entry {dtype, shape, bits} as an array with just these bits."""
    dtype = _DTYPES[entry["dtype"]]
    return np.array(entry["bits"], f"u{dtype.itemsize}").view(dtype).reshape(entry["shape"])
