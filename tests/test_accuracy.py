"""The accuracy column: exact where it can be computed by hand, and wrong by as much as was planted."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscheck import contract
from crosscheck.accuracy import Accuracy, measure, ulp
from crosscheck.cases import Case, Inputs
from crosscheck.histogram import ERRORS

FLOATS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
EYE = {"hidden": np.eye(4, dtype=np.float32), "weight": np.arange(1, 21, dtype=np.float32).reshape(5, 4)}
EXACT = EYE["weight"].T  # the logits of EYE


def measured(logits: np.ndarray, inputs: Inputs, seed: int = 0) -> Accuracy:
    accuracy = measure(logits, inputs, seed)
    assert accuracy is not None
    return accuracy


def planted(errors: np.ndarray) -> Accuracy:
    return measured((EXACT + errors).astype(np.float32), EYE)


@pytest.mark.parametrize("dtype", FLOATS)
@given(st.floats(2.0**-14, 60000.0, width=16))
def test_an_ulp_is_the_distance_to_the_next_number(dtype, value):
    x = np.array(value, FLOATS[dtype])
    bits = x.view(f"u{x.itemsize}")
    above = (bits + np.array(1, bits.dtype)).view(x.dtype)
    if np.isfinite(above):
        assert Fraction(ulp(float(x), dtype)) == Fraction(float(above)) - Fraction(float(x))


def test_subnormals_share_the_ulp_of_the_smallest_normal():
    assert ulp(0.0, "float16") == ulp(2.0**-20, "float16") == 2.0**-24
    assert ulp(0.0, "float32") == ulp(1e-42, "float32") == 2.0**-149


def test_exact_logits_have_no_error():
    accuracy = measured(np.ascontiguousarray(EXACT), EYE)
    assert (accuracy.max_ulp, accuracy.mean_ulp, accuracy.max_relative, accuracy.samples) == (0, 0, 0, 20)


def test_a_planted_error_is_measured():
    errors = np.zeros((4, 5))
    errors[2, 3] = 3 * ulp(float(EXACT[2, 3]), "float32")
    accuracy = planted(errors)
    assert accuracy.max_ulp == 3
    assert accuracy.mean_ulp == pytest.approx(3 / 20)
    assert accuracy.max_relative == pytest.approx(errors[2, 3] / EXACT[2].max())


def test_every_sampled_error_is_in_the_histogram():
    errors = np.zeros((4, 5))
    errors[2, 3] = 3 * ulp(float(EXACT[2, 3]), "float32")
    counts = dict(zip(ERRORS, planted(errors).histogram["ulp"], strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {0.0: 19, 4.0: 1}
    errors[0, 0] = np.nan
    assert planted(errors).histogram["ulp"][-1] == planted(errors).histogram["scaled"][-1] == 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_non_finite_logit_where_a_number_belongs_is_infinitely_wrong(wrong):
    errors = np.zeros((4, 5))
    errors[0, 0] = wrong
    assert planted(errors).max_ulp == math.inf


def test_entries_that_are_not_finite_by_right_are_skipped():
    inputs = {
        "hidden": np.array([[300, 0], [np.nan, 0], [1, 0]], np.float16),
        "weight": np.array([[300, 0], [1, 0], [np.inf, 0]], np.float16),
    }
    accuracy = measured(contract.lm_head(inputs["hidden"], inputs["weight"]), inputs)
    assert accuracy.samples == 3  # of 9: [0, 1], [2, 0], [2, 1]
    assert accuracy.max_ulp == 0


def test_nothing_to_measure_is_none():
    nan = {"hidden": np.array([[np.nan]], np.float32), "weight": np.array([[1]], np.float32)}
    assert measure(np.array([[np.nan]], np.float32), nan, 0) is None
    none = {"hidden": np.zeros((0, 2), np.float32), "weight": np.ones((3, 2), np.float32)}
    assert measure(np.zeros((0, 3), np.float32), none, 0) is None


def test_the_bias_counts():
    inputs = {**EYE, "bias": np.array([1, 2, 3, 4, 5], np.float32)}
    assert measured(EXACT + inputs["bias"], inputs).max_ulp == 0
    assert measured(np.ascontiguousarray(EXACT), inputs).max_ulp > 0


def test_sums_that_cancel_are_summed_exactly():
    row = np.array([[1e30, 1, -1e30]], np.float32)
    inputs = {"hidden": row, "weight": np.ones((1, 3), np.float32)}
    assert measured(np.array([[1]], np.float32), inputs).max_ulp == 0
    assert measured(np.array([[0]], np.float32), inputs).max_ulp == 2.0**23


@pytest.mark.parametrize("digits", [3, 4])
def test_the_contract_rounds_bfloat16_logits_to_half_an_ulp_or_little_more(digits):
    case = Case("lm_head", "bf16", (3,), 100, 33, digits)
    inputs = case.inputs()
    accuracy = measured(contract.lm_head(**inputs, digits=digits), inputs, case.seed)
    assert 0.2 < accuracy.max_ulp < 0.6


def test_two_digits_are_coarser_than_four():
    inputs = Case("lm_head", "fp32", (3,), 100, 33).inputs()
    errors = [measured(contract.lm_head(**inputs, digits=digits), inputs).max_relative for digits in (2, 3, 4)]
    assert errors[0] > 10 * errors[1] > 100 * errors[2]
