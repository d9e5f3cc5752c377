"""Gradients are judged: what is drawn for them, what of a large table takes part, and how each fault is reported."""

import numpy as np
import planted
import pytest
from test_judge import CASE, judged

from crosscheck import gradients
from crosscheck.bits import digest
from crosscheck.cases import Case, default_suite
from crosscheck.gradients import part_of, upstream
from crosscheck.judge import OTHER_MODE, Effort, expected_answer
from crosscheck.judge_gradient import NEW_SHAPE
from crosscheck.operators import result_shape
from crosscheck.registry import BACKENDS
from crosscheck.runner import run

SUITE = default_suite()


# What is drawn ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", SUITE, ids=lambda case: case.id)
def test_the_upstream_gradient_has_the_shape_and_dtype_of_the_result(case):
    inputs = case.inputs()
    grad = upstream(case.op, inputs, case.seed)
    answer = expected_answer(case)
    assert (grad.shape, grad.dtype) == (answer.result.shape, answer.result.dtype)
    assert result_shape(inputs) == grad.shape
    assert digest(grad) == digest(upstream(case.op, case.inputs(), case.seed))
    for name, gradient in answer.gradients.items():
        assert (gradient.shape, gradient.dtype) == (inputs[name].shape, inputs[name].dtype)


def test_special_values_are_among_the_upstream_gradients():
    case = Case("lm_head", "fp32", (20,), 8, 50)
    grad = upstream(case.op, case.inputs(), case.seed)
    assert not grad[1].any() and np.signbit(grad[1]).any()
    assert digest(grad[0]) == digest(grad[2])
    assert grad[0].max() == 5000
    assert ((grad != 0) & (np.abs(grad) < 2.0**-126)).any()
    assert np.isnan(grad).sum() == 1 and np.isinf(grad).sum() == 1
    exponents = np.frexp(grad[9:])[1]
    assert exponents.max() - exponents.min() > 8
    assert np.isfinite(expected_answer(case).gradients["weight"]).mean() > 0.5


# Parts of large tables -------------------------------------------------------------------------------------
def test_of_a_large_table_the_rows_that_ids_name_take_part(monkeypatch):
    monkeypatch.setattr(gradients, "WHOLE", 40)
    ids, table = np.array([[9, 3], [3, 700]], np.int16), np.arange(8000, dtype=np.float32).reshape(1000, 8)
    part, said = part_of({"token_ids": ids, "weight": table})
    assert part["token_ids"].dtype == ids.dtype
    assert part["weight"][part["token_ids"]].tolist() == table[ids].tolist()
    assert said == "a table of the 3 of its 1000 rows that the ids name"
    many = np.arange(50, dtype=np.int16)
    part, said = part_of({"token_ids": many, "weight": table})
    assert len(part["weight"]) == 5 and said.endswith("5 of its 1000 rows that the first 5 ids name")


def test_of_a_large_lm_head_the_first_rows_take_part(monkeypatch):
    monkeypatch.setattr(gradients, "WHOLE", 40)
    monkeypatch.setattr(gradients, "MOST_ROWS", 2)
    inputs = Case("lm_head", "fp32", (3,), 8, 50, bias="fp32").inputs()
    part, said = part_of(inputs)
    assert {name: array.shape for name, array in part.items()} == {"hidden": (2, 8), "weight": (5, 8), "bias": (5,)}
    assert said == "the first 5 of 50 rows of the LM head and the first 2 of 3 hidden rows"


def test_of_other_tables_everything_takes_part():
    for case in SUITE:
        assert part_of(case.inputs())[1] == ""


# Faults ----------------------------------------------------------------------------------------------------
def test_a_flipped_bit_is_shown_with_the_gradient_it_is_in():
    verdict = judged(planted.FlipsOneGradientBit)
    assert verdict.outcome == "different"
    failure, moved = verdict.checks["grad"].failed
    assert failure.trial == "the call itself, gradient of weight"
    assert moved.trial == "vocab shuffled, gradient of weight"  # the fault does not move with its row
    assert failure.difference is not None and failure.difference["index"] == (8, 15)
    assert failure.text.startswith("1 of 144 elements of bfloat16 (9, 16) differ; first at [8, 15]")


