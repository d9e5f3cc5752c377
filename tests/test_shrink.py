"""What fails is made small and goes on failing in the same way: structure first, then values, the same each time."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import planted
import pytest

from crosscheck.backends import NumpyAdapter
from crosscheck.cases import Case
from crosscheck.failing import Failing, Retrial, failings
from crosscheck.judge import expected_answer, judge
from crosscheck.judge_gradient import gradient_call
from crosscheck.reproducer import GRACE, _Shrinker, first_failures
from crosscheck.shrink import shrink, sizes
from crosscheck.verdict import Failure, Verdict

HEAD = Case("lm_head", "bf16", (9,), 24, 33, 3, bias="bf16")
IDS = Case("embedding", "bf16", (3, 4), 16, 40, id_dtype="int32")


def shrunk(inputs, fails, **options) -> tuple[dict[str, Any] | None, list[str]]:
    """The smallest, and the sizes that were tried."""
    heard: list[str] = []
    found, calls = shrink(inputs, fails, heard=heard.append, **options)
    assert calls == len(heard)
    return found, heard


def shapes(inputs) -> dict[str, tuple[int, ...]]:
    return {name: x.shape for name, x in inputs.items()}


# Structure -------------------------------------------------------------------------------------------------
def test_bias_leading_axes_rows_vocab_and_width_go_where_they_are_not_needed():
    inputs = replace(HEAD, rows=(3, 3)).inputs()
    found, _ = shrunk(inputs, lambda x: True)
    assert found is not None
    assert shapes(found) == {"hidden": (1, 1), "weight": (1, 1)}
    assert sizes(found) == "1 row, K 1, V 1"
    assert sizes(inputs) == "9 rows, K 24, V 33, bias"


def test_what_is_needed_stays_however_it_lies():
    """The first and the last row of the vocab, two rows, and a place of the width, which no half alone has."""
    inputs = HEAD.inputs()
    inputs["weight"][[0, 32], 5] = 3

    def fails(x):
        return "bias" in x and len(x["hidden"]) >= 2 and np.count_nonzero((x["weight"] == 3).any(1)) == 2

    found, _ = shrunk(inputs, fails)
    assert found is not None and fails(found)
    assert sizes(found) == "2 rows, K 1, V 2, bias"


def test_ids_are_numbered_anew_and_keep_their_rows():
    inputs = IDS.inputs()
    wanted = inputs["weight"][inputs["token_ids"][1, 2]].copy()

    def fails(x):
        rows = x["weight"][x["token_ids"].astype(int)].reshape(-1, x["weight"].shape[1])
        return x["weight"].shape[1] == 16 and any(row.tobytes() == wanted.tobytes() for row in rows)

    found, _ = shrunk(inputs, fails)
    assert found is not None and sizes(found) == "1 id, H 16, V 1"
    assert found["token_ids"].tolist() == [0] and found["token_ids"].dtype == np.int32
    assert found["weight"].tobytes() == wanted.tobytes()


def test_rows_of_a_table_that_no_id_names_are_kept_where_they_are_needed():
    found, _ = shrunk(IDS.inputs(), lambda x: len(x["weight"]) > len(np.unique(x["token_ids"])))
    assert found is not None and sizes(found) == "1 id, H 1, V 2"


@pytest.mark.parametrize(("case", "axis"), [(HEAD, "hidden"), (IDS, "token_ids")])
def test_the_upstream_gradient_shrinks_along(case, axis):
    def fits(x):
        lead = x[axis].shape[:-1] if axis == "hidden" else x[axis].shape
        return x["grad"].shape == (*lead, x["weight"].shape[0 if axis == "hidden" else 1])

    found, _ = shrunk(gradient_call(case.op, case.inputs(), case.seed), fits)
    assert found is not None and found["grad"].shape == (1, 1)


def test_where_something_is_wrong_is_looked_at_first():
    inputs = HEAD.inputs()
    _, heard = shrunk(inputs, lambda x: len(x["weight"]) < 33, index=(4, 20))
    tried = ["1 row, K 24, V 33, bias", "2 rows, K 24, V 33, bias", "9 rows, K 24, V 1, bias"]
    assert heard[:3] == [f"shrinking: {size}" for size in tried]


# Values ----------------------------------------------------------------------------------------------------
def test_values_become_zeros_ones_and_powers_of_two():
    rng = np.random.default_rng(0)
    inputs = {"hidden": np.float32(rng.uniform(1.1, 1.9, (1, 4))), "weight": np.float32(rng.uniform(2.1, 3.9, (1, 4)))}

    def fails(x):
        hidden, weight = x["hidden"][0], x["weight"][0]
        return len(hidden) == 4 and bool(hidden[0] == inputs["hidden"][0, 0] and hidden[1] != 0 and weight[3] >= 2)

    found, _ = shrunk(inputs, fails)
    assert found is not None
    assert found["hidden"].tolist() == [[inputs["hidden"][0, 0], 1, 0, 0]]
    assert found["weight"].tolist() == [[0, 0, 0, 2]]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize(
    ("value", "simpler"),
    [(-3, -2), (0.375, 0.25), (2.0**-14 * 1.5, 2.0**-14), (1, 1), (np.inf, np.inf), (-np.inf, -np.inf), (-0.0, -0.0)],
)
def test_only_what_is_normal_becomes_a_power_of_two(dtype, value, simpler):
    """Of the same sign, and next to zero; here nothing else is as small, or as large."""
    inputs = {"hidden": np.array([[value]]).astype(dtype), "weight": np.zeros((1, 1), dtype)}
    bounds = sorted([simpler, value])

    def fails(x):
        kept = float(x["hidden"][0, 0])
        return bounds[0] <= kept <= bounds[1] and np.signbit(kept) == np.signbit(value)

    found, _ = shrunk(inputs, fails)
    assert found is not None and float(found["hidden"][0, 0]) == simpler
    assert np.signbit(float(found["hidden"][0, 0])) == np.signbit(value)


def test_a_nan_that_is_needed_keeps_its_bits():
    inputs = {"hidden": np.array([[0x7FC1]], np.uint16).view(ml_dtypes.bfloat16), "weight": np.zeros((1, 1))}
    found, _ = shrunk({**inputs, "weight": np.float32([[0]])}, lambda x: bool(np.isnan(x["hidden"]).all()))
    assert found is not None and found["hidden"].view(np.uint16).tolist() == [[0x7FC1]]


# Bounds ----------------------------------------------------------------------------------------------------
def test_the_same_failure_shrinks_by_the_same_calls_to_the_same_bits():
    def fails(x):
        return x["hidden"].astype(np.float32).sum() > 3 or len(x["weight"]) > 7

    one, two = (shrunk(HEAD.inputs(), fails) for _ in range(2))
    assert one[0] is not None and two[0] is not None
    assert one[1] == two[1]
    assert {name: x.tobytes() for name, x in one[0].items()} == {name: x.tobytes() for name, x in two[0].items()}


def test_calls_are_bounded_and_what_was_found_by_then_fails():
    found, heard = shrunk(HEAD.inputs(), lambda x: len(x["weight"]) > 5, most=7)
    assert len(heard) == 7
    assert found is not None and len(found["weight"]) > 5
    assert sum(x.size for x in found.values()) < sum(x.size for x in HEAD.inputs().values())


def test_without_time_the_failure_itself_is_tried():
    found, heard = shrunk(HEAD.inputs(), lambda x: True, seconds=0)
    assert heard == ["shrinking: 9 rows, K 24, V 33, bias"]
    assert found is not None and shapes(found) == shapes(HEAD.inputs())


def test_what_does_not_fail_again_is_nothing():
    found, heard = shrunk(HEAD.inputs(), lambda x: False, index=(0, 0))
    assert found is None and len(heard) == 3


def test_each_smaller_one_is_told_and_no_call_is_made_twice():
    told: list[dict[str, Any]] = []
    tried: list[bytes] = []

    def fails(x):
        tried.append(b"".join(array.tobytes() + str(array.shape).encode() for array in x.values()))
        return len(x["hidden"]) >= 4

    found, _ = shrink(HEAD.inputs(), fails, found=told.append)
    assert found is not None and told[-1] is found
    assert all(len(x["hidden"]) >= 4 for x in told)
    assert len(tried) == len(set(tried))


# In the same way -------------------------------------------------------------------------------------------
def failing_of(fault: type[NumpyAdapter], case: Case = HEAD, kind: str = "") -> Failing:
    """The first failure of a planted fault, or the first of a kind."""
    found = failings(judge(fault("cpu", 1), "planted", case, "eager", expected_answer(case)))
    return next(failing for failing in found if kind in ("", failing.kind))


def retrial(adapter: NumpyAdapter, failing: Failing, case: Case = HEAD) -> Retrial:
    return Retrial(adapter, case.op, case.digits, "eager", case.seed, failing)


@pytest.mark.parametrize(
    ("fault", "kind", "size"),
    [
        (planted.FlipsBits, "bits", "1 row, K 1, V 1"),
        (planted.NegativeZero, "bits-special", "1 row, K 1, V 1"),
        (planted.OtherNan, "bits-special", "1 row, K 1, V 1"),
        (planted.OtherDtype, "dtype", "1 row, K 1, V 1"),
        (planted.OtherShape, "shape", "1 row, K 1, V 1"),
        (planted.ModifiesInputs, "arguments", "1 row, K 1, V 1"),
        (planted.NeedsTwoRows, "bits", "2 rows, K 1, V 1"),
        (planted.FlipsOneGradientBit, "grad", "1 row, K 1, V 1"),
        (planted.ModifiesTheUpstreamGradient, "arguments", "1 row, K 1, V 1"),
        (planted.RaisesOnGradients, "grad-raises", "1 row, K 1, V 1"),
        (planted.RaisesOnGradientLayouts, "grad-raises", None),
    ],
)
def test_a_planted_fault_is_shrunk_as_what_it_is(fault, kind, size):
    failing = failing_of(fault)
    assert failing.kind == kind
    inputs = gradient_call(HEAD.op, HEAD.inputs(), HEAD.seed) if failing.gradients else HEAD.inputs()
    again = retrial(fault("cpu", 1), failing)
    found, _ = shrunk(inputs, again.fails, index=failing.index)
    assert found is not None and again.fails(found)
    assert size is None or sizes(found) == size
    assert not retrial(NumpyAdapter("cpu", 1), failing).fails(found)


def test_a_row_that_depends_on_its_company_keeps_the_company_it_needs():
    """The transforms are those of the smaller case: its own rows alone, its own garbage."""
    failing = failing_of(planted.NeedsTwoRows, kind="batch")
    assert failing.title == "depends on the batch: first row alone"
    again = retrial(planted.NeedsTwoRows("cpu", 1), failing)
    found, _ = shrunk(HEAD.inputs(), again.fails, index=failing.index)
    assert found is not None and sizes(found) == "2 rows, K 1, V 1"
    assert not again.fails({**found, "hidden": found["hidden"][:1]})


def test_another_failure_is_not_taken_for_the_one_that_is_shrunk():
    """Small inputs raise, give another dtype or NaN in place of numbers: none of it is a flipped bit."""
    failing, adapter = failing_of(planted.FlipsBits), planted.FlipsBits("cpu", 1)
    for spoil in (
        lambda result: (_ for _ in ()).throw(ValueError("small")),
        lambda result: result.astype(np.float64),
        lambda result: np.full_like(result, np.nan),
        lambda result: result[:0],
    ):
        spoiled = planted.BelowRows(4, spoil, adapter)
        found, _ = shrunk(HEAD.inputs(), retrial(spoiled, failing).fails)
        assert found is not None and sizes(found) == "4 rows, K 1, V 1"


def test_an_exception_of_another_type_is_another_failure():
    failing = Failing("raises", "raises ValueError", error="ValueError")
    assert retrial(planted.Raises("cpu", 1), failing).fails(HEAD.inputs())
    assert not retrial(planted.Raises("cpu", 1), replace(failing, error="TypeError")).fails(HEAD.inputs())
    assert not retrial(planted.Planted("cpu", 1), failing).fails(HEAD.inputs())


def test_a_crash_and_a_hang_are_not_shrunk_and_kinds_come_once():
    crashed = Verdict("c", "lm_head", "mine", "eager", "x", "crashed", "its process ended, in: the call itself")
    assert list(failings(crashed)) == []
    backend = planted.backend(planted.FlipsBits)
    verdicts = [judge(planted.FlipsBits("cpu", 1), "FlipsBits", c, "eager", expected_answer(c)) for c in (HEAD, HEAD)]
    assert [(verdict is verdicts[0], failing.kind) for verdict, failing in first_failures(verdicts, backend)] == [
        (True, "bits")
    ]
    assert first_failures(verdicts, planted.backend(planted.Planted)) == []


def test_a_raise_under_a_transform_is_told_from_one_of_the_call():
    failed = Verdict("c", "lm_head", "mine", "eager", "x", checks=judge(
        planted.RaisesOnPadding("cpu", 1), "mine", HEAD, "eager", expected_answer(HEAD)
    ).checks)  # fmt: skip
    (failing, *_) = failings(failed)
    assert (failing.kind, failing.error) == ("raises-transformed", "RuntimeError")
    assert isinstance(failed.checks["padding"].failed[0], Failure)


# In a process ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fault", "ended"),
    [
        (planted.CrashesWhenSmall, "its process exited with status 5 (last words: too small)"),
        (planted.HangsWhenSmall, "no answer within 2 s"),
    ],
)
def test_a_process_that_ends_or_hangs_ends_the_shrinking_with_what_was_found(fault, ended):
    failing, heard = failing_of(planted.FlipsBits), list[tuple[str, str]]()
    with _Shrinker(planted.backend(fault), 1, 2.0, lambda *what: heard.append(what)) as shrinker:
        found, reason = shrinker.shrink(HEAD, "eager", failing, 30.0)
        assert reason == ended and found is not None
        assert sizes(found.inputs) == "1 row, K 24, V 33, bias"  # the fewest rows of so large a vocab
        assert found.takes == ("bias", "digits", "check_ids")
        assert shrinker.process is None
        found, _ = shrinker.shrink(HEAD, "eager", failing, 30.0)  # a fresh process
        assert found is not None
    assert heard[0] == (fault.__name__, "shrinking: 1 row, K 24, V 33, bias")


def test_the_time_for_all_of_it_ends_a_process_that_does_not_stop(monkeypatch):
    monkeypatch.setattr("crosscheck.reproducer.GRACE", 1.0)
    assert GRACE > 1
    failing = failing_of(planted.FlipsBits)
    with _Shrinker(planted.backend(planted.Hangs), 1, 60.0, lambda *what: None) as shrinker:
        assert shrinker.shrink(HEAD, "eager", failing, 0.5) == (None, "no answer within 1.5 s")
