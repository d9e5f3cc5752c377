"""The judge's columns: each planted fault fails the column that is named for it, and no other."""

import planted
import pytest

from crosscheck.backends import NumpyAdapter
from crosscheck.cases import Case
from crosscheck.judge import NEW_SHAPE, Effort, expected_answer, judge
from crosscheck.verdict import CHECKS, Verdict

CASE = Case("lm_head", "bf16", (3,), 16, 9, 3)


def judged(adapter: type[NumpyAdapter], effort: Effort | None = None) -> Verdict:
    return judge(adapter("cpu", 1), "planted", CASE, "eager", expected_answer(CASE), effort=effort or Effort())


def states(verdict: Verdict) -> dict[str, str]:
    return {name: check.state for name, check in verdict.checks.items()}


@pytest.mark.parametrize(
    ("fault", "column"),
    [
        (planted.FlipsBits, "bits"),
        (planted.NegativeZero, "bits"),
        (planted.OtherNan, "bits"),
        (planted.OtherDtype, "bits"),
        (planted.ModifiesInputs, "inputs"),
        (planted.SpoilsPopulation, "population"),
        (planted.SpoilsPosition, "position"),
        (planted.SpoilsNeighbours, "neighbours"),
        (planted.SpoilsPadding, "padding"),
        (planted.SpoilsChunking, "chunking"),
        (planted.SpoilsLayout, "layout"),
        (planted.SpoilsRepeat, "repeat"),
        (planted.FlipsOneGradientBit, "grad"),
        (planted.GradientsOfTheBatch, "grad"),
        (planted.RaisesOnGradients, "grad"),
        (planted.RaisesOnGradientLayouts, "grad"),
        (planted.OmitsAGradient, "grad"),
        (planted.OtherGradientDtype, "grad"),
        (planted.ModifiesTheUpstreamGradient, "inputs"),
    ],
)
def test_a_fault_fails_its_own_column_and_no_other(fault, column):
    verdict = judged(fault)
    assert verdict.failed
    assert states(verdict) == {name: "fail" if name == column else "pass" for name in CHECKS}


def test_the_contract_itself_passes_every_column():
    verdict = judged(planted.Planted)
    assert not verdict.failed
    assert states(verdict) == dict.fromkeys(CHECKS, "pass")


def test_another_shape_fails_the_bits_and_leaves_the_transforms_unjudged():
    found = states(judged(planted.OtherShape))
    assert found["bits"] == "fail"
    assert {found[name] for name in CHECKS[2:]} == {"not applicable"}


def test_a_failure_carries_the_first_difference():
    (failure,) = judged(planted.FlipsBits).checks["bits"].failed
    assert failure.difference is not None
    assert failure.difference["index"] == (0, 0)
    assert int(failure.difference["actual_bits"], 16) == int(failure.difference["expected_bits"], 16) ^ 1
    assert failure.difference["actual_bits"] in failure.text


def test_a_mode_that_compiles_tries_no_new_shape_or_storage():
    verdict = judged(planted.Planted, Effort(compiles=True, thorough=False))
    assert states(verdict) == {
        name: "not applicable" if name in ("population", "padding", "chunking", "layout") else "pass" for name in CHECKS
    }
    assert {attempt["reason"] for attempt in verdict.checks["padding"].not_applicable} == {NEW_SHAPE}


def test_what_an_adapter_raises_passes_through():
    with pytest.raises(ValueError, match="planted"):
        judged(planted.Raises)


def test_a_transformed_call_that_raises_fails_its_column_and_no_other():
    verdict = judged(planted.RaisesOnPadding)
    assert states(verdict) == {name: "fail" if name == "padding" else "pass" for name in CHECKS}
    assert {failure.text for failure in verdict.checks["padding"].failed} == {"raised RuntimeError: planted"}


def test_the_judge_announces_what_it_is_about_to_run():
    heard: list[str] = []
    judge(planted.Planted("cpu", 1), "planted", CASE, "eager", expected_answer(CASE), announce=heard.append)
    assert heard[0] == "the call itself"
    assert "zero rows after" in heard
    assert "the gradients" in heard and "the gradients, rows shuffled" in heard


def test_a_verdict_survives_json():
    verdict = judged(planted.SpoilsPadding)
    again = Verdict.from_json(verdict.to_json())
    assert again == verdict
    assert verdict.to_json()["checks"]["padding"]["state"] == "fail"
