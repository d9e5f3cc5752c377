"""What an installed wheel must hold. Run with `python -I`, so that the checkout is not on the path."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import crosscheck
from crosscheck import contract

CHECKOUT = Path(__file__).resolve().parents[1]

for package in ("crosscheck", "rlk_jax", "rlk_torch"):
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is not in the wheel"
    folder = Path(spec.origin).parent
    assert CHECKOUT not in folder.parents, f"{package} comes from {folder}, not from the wheel"
    assert (folder / "py.typed").is_file(), f"{package} has no py.typed"
    names = {file.name for file in (CHECKOUT / package).iterdir() if file.suffix in (".py", ".j2", ".css", ".js")}
    missing = names - {file.name for file in folder.iterdir()}
    assert not missing, f"{package} lacks {sorted(missing)}"

logits = contract.lm_head(np.float32([[1, 2]]), np.float32([[3, 4]]))
crosscheck.assert_bits_equal(logits, np.float32([[11]]), context="lm_head from the wheel")
assert not {"jax", "torch"} & set(sys.modules), "importing crosscheck imported a framework"
print("the wheel holds crosscheck, rlk_jax and rlk_torch, typed")
