"""The transforms of gradients: pure, of every kind, passed by the contract and failed by what depends on the batch."""

from collections.abc import Callable

import numpy as np
import pytest

from crosscheck import gradient_invariance
from crosscheck.bits import compare, digest
from crosscheck.cases import Case, Inputs, default_suite
from crosscheck.gradient_invariance import gradient_trials, work
from crosscheck.gradients import Gradients, contract_gradients
from crosscheck.invariance import NotApplicable, Trial
from crosscheck.judge_gradient import gradient_call

LM_HEAD = Case("lm_head", "bf16", (5,), 16, 9, 3, bias="fp32")
MORE_AXES = Case("lm_head_fp32", "fp16", (2, 3), 7, 4)
IDS = Case("embedding", "fp16", (2, 5), 8, 20, id_dtype="uint8")
BYTES = Case("embedding_fp32", "bf16", (9,), 8, 300, id_dtype="uint8")
LOGITS = Case("selected_logprob", "bf16", (9,), 0, 20, id_dtype="int16")
LINEAR = Case("linear_logprob", "fp32", (2, 3), 8, 20, bias="bf16", id_dtype="uint8")
SMALL = [case for case in default_suite() if work(case.inputs()) < 200_000]


def call_of(case: Case) -> Inputs:
    return gradient_call(case.op, case.inputs(), case.seed)


def of_contract(call: Inputs) -> Gradients:
    return contract_gradients({name: array for name, array in call.items() if name != "grad"}, call["grad"], None)


def as_rows(found: Gradients) -> Gradients:
    return {name: x.reshape(-1, x.shape[-1]) if name in ("hidden", "logits") else x for name, x in found.items()}


def failed(gradients: Callable[[Inputs], Gradients], case: Case) -> set[str]:
    call, names = call_of(case), set()
    base = as_rows(gradients(call))
    for trial in gradient_trials(call, case.seed):
        if isinstance(trial, Trial):
            found, expected = trial.join([as_rows(gradients(x)) for x in trial.calls]), trial.expected(base)
            if any(compare(found[name], expected[name]) is not None for name in expected):
                names.add(trial.name)
    return names


@pytest.mark.parametrize(
    "case", [LM_HEAD, MORE_AXES, IDS, BYTES, LOGITS, LINEAR, *SMALL[::4]], ids=lambda case: case.id
)
def test_the_contract_passes_everything(case):
    assert failed(of_contract, case) == set()


def test_every_kind_of_transform_is_tried():
    names = {trial.name for trial in gradient_trials(call_of(LM_HEAD), 0) if isinstance(trial, Trial)}
    assert names == {
        "rows added with zero gradient", "rows shuffled", "vocab shuffled", "the upstream gradients of others replaced",
        "padding after", "padding before", "rows in two chunks", "vocab in 2 shards", "transposed storage",
        "strided storage", "unaligned storage", "leading shape [1, 5]", "one upstream gradient expanded", "second run",
    }  # fmt: skip
    names = {trial.name for trial in gradient_trials(call_of(IDS), 0) if isinstance(trial, Trial)}
    assert names >= {"rows added with zero gradient", "bad ids added", "vocab in 2 shards", "leading shape [10]"}
    names = {trial.name for trial in gradient_trials(call_of(LINEAR), 0) if isinstance(trial, Trial)}
    assert names >= {"bad ids added", "vocab shuffled", "rows in two chunks", "leading shape [6]"}
    assert "vocab in 2 shards" not in names  # each gradient is of the whole vocab


def test_gradients_that_depend_on_the_row_count_fail():
    def counting(call: Inputs) -> Gradients:
        found = of_contract(call)
        return {**found, "hidden": found["hidden"] + found["hidden"].dtype.type(len(call["hidden"]))}

    assert failed(counting, LM_HEAD) == {
        "rows added with zero gradient", "padding after", "padding before", "rows in two chunks",
        "leading shape [1, 5]",
    }  # fmt: skip


def test_one_scale_for_all_upstream_gradients_fails():
    def coarse(call: Inputs) -> Gradients:
        grad = call["grad"].astype(np.float32)
        with np.errstate(invalid="ignore"):
            step = np.float32(2.0 ** (np.ceil(np.log2(np.abs(grad).max())) - 12))
        return of_contract({**call, "grad": (np.rint(grad / step) * step).astype(call["grad"].dtype)})

    for case in (LM_HEAD, Case("embedding", "fp16", (7,), 8, 20, id_dtype="uint8")):
        assert "the upstream gradients of others replaced" in failed(coarse, case)


def test_a_sum_in_the_order_of_the_rows_fails():
    def in_order(call: Inputs) -> Gradients:
        out = np.zeros(call["weight"].shape, np.float32)
        good = call["token_ids"] < len(out)
        np.add.at(out, call["token_ids"][good], call["grad"][good])
        return {"weight": out}

    many = Case("embedding", "fp32", (300,), 8, 3, id_dtype="int64")
    assert "rows shuffled" in failed(in_order, many)


def test_a_bad_id_that_wraps_fails():
    def wrapping(call: Inputs) -> Gradients:
        ids = call["token_ids"] % len(call["weight"])
        return of_contract({**call, "token_ids": ids.astype(call["token_ids"].dtype)})

    assert failed(wrapping, IDS) == {"bad ids added"}


@pytest.mark.parametrize("case", [LM_HEAD, MORE_AXES, IDS, LOGITS, LINEAR], ids=lambda case: case.id)
def test_transforms_leave_the_call_alone_and_keep_the_dtypes(case):
    call = call_of(case)
    before = {name: digest(array) for name, array in call.items()}
    for trial in gradient_trials(call, case.seed):
        if isinstance(trial, Trial):
            for changed in trial.calls:
                assert {n: x.dtype for n, x in changed.items()} == {n: x.dtype for n, x in call.items()}
    assert {name: digest(array) for name, array in call.items()} == before


def test_few_row_counts_are_used():
    call = call_of(Case("lm_head", "fp32", (257,), 2, 8, 3))
    made = (trial for trial in gradient_trials(call, 0) if isinstance(trial, Trial))
    assert {x["grad"].size // x["grad"].shape[-1] for trial in made for x in trial.calls} == {129, 257, 259}


def test_what_is_not_tried_says_why(monkeypatch):
    def reasons(case: Case) -> dict[str, str]:
        return {t.name: t.reason for t in gradient_trials(call_of(case), 0) if isinstance(t, NotApplicable)}

    assert reasons(Case("lm_head", "fp16", (0,), 4, 3)) == {"rows changed": "the case has no rows, or an empty weight"}
    assert reasons(BYTES)["bad ids added"] == "every uint8 is in the vocab"
    monkeypatch.setattr(gradient_invariance, "EVERYTHING", 10)
    assert set(reasons(LM_HEAD)) == {"all but another order and a second run"}
