"""The rows and columns that are held against each other in a shrunk failure are those that the transform compares."""

import numpy as np
import pytest

from crosscheck.cases import Case
from crosscheck.gradient_invariance import gradient_trials
from crosscheck.invariance import Trial, trials
from crosscheck.judge_gradient import gradient_call
from crosscheck.operators import result_shape, wanted
from crosscheck.reproducer_places import Places, matched


@pytest.mark.parametrize(
    "case", [Case("lm_head", "bf16", (7,), 8, 9, bias="bf16"), Case("embedding", "bf16", (2, 3), 8, 9, id_dtype="int8")]
)
def test_rows_and_columns_pick_what_a_transform_picks(case):
    rng, inputs = np.random.default_rng(0), case.inputs()
    for trial in trials(inputs, case.seed):
        if isinstance(trial, Trial):
            base, *results = (
                rng.random(result_shape(call)).reshape(-1, result_shape(call)[-1]) for call in (inputs, *trial.calls)
            )
            assert_same(trial, base, results, list(matched(trial, inputs)), trial.join(results), trial.expected(base))


@pytest.mark.parametrize(
    "case", [Case("lm_head", "bf16", (7,), 8, 9, bias="bf16"), Case("embedding", "bf16", (6,), 8, 9, id_dtype="int8")]
)
def test_rows_and_columns_of_gradients_pick_what_a_transform_picks(case):
    rng, inputs = np.random.default_rng(0), gradient_call(case.op, case.inputs(), case.seed)
    for trial in gradient_trials(inputs, case.seed):
        if isinstance(trial, Trial):
            base, *results = (
                {name: gradient(rng, call, name) for name in wanted(call)} for call in (inputs, *trial.calls)
            )
            joined, expected = trial.join(results), trial.expected(base)
            for name in expected:
                of_name = [found[name] for found in results]
                assert_same(
                    trial, base[name], of_name, list(matched(trial, inputs, name)), joined[name], expected[name]
                )


def gradient(rng, call, name):
    return (
        rng.random(call[name].shape).reshape(-1, call[name].shape[-1])
        if name != "bias"
        else rng.random(call[name].shape)
    )


def assert_same(trial, base, results, places, joined, expected):
    """The pairs of numbers that are compared, as a set: by the transform itself, and by rows and columns."""
    pairs = set(zip(joined.ravel().tolist(), expected.ravel().tolist(), strict=True))
    picked = set()
    for one in places:
        actual, of_base = picked_from(results[one.call], one.actual), picked_from(base, one.expected)
        picked |= set(zip(actual, of_base, strict=True))
    assert picked == pairs, trial.name


def picked_from(array, places: Places) -> list[float]:
    matrix = array.reshape(places.shape)
    return matrix[list(places.rows)][:, list(places.columns)].ravel().tolist()
