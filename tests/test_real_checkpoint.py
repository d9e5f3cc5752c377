"""A real model's table, tied as its LM head, on real text: every backend gives the contract's bits in every dtype."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from crosscheck.cli import main

TEXT = (
    "Teams train in one stack and serve in another. Their embedding and their LM head are the first and the last "
    "layer, where a difference of one bit becomes a different token."
)


def checkpoint(minilm, folder, vocab):
    """The model's own file, or one with the first rows of its table."""
    if vocab == 30522:
        return minilm.table
    save_file({minilm.key: load_file(minilm.table)[minilm.key][:vocab]}, folder / "first_rows.safetensors")
    return folder / "first_rows.safetensors"


# Every dtype on both operators, every operator once at least.
@pytest.mark.parametrize(
    ("dtype", "vocab", "ops"),
    [
        ("bf16", 30522, ("embedding", "lm_head")),
        ("fp16", 4095, ("embedding_fp32", "lm_head")),
        ("fp32", 4095, ("embedding", "lm_head_fp32")),
    ],
)
def test_a_real_table_is_judged_equal_everywhere(minilm, tmp_path, dtype, vocab, ops):
    """Whole in the dtype that models are served in. Each LM head is some twenty passes over the table in each backend
    and mode, so in the others it has the first rows, of common words: trained values, tied, named by real text."""
    ids = minilm.token_ids(TEXT)
    ids = ids[ids < vocab]
    assert ids.size > 30 and len(np.unique(ids)) > 20
    np.save(tmp_path / "ids.npy", ids)
    arguments = [
        "run", "--checkpoint", str(checkpoint(minilm, tmp_path, vocab)), "--embedding-key", minilm.key, "--token-ids",
        str(tmp_path / "ids.npy"), "--max-rows", "8", "--json", str(tmp_path / "report.json"),
        *(["--dtype", dtype] if dtype != "fp32" else []), *(word for op in ops for word in ("--op", op)),
    ]  # fmt: skip
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["outcome"] == "equal"
    assert set(report["cases"]) == {
        f"{op}-{dtype}-N8-{'H' if 'embedding' in op else 'K'}384-V{vocab}-checkpoint" for op in ops
    }
    ran = {(verdict["backend"], verdict["mode"]) for verdict in report["verdicts"]}
    assert ran == {
        ("numpy", "eager"), ("torch-cpu", "eager"), ("torch-cpu", "compile"), ("jax-cpu", "eager"), ("jax-cpu", "jit"),
    }  # fmt: skip
    for verdict in report["verdicts"]:
        assert {check["state"] for check in verdict["checks"].values()} == {"pass"}, verdict
