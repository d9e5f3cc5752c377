"""What is made smaller fails in the way that it failed in: values of the same kind differ, and as far, to the end."""

from dataclasses import asdict

import ml_dtypes
import numpy as np
import planted
import pytest

from crosscheck.bits import compare
from crosscheck.cases import Case
from crosscheck.failing import Failing, Retrial, failings
from crosscheck.judge import expected_answer, judge
from crosscheck.shrink import shrink, sizes
from crosscheck.verdict import Verdict
from crosscheck.ways import Way, way_of

HEAD = Case("lm_head", "bf16", (9,), 24, 33, 3, bias="bf16")
INF, NAN = np.inf, np.nan


def way(actual, expected, dtype=np.float32) -> Way:
    difference = compare(np.array(actual).astype(dtype), np.array(expected).astype(dtype))
    assert difference is not None
    return way_of(asdict(difference))


other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)
# Each a way of its own: what begins as one of them is never shrunk to another.
WAYS = {
    "signs of zeros": way([0.0], [-0.0]),
    "NaN patterns": way(other_nan, [NAN]),
    "number for number": way([1], [1 + 2**-23]),
    "infinity for number": way([INF], [1]),
    "number for infinity": way([1], [INF]),
    "NaN for number": way([NAN], [1]),
    "number for NaN": way([1], [NAN]),
    "infinity for NaN": way([INF], [NAN]),
    "float16 for float32": way_of(asdict(compare(np.float16([1]), np.float32([1])))),
    "+1 axes": way([[1]], [1]),
    "+0 axes": way([1, 2], [1]),
}


def test_each_kind_of_difference_is_kept_and_no_other_is_taken_for_it():
    assert {name: found.pair for name, found in WAYS.items()} == {name: name for name in WAYS}
    for name, one in WAYS.items():
        assert [other for other, two in WAYS.items() if one.keeps(two)] == [name]


@pytest.mark.parametrize(("dtype", "least"), [(ml_dtypes.bfloat16, 16), (np.float16, 32), (np.float32, 4096)])
def test_values_that_are_far_apart_stay_so_and_near_ones_may_move_apart(dtype, least):
    one = np.ones(1, dtype)
    stored = one.view(np.uint16 if one.itemsize == 2 else np.uint32)
    near, far = (way((stored + step).astype(stored.dtype).view(dtype), one, dtype) for step in (least - 1, least))
    assert near.keeps(near) and near.keeps(far) and far.keeps(far) and not far.keeps(near)


def test_where_zeros_or_nan_come_first_the_values_that_differ_after_them_decide():
    signs, patterns = way([0.0, 1], [-0.0, 2]), way([*other_nan, 1], [NAN, 2])
    for found in (signs, patterns):
        assert found.keeps(found) and found.keeps(way([1], [2]))
        assert not any(found.keeps(WAYS[name]) for name in ("signs of zeros", "NaN patterns"))
    assert not way([1], [2]).keeps(signs)


def test_without_a_way_any_difference_will_do():
    assert all(Way().keeps(found) for found in WAYS.values())


# Shrunk ----------------------------------------------------------------------------------------------------
class Doubles(planted.Planted):
    def spoil(self, result, inputs):
        return result * result.dtype.type(2)


def signs_alone(result):
    return np.where(result == 0, -np.zeros_like(result), result).astype(result.dtype)


def first_failing(adapter, kind: str) -> Failing:
    found = failings(judge(adapter, "planted", HEAD, "eager", expected_answer(HEAD)))
    return next(failing for failing in found if failing.kind == kind)


@pytest.mark.parametrize(
    "smaller",
    [planted.flipped, signs_alone, lambda result: np.full_like(result, np.inf), lambda result: result * np.nan],
    ids=["another bit", "signs of zeros", "infinity", "NaN"],
)
def test_a_failure_of_large_errors_is_not_shrunk_to_one_of_another_way(smaller):
    adapter = Doubles("cpu", 1)
    failing = first_failing(adapter, "bits")

    def otherwise(result):
        return smaller(result / result.dtype.type(2)).astype(result.dtype)

    spoiled = planted.BelowRows(4, otherwise, adapter)
    again = Retrial(spoiled, HEAD.op, HEAD.digits, "eager", HEAD.seed, failing)
    found, _ = shrink(HEAD.inputs(), again.fails, index=failing.index)
    assert found is not None and sizes(found) == "4 rows, K 1, V 1"


class SignsOfZerosAlone(planted.Planted):
    """A zero is negative where a row is alone."""

    def spoil(self, result, inputs):
        return signs_alone(result) if len(inputs["hidden"]) == 1 else result


def test_a_batch_that_changes_signs_of_zeros_alone_is_a_kind_of_its_own():
    failing = first_failing(SignsOfZerosAlone("cpu", 1), "batch-zeros")
    assert failing.title.startswith("depends on the batch in signs of zeros: ")
    assert failing.way == WAYS["signs of zeros"]


def test_an_exception_of_another_text_is_another_failure_and_numbers_in_it_are_sizes():
    (failing,) = failings(
        Verdict("c", "lm_head", "mine", "eager", "x", "raised", "ValueError: K 24 of 9 rows, in: the call itself")
    )
    assert (failing.error, failing.message) == ("ValueError", "ValueError: K # of # rows")

    class Raises(planted.Planted):
        def spoil(self, result, inputs):
            rows, width = inputs["hidden"].shape
            raise ValueError(f"K {width} of {rows} rows" if rows > 1 else "a row alone")

    again = Retrial(Raises("cpu", 1), HEAD.op, HEAD.digits, "eager", HEAD.seed, failing)
    found, _ = shrink(HEAD.inputs(), again.fails)
    assert found is not None and sizes(found) == "2 rows, K 1, V 1"
