"""Candidates for log-probabilities: what stacks do today and what people write is named, and what is right passes."""

from dataclasses import replace

import pytest

from crosscheck.candidate_adapters import JaxCandidate, TorchCandidate
from crosscheck.candidate_report import sentence
from crosscheck.candidates import candidate_backends
from crosscheck.cases import Case
from crosscheck.controls import CONTROLS, control_cases, looked_at
from crosscheck.judge import Effort, expected_answer, judge
from crosscheck.report import summary
from crosscheck.runner import run
from crosscheck.verdict import Verdict

LOGITS = Case("selected_logprob", "fp32", (6,), 0, 300, id_dtype="int64")
BF16 = Case("selected_logprob", "bf16", (2, 3), 0, 33, id_dtype="int32")
LINEAR = Case("linear_logprob", "bf16", (5,), 32, 17, id_dtype="int64")
BIAS = Case("linear_logprob", "fp16", (2, 3), 16, 9, 3, bias="fp32", id_dtype="uint8")
ADAPTERS = {"torch": TorchCandidate, "jax": JaxCandidate}


def judged(framework: str, target: str, case: Case) -> Verdict:
    adapter = ADAPTERS[framework]("cpu", 1, target)
    assert adapter.available() is None
    effort = Effort(compiles=framework == "jax", thorough=framework == "torch", divided=False)
    return judge(adapter, "mine", case, "eager", expected_answer(case), effort=effort)


@pytest.mark.parametrize(
    ("name", "case", "says"),
    [
        ("in_the_dtype_of_the_logits", BF16, "returns another dtype: dtype is bfloat16; expected float32"),
        ("one_maximum_for_the_batch", LOGITS, "depends on the batch: first row alone"),
        ("first_target_for_all", LOGITS, "depends on the batch: last row alone, from 4 rows on"),
        ("wrapping_targets", LOGITS, "answers a bad id with another row, where an error or a row of NaN is due"),
        ("linear_of_bf16_logits", LINEAR, "batch-invariant, with other bits than the contract"),
    ],
)
def test_a_fault_is_named(name, case, says):
    verdict = judged("torch", f"planted_logprobs:{name}", case)
    assert says in sentence([verdict])
    assert verdict.outcome == "different"


def test_what_trainers_have_today_has_other_bits():
    """In which rows, and whether the order of the vocab changes them, is the machine's."""
    verdict = judged(
        "torch", "planted_logprobs:stock", Case("selected_logprob", "fp32", (100,), 0, 1000, id_dtype="int64")
    )
    assert verdict.outcome == "different" and verdict.checks["bits"].state == "fail"
    assert verdict.accuracy is not None and verdict.accuracy.max_scaled_ulp < 3


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("case", [LOGITS, BF16, LINEAR, BIAS], ids=lambda case: case.id)
def test_the_packages_own_functions_are_exact_as_candidates_with_gradients(framework, case):
    if framework == "jax" and case in (BF16, LINEAR):
        pytest.skip("each shape is compiled anew: one case of each operator is enough")
    verdict = judged(framework, f"rlk_{framework}:{case.op}", case)
    assert verdict.outcome == "equal" and verdict.checks["grad"].passed > (8 if framework == "torch" else 2)
    assert sentence([verdict]).startswith("exactly the contract's bits")


def test_rounded_logits_cost_a_log_probability_many_units_in_the_last_place():
    fine, coarse = (
        judged("torch", target, LINEAR)
        for target in ("rlk_torch:linear_logprob", "planted_logprobs:linear_of_bf16_logits")
    )
    assert fine.accuracy is not None and coarse.accuracy is not None
    assert fine.accuracy.max_scaled_ulp < 2 < 1000 < coarse.accuracy.max_scaled_ulp


@pytest.mark.parametrize("op", ["selected_logprob", "linear_logprob"])
def test_the_planted_controls_of_a_run_are_caught(op):
    found = run(control_cases(op), [control.backend for control in CONTROLS], timeout=60)
    assert [control.caught for control in looked_at(found.verdicts)] == [True, True]


def test_what_was_not_compared_is_not_called_equal():
    """A candidate that takes no digits, on a case of other digits: its refusal of a bad id says nothing of its bits."""
    (backend,) = candidate_backends(["mine=torch:planted_logprobs:refuses_bad_ids_alone"], "cpu")
    eager = replace(backend, modes=("eager",), compiling=())
    found = run([Case("linear_logprob", "fp32", (3,), 8, 9, 3, id_dtype="int64")], [eager], timeout=60)
    (verdict,) = found.verdicts
    assert verdict.checks["bits"].state == "not applicable"
    assert "; not compared with the contract: it takes no digits" in sentence([verdict])
    assert found.outcome == "incomplete"
    assert summary(found).startswith("INCOMPLETE: no result was held against the contract's (1 case")


def test_a_result_in_float64_is_named():
    verdict = judged("torch", "planted_logprobs:in_float64", LOGITS)
    assert verdict.outcome == "different"
    assert sentence([verdict]).startswith("returns another dtype: dtype is float64; expected float32")


def test_a_sum_that_favours_one_end_of_the_vocab_depends_on_it():
    verdict = judged("torch", "planted_logprobs:more_where_the_first_row_is_larger", LINEAR)
    assert sentence([verdict]).startswith("depends on the rest of the vocab: vocab ")


def test_a_width_of_zero_has_a_verdict():
    verdict = judged(
        "torch", "rlk_torch:linear_logprob", Case("linear_logprob", "fp32", (2,), 0, 3, 4, id_dtype="int32")
    )
    assert verdict.outcome == "equal"
