"""The transforms: pure, of every kind, and passed by whatever treats each row and each vocab entry alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crosscheck import invariance
from crosscheck.bits import compare, digest
from crosscheck.cases import Case, Inputs, default_suite
from crosscheck.invariance import COLUMNS, NotApplicable, Trial, trials

LM_HEAD = Case("lm_head", "fp32", (5,), 16, 9, 3, bias="fp16")
IDS = Case("embedding", "bf16", (2, 3), 8, 20, id_dtype="uint8")
SMALL = [case for case in default_suite() if case.vocab * case.width < 200_000]


def rowwise(inputs: Inputs) -> np.ndarray[Any, Any]:
    """An invented operator in which a result depends on its row and its vocab entry alone, in bits."""
    if "token_ids" in inputs:
        return inputs["weight"][inputs["token_ids"].astype(int)]
    rows, columns = (
        np.array([int(digest(row)[:8], 16) for row in x.reshape(-1, x.shape[-1])], np.uint64)
        for x in (inputs["hidden"], inputs["weight"])
    )
    if "bias" in inputs:
        columns = columns * 3 + inputs["bias"].view(np.uint16)
    bits = (rows[:, None] * 7919 + columns[None, :] * 104729) % 2**31
    return bits.astype(np.uint32).view(np.float32).reshape(*inputs["hidden"].shape[:-1], len(columns))


def as_rows(result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return result.reshape(int(np.prod(result.shape[:-1])), result.shape[-1])


def failed_columns(function: Callable[[Inputs], np.ndarray[Any, Any]], inputs: Inputs) -> set[str]:
    base = as_rows(function(inputs))
    failed = set()
    for trial in trials(inputs, 1):
        if isinstance(trial, Trial):
            joined = trial.join([as_rows(function(call)) for call in trial.calls])
            if compare(joined, trial.expected(base)) is not None:
                failed.add(trial.column)
    return failed


@pytest.mark.parametrize("case", [LM_HEAD, IDS, *SMALL[:20:3]], ids=lambda case: case.id)
def test_a_function_of_row_and_entry_alone_passes_everything(case):
    assert failed_columns(rowwise, case.inputs()) == set()


@pytest.mark.parametrize("case", [LM_HEAD, IDS], ids=lambda case: case.op)
def test_every_column_has_a_trial(case):
    made = [trial for trial in trials(case.inputs(), case.seed) if isinstance(trial, Trial)]
    assert {trial.column for trial in made} == set(COLUMNS)
    assert len({(trial.column, trial.name) for trial in made}) == len(made)


def test_a_result_that_depends_on_the_row_count_fails():
    def counting(inputs):
        return (rowwise(inputs).view(np.uint32) ^ np.uint32(len(inputs["hidden"]))).view(np.float32)

    assert failed_columns(counting, LM_HEAD.inputs()) == {"population", "padding", "chunking"}


def test_a_result_that_depends_on_the_position_fails():
    def numbered(inputs):
        result = rowwise(inputs).copy()
        result.view(np.uint32)[:] += np.arange(len(result), dtype=np.uint32)[:, None]
        return result

    assert "position" in failed_columns(numbered, LM_HEAD.inputs())


def test_a_result_that_depends_on_other_rows_fails():
    def leaking(inputs):
        with np.errstate(invalid="ignore"):
            poisoned = not np.isfinite(inputs["hidden"].sum())
        result = rowwise(inputs)
        return (result.view(np.uint32) ^ np.uint32(poisoned)).view(np.float32)

    inputs = LM_HEAD.inputs()
    inputs["hidden"] = np.ones_like(inputs["hidden"])
    assert {"neighbours", "padding"} <= failed_columns(leaking, inputs)


def test_a_gather_that_reads_rows_that_no_id_names_fails():
    def leaking(inputs):
        result = rowwise(inputs).copy()
        with np.errstate(invalid="ignore"):
            nans = np.isnan(inputs["weight"].astype(np.float32)).sum()
        result.view(np.uint16)[:] ^= np.uint16(nans)
        return result

    assert "neighbours" in failed_columns(leaking, IDS.inputs())


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_transforms_leave_the_inputs_alone_and_keep_the_dtypes(case):
    inputs = case.inputs()
    before = {name: digest(array) for name, array in inputs.items()}
    for trial in trials(inputs, case.seed):
        if isinstance(trial, Trial):
            for call in trial.calls:
                assert {name: array.dtype for name, array in call.items()} == {
                    name: array.dtype for name, array in inputs.items()
                }
    assert {name: digest(array) for name, array in inputs.items()} == before


def test_the_same_seed_gives_the_same_transforms():
    def drawn(seed):
        made = (trial for trial in trials(LM_HEAD.inputs(), seed) if isinstance(trial, Trial))
        return [[digest(call["hidden"]) for call in trial.calls] for trial in made]

    assert drawn(1) == drawn(1) != drawn(2)


def test_what_cannot_be_tried_says_why():
    empty = Case("lm_head", "fp16", (0,), 4, 3)
    reasons = {t.column: t.reason for t in trials(empty.inputs(), 0) if isinstance(t, NotApplicable)}
    assert set(reasons) >= {"population", "position", "neighbours", "padding", "chunking"}
    assert "no rows" in reasons["padding"]
    single = Case("lm_head", "fp16", (1,), 4, 1)
    reasons = {t.column: t.reason for t in trials(single.inputs(), 0) if isinstance(t, NotApplicable)}
    assert reasons["position"] == "the vocab has one row"
    assert reasons["neighbours"] == "there is no such row"
    assert reasons["layout"] == "the case has one row"


def test_no_copy_of_a_large_weight_is_made(monkeypatch):
    monkeypatch.setattr(invariance, "LARGE", 100)
    inputs = LM_HEAD.inputs()
    for trial in trials(inputs, 0):
        if isinstance(trial, Trial):
            assert "weight" not in trial.layout
            assert all(np.shares_memory(call["weight"], inputs["weight"]) for call in trial.calls)
    refused = [t for t in trials(inputs, 0) if isinstance(t, NotApplicable)]
    assert {t.column for t in refused} == {"position", "neighbours", "layout"}
    assert all("it is not copied" in t.reason for t in refused)


def test_few_row_counts_are_used():
    inputs = Case("lm_head", "fp32", (257,), 2, 8, 3).inputs()
    made = (trial for trial in trials(inputs, 0) if isinstance(trial, Trial))
    assert {len(call["hidden"]) for trial in made for call in trial.calls} == {1, 129, 257, 259}
