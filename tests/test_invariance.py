"""The transforms: pure, of every kind, and passed by whatever treats each row and each vocab entry alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crosscheck import invariance
from crosscheck.bits import compare, digest
from crosscheck.cases import Case, Inputs, default_suite
from crosscheck.invariance import COLUMNS, SHARDS, NotApplicable, Trial, trials
from crosscheck.operators import as_rows

LM_HEAD = Case("lm_head", "fp32", (5,), 16, 9, 3, bias="fp16")
IDS = Case("embedding", "bf16", (2, 3), 8, 20, id_dtype="uint8")
LOGITS = Case("selected_logprob", "bf16", (9,), 0, 20, id_dtype="int16")
LINEAR = Case("linear_logprob", "fp32", (2, 3), 8, 20, bias="bf16", id_dtype="uint8")
SMALL = [case for case in default_suite() if case.vocab * case.width < 200_000]


def rowwise(inputs: Inputs) -> np.ndarray[Any, Any]:
    """An invented operator in which a result depends on its row and its vocab entry alone, in bits."""
    if "token_ids" in inputs:
        return inputs["weight"][inputs["token_ids"].astype(int)]
    if "target_ids" in inputs:
        return logprob_like(inputs)
    rows, columns = (
        np.array([int(digest(row)[:8], 16) for row in x.reshape(-1, x.shape[-1])], np.uint64)
        for x in (inputs["hidden"], inputs["weight"])
    )
    if "bias" in inputs:
        columns = columns * 3 + inputs["bias"].view(np.uint16)
    bits = (rows[:, None] * 7919 + columns[None, :] * 104729) % 2**31
    return bits.astype(np.uint32).view(np.float32).reshape(*inputs["hidden"].shape[:-1], len(columns))


def logprob_like(inputs: Inputs) -> np.ndarray[Any, Any]:
    """Of a row the target's logit and the set of those above -inf."""
    logits = inputs["logits"] if "logits" in inputs else rowwise({k: x for k, x in inputs.items() if k != "target_ids"})
    rows, targets = logits.reshape(-1, logits.shape[-1]), inputs["target_ids"].reshape(-1).astype(int)
    found = [
        int(digest(np.append(np.sort(row[row != -np.inf]), row[target]))[:7], 16)
        for row, target in zip(rows.astype(np.float32), targets, strict=True)
    ]
    return np.array(found, np.uint32).view(np.float32).reshape(inputs["target_ids"].shape)


def failed_columns(function: Callable[[Inputs], np.ndarray[Any, Any]], inputs: Inputs) -> set[str]:
    base = as_rows(function(inputs), inputs)
    failed = set()
    for trial in trials(inputs, 1):
        if isinstance(trial, Trial):
            joined = trial.join([as_rows(function(call), call) for call in trial.calls])
            if compare(joined, trial.expected(base)) is not None:
                failed.add(trial.column)
    return failed


@pytest.mark.parametrize("case", [LM_HEAD, IDS, LOGITS, LINEAR, *SMALL[:20:3]], ids=lambda case: case.id)
def test_a_function_of_row_and_entry_alone_passes_everything(case):
    assert failed_columns(rowwise, case.inputs()) == set()


@pytest.mark.parametrize("case", [LM_HEAD, IDS, LOGITS, LINEAR], ids=lambda case: case.op)
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
    assert all("no copy is made" in t.reason for t in refused)


def test_few_row_counts_are_used():
    inputs = Case("lm_head", "fp32", (257,), 2, 8, 3).inputs()
    made = (trial for trial in trials(inputs, 0) if isinstance(trial, Trial))
    assert {len(call["hidden"]) for trial in made for call in trial.calls} == {1, 129, 257, 259}


def test_the_vocab_and_the_hidden_dimension_are_divided_into_every_number_of_shards():
    def divided(case: Case, **options: Any) -> dict[str, tuple[int, tuple[str, int] | None]]:
        made = (trial for trial in trials(case.inputs(), 0, **options) if isinstance(trial, Trial))
        return {trial.name: (len(trial.calls), trial.parts) for trial in made if "shard" in trial.name}

    in_calls = {f"vocab in {n} shards": (n, None) for n in SHARDS if n > 1}
    vocab, hidden = (
        {f"{what} in {n} shard{'s' * (n > 1)}": (1, (what, n)) for n in SHARDS} for what in ("vocab", "hidden")
    )
    assert SHARDS == (1, 2, 3, 4, 8)
    assert divided(IDS) == in_calls
    assert divided(LM_HEAD) == in_calls | hidden
    assert divided(LOGITS) == vocab
    assert divided(LINEAR) == vocab | hidden
    assert set(divided(LM_HEAD, shards=(2,))) == {"vocab in 2 shards", "hidden in 2 shards"}


def test_a_log_probability_that_depends_on_the_ids_that_cannot_occur_fails():
    def counting(inputs: Inputs) -> np.ndarray[Any, Any]:
        return (rowwise(inputs).view(np.uint32) + np.uint32(inputs["logits"].shape[-1])).view(np.float32)

    assert failed_columns(counting, LOGITS.inputs()) == {"neighbours"}


def test_a_target_that_stays_behind_its_row_fails():
    def first_targets(inputs: Inputs) -> np.ndarray[Any, Any]:
        return rowwise({**inputs, "target_ids": np.resize(inputs["target_ids"][:1], inputs["target_ids"].shape)})

    assert {"population", "position", "neighbours", "padding", "chunking"} <= failed_columns(
        first_targets, LOGITS.inputs()
    )


@pytest.mark.parametrize("bad", [-1, -100, 20, 25])
@pytest.mark.parametrize("case", [IDS, LOGITS, LINEAR], ids=lambda case: case.op)
def test_an_id_that_is_not_in_the_vocab_is_so_under_every_transform(case, bad):
    """A function that gives such rows NaN, as `check_ids=False` does, passes."""
    inputs = case.inputs()
    name = "token_ids" if case is IDS else "target_ids"
    inputs[name] = inputs[name].astype(np.int64)
    inputs[name].reshape(-1)[1] = bad

    def unread(call: Inputs) -> np.ndarray[Any, Any]:
        vocab = call["logits"].shape[-1] if "logits" in call else len(call["weight"])
        good = (call[name] >= 0) & (call[name] < vocab)
        found = rowwise({**call, name: np.where(good, call[name], 0)})
        mask = good if case is not IDS else good[..., None]
        return np.where(mask, found.view(f"u{found.itemsize}"), 0).view(found.dtype)

    assert failed_columns(unread, inputs) == set()


def test_a_vocab_of_the_largest_size_gets_no_ids_added():
    largest = Case("selected_logprob", "fp16", (2,), 0, 2**18, id_dtype="int32").inputs()
    left_out = {t.name: t.reason for t in trials(largest, 0, shards=()) if isinstance(t, NotApplicable)}
    assert left_out["ids added that cannot occur"] == "the vocab has 262144 ids, and at most 262144 are allowed"
