"""Cases on a checkpoint: every unusable file is one sentence and exit code 2 before any work, and no copy is made."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import planted
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import save_file

from crosscheck import gradients
from crosscheck.bits import digest
from crosscheck.checkpoint import CheckpointError
from crosscheck.cli import main
from crosscheck.real_input import RealCase, RealInput, real_cases

FOLLOWING = "linear_logprob is that of the id that follows in --token-ids, and in the last row of the first id"
TARGETS = f"{FOLLOWING}; of ids from 10 on, which %s has not, their remainders modulo 10 are taken"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a table, an LM head of another width, ids and hidden states."""
    rng = np.random.default_rng(0)
    tensors = {
        "embed": rng.standard_normal((20, 8), np.float32).astype(ml_dtypes.bfloat16),
        "head": rng.standard_normal((10, 8), np.float32),
        "wide_head": rng.standard_normal((10, 12), np.float32),
        "norm": np.ones(8, np.float32),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    np.save(tmp_path / "ids.npy", np.array([[3, 1, 19], [0, 3, 2]], np.uint8))
    np.save(tmp_path / "bad_ids.npy", np.array([[3, 1], [20, -1]]))
    np.save(tmp_path / "float_ids.npy", np.array([1.0]))
    np.save(tmp_path / "no_ids.npy", np.zeros(0, np.int64))
    np.save(tmp_path / "hidden.npy", rng.standard_normal((2, 3, 12), np.float32))
    np.save(tmp_path / "no_hidden.npy", np.zeros((0, 12), np.float32))
    return tmp_path


def source(model: Path, **changes: Any) -> RealInput:
    fields: dict[str, Any] = {
        "checkpoint": str(model), "embedding_key": "embed", "lm_head_key": "head",
        "token_ids": str(model / "ids.npy"), "hidden": None, "dtype": None, "max_rows": 32,
    }  # fmt: skip
    return RealInput(**{**fields, **changes})


def crosscheck(model: Path, *arguments: str, backends: str = "Planted", **options: str) -> Result:
    given: dict[str, Any] = {
        "checkpoint": model,
        "embedding-key": "embed",
        "lm-head-key": "head",
        "token-ids": "ids.npy",
        **options,
    }
    words = []
    for name, value in given.items():
        words += [f"--{name}", str(model / value) if str(value).endswith(".npy") else str(value)]
    result = CliRunner().invoke(main, ["run", "--backends", backends, *words, *arguments], obj=planted.REGISTRY)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def test_each_operator_becomes_a_case(model):
    cases, notes = real_cases(source(model))
    assert [case.id for case in cases] == [
        "embedding-bf16-N6-H8-V20-checkpoint",
        "embedding_fp32-bf16-N6-H8-V20-checkpoint",
        "lm_head-bf16xfp32-N6-K8-V10-checkpoint",
        "lm_head_fp32-bf16xfp32-N6-K8-V10-checkpoint",
        "linear_logprob-bf16xfp32-N6-K8-V10-checkpoint",
    ]
    assert notes == [TARGETS % "head", "no --hidden: the embedding rows of the ids serve as hidden states"]
    assert cases[4].inputs()["target_ids"].tolist() == [1, 9, 0, 3, 2, 3]  # 19 is beyond the vocab of the LM head
    assert cases[0].inputs()["token_ids"].shape == (2, 3)
    table = source(model).table()
    assert digest(cases[2].inputs()["hidden"]) == digest(table[[3, 1, 19, 0, 3, 2]])


def test_hidden_states_from_a_file_and_rows_cut_off(model):
    given = source(model, hidden=str(model / "hidden.npy"), lm_head_key="wide_head", max_rows=4)
    cases, notes = real_cases(given)
    assert [case.id for case in cases][2] == "lm_head-fp32-N4-K12-V10-checkpoint"
    assert cases[0].inputs()["token_ids"].tolist() == [3, 1, 19, 0]
    assert notes == ["the first 4 of 6 ids are used (--max-rows)", TARGETS % "wide_head"]


def test_one_id_is_no_plural(model):
    _, notes = real_cases(source(model, max_rows=1))
    assert notes[0] == "the first of 6 ids is used (--max-rows)"


def test_gradients_are_judged_with_what_fits_and_a_note_says_so(model, monkeypatch):
    monkeypatch.setattr(gradients, "WHOLE", 64)
    _, notes = real_cases(source(model))
    assert notes[2:] == [
        "gradients are judged with a table of the 5 of its 20 rows that the ids name",
        "gradients are judged with the first 8 of 10 rows of the LM head",
        "gradients are judged with the first 8 of 10 rows of the LM head, with targets among them",
    ]


def test_gradients_are_judged_in_every_mode(model):
    result = crosscheck(model, backends="FlipsOneGradientBit")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    shown = [line for line in lines if line.startswith("  grad, the call itself, gradient of weight: 1 of ")]
    assert len(shown) == 5 and all("differ; first at" in line for line in shown)
    assert not any(case.shared_out for case in real_cases(source(model))[0])


def test_a_tied_head_and_a_named_dtype_are_noted(model):
    cases, notes = real_cases(source(model, lm_head_key="embed", dtype="fp16"))
    assert {array.dtype for name, array in cases[2].inputs().items()} == {np.dtype(np.float16)}
    assert notes[2:] == [
        "the LM head is the embedding table embed, as in tied models",
        "tables and hidden states are rounded to fp16 (--dtype)",
    ]


def test_a_case_survives_json(model):
    for case in real_cases(source(model))[0]:
        assert RealCase.from_json(json.loads(json.dumps(case.to_json()))) == case


def test_a_table_as_stored_is_read_once_and_not_copied(model):
    cases, _ = real_cases(source(model))
    assert cases[0].inputs()["weight"] is cases[1].inputs()["weight"]
    assert not cases[0].inputs()["weight"].flags.writeable


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_key": "embd"}, r"no tensor 'embd' among its 4; the closest are embed"),
        ({"embedding_key": "norm"}, r"norm in .* has shape \(8,\)"),
        ({"checkpoint": "/nowhere"}, r"/nowhere cannot be read: No such file or directory"),
        ({"token_ids": "bad_ids.npy"}, r"token_ids\[1, 0\] is 20; expected 0 <= id < 20, the vocab of embed"),
        ({"token_ids": "float_ids.npy"}, r"token_ids in .* have dtype float64; expected an integer dtype"),
        ({"token_ids": "no_ids.npy"}, r"holds no ids: nothing compared"),
        ({"token_ids": "missing.npy"}, r"missing\.npy cannot be read"),
        ({"hidden": "hidden.npy"}, r"have width 12, and head has shape \(10, 8\); expected \[\.\.\., K\] and \[V, K\]"),
        ({"hidden": "no_hidden.npy"}, r"no_hidden\.npy holds no rows: nothing compared"),
        ({"lm_head_key": "wide_head"}, r"of the embedding embed have width 8, and wide_head has shape \(10, 12\)"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(model, changes, message):
    files = {name: str(model / value) if str(value).endswith(".npy") else value for name, value in changes.items()}
    with pytest.raises(CheckpointError, match=message):
        real_cases(source(model, **files))
    result = crosscheck(model, **{name.replace("_", "-"): value for name, value in changes.items()})
    assert result.exit_code == 2
    assert result.stderr.startswith("crosscheck: ") and result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_good_checkpoint_is_judged_and_the_columns_are_the_same(model):
    result = crosscheck(model)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"note: {TARGETS % 'head'}"
    assert lines[1] == "note: no --hidden: the embedding rows of the ids serve as hidden states"
    assert sum(line.startswith(" Planted eager") for line in lines) == 5
    assert lines[-1].startswith("EQUAL: every bit is the contract's, under every transform (5 cases")


def test_a_failure_names_the_command_that_repeats_it(model):
    result = crosscheck(model, "--op", "lm_head", backends="FlipsBits")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("  repeat: ")]
    arguments = line.removeprefix("  repeat: crosscheck ").split()
    assert arguments[-4] == "--filter"
    assert CliRunner().invoke(main, arguments, obj=planted.REGISTRY).exit_code == 1


def test_the_command_that_repeats_a_failure_has_every_option_that_was_typed(model):
    options = {"hidden": "hidden.npy", "lm-head-key": "wide_head", "dtype": "fp32", "max-rows": "2", "timeout": "30"}
    result = crosscheck(model, "--op", "lm_head", backends="FlipsBits", **options)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("  repeat: ")]
    assert line.removeprefix("  repeat: ").split() == [
        "crosscheck", "run", "--op", "lm_head", "--checkpoint", str(model), "--embedding-key", "embed",
        "--lm-head-key", "wide_head", "--token-ids", str(model / "ids.npy"), "--hidden", str(model / "hidden.npy"),
        "--dtype", "fp32", "--max-rows", "2", "--timeout", "30",
        "--filter", "lm_head-fp32-N2-K12-V10-checkpoint", "--backends", "FlipsBits",
    ]  # fmt: skip


def test_an_operator_that_is_named_twice_is_judged_once(model):
    listed = crosscheck(model, "--list", "--op", "lm_head", "--op", "lm_head").stdout.split()
    assert listed == ["lm_head-bf16xfp32-N6-K8-V10-checkpoint"]


def test_an_empty_key_is_not_the_embedding_key(model):
    result = crosscheck(model, **{"lm-head-key": ""})
    assert result.exit_code == 2 and "no tensor ''" in result.stderr


def test_operators_and_filter_narrow_a_checkpoint_run(model):
    listed = crosscheck(model, "--list", "--op", "lm_head_fp32").stdout.split()
    assert listed == ["lm_head_fp32-bf16xfp32-N6-K8-V10-checkpoint"]
    assert crosscheck(model, "--filter", "nothing").exit_code == 2