def test_gradients_that_depend_on_the_batch_are_shown_with_the_transforms():
    verdict = judged(planted.GradientsOfTheBatch)
    assert verdict.outcome == "different"
    assert [failure.trial for failure in verdict.checks["grad"].failed] == [
        f"{trial}, gradient of hidden"
        for trial in (
            "rows added with zero gradient", "padding after", "padding before", "rows in two chunks",
            "leading shape [1, 3]",
        )
    ]  # fmt: skip


def test_a_backend_without_gradients_has_failed_and_its_results_are_judged():
    verdict = judged(planted.RaisesOnGradients)
    assert (verdict.status, verdict.outcome) == ("judged", "failed")
    (failure,) = verdict.checks["grad"].failed
    assert (failure.trial, failure.text) == (
        "the call itself", "raised NotImplementedError: planted: no gradients",
    )  # fmt: skip


def test_a_gradient_that_is_missing_is_named():
    (failure,) = judged(planted.OmitsAGradient).checks["grad"].failed
    assert failure.text == "raised ValueError: gradients of hidden; expected those of hidden, weight"


def test_transforms_are_left_out_where_a_gradient_has_another_dtype():
    check = judged(planted.OtherGradientDtype).checks["grad"]
    (failure,) = check.failed
    assert failure.text == "dtype is float32; expected bfloat16"
    assert check.not_applicable == [{"trial": "transforms", "reason": "a gradient has another shape or dtype"}]


# What a mode that compiles tries ---------------------------------------------------------------------------
def test_a_mode_that_compiles_tries_no_new_shapes_but_in_small_thorough_cases(monkeypatch):
    def left_out(effort: Effort) -> set[str]:
        check = judged(planted.Planted, effort).checks["grad"]
        assert check.state == "pass"
        return {attempt["trial"] for attempt in check.not_applicable if attempt["reason"] == NEW_SHAPE}

    shapes = {"rows added with zero gradient", "padding after", "vocab in 2 shards", "transposed storage"}
    assert shapes <= left_out(Effort(compiles=True, thorough=False))
    assert not left_out(Effort(compiles=True, thorough=True))
    monkeypatch.setattr("crosscheck.judge_gradient.SMALL", 10)
    assert shapes <= left_out(Effort(compiles=True, thorough=True))
    assert not left_out(Effort())


def test_a_mode_may_leave_the_gradients_to_another():
    check = judged(planted.Planted, Effort(gradients=False)).checks["grad"]
    assert check.state == "not applicable"
    assert check.not_applicable == [{"trial": "any", "reason": OTHER_MODE}]


def test_gradients_are_taken_in_every_mode_or_shared_out_over_a_quarter_of_the_cases_and_every_operator_and_dtype():
    for case in SUITE:
        assert all(BACKENDS["torch-cpu"].takes_gradients(mode, case.seed, len(SUITE)) for mode in ("eager", "compile"))
        assert sum(BACKENDS["jax-cpu"].takes_gradients(mode, case.seed, len(SUITE)) for mode in ("eager", "jit")) <= 1
    taken = {
        (case.op, case.dtype, mode)
        for case in SUITE
        for mode in ("eager", "jit")
        if BACKENDS["jax-cpu"].takes_gradients(mode, case.seed, len(SUITE))
    }
    for mode in ("eager", "jit"):
        assert {op for op, _, m in taken if m == mode} >= {"embedding", "embedding_fp32", "lm_head"}
        assert {dtype for _, dtype, m in taken if m == mode} == {"bf16", "fp16", "fp32"}
    assert {op for op, _, _ in taken} == {case.op for case in SUITE}
    judged_cases = {
        case.id
        for case in SUITE
        if any(BACKENDS["jax-cpu"].takes_gradients(mode, case.seed, len(SUITE)) for mode in ("eager", "jit"))
    }
    assert len(judged_cases) >= len(SUITE) / 4


def test_the_gradients_reach_the_process_of_a_backend():
    backends = [planted.backend(fault) for fault in (planted.Planted, planted.FlipsOneGradientBit)]
    good, bad = run([CASE], backends, timeout=60).verdicts
    assert good.checks["grad"].state == "pass"
    assert bad.checks["grad"].failed[0].trial == "the call itself, gradient of weight"
