"""The built-in cases: stable ids, inputs that depend on the id alone, and the variety that the suite promises."""

import hashlib
import json
import subprocess
import sys
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from crosscheck.bits import digest
from crosscheck.cases import DTYPES, ID_DTYPES, OPS, Case, default_suite, full_suite, seed_of

SUITE = default_suite()
LM_HEAD = [case for case in SUITE if case.op == "lm_head"]


def by_id(case: Case) -> str:
    return case.id


def bias_kind(case: Case) -> str:
    return "none" if case.bias is None else "same" if case.bias == case.dtype else "other"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case("lm_head", "bf16", (257,), 576, 128, 3, bias="bf16"), "lm_head-bf16-N257-K576-V128-d3-bias"),
        (Case("lm_head", "fp32", (3,), 3, 7, 4), "lm_head-fp32-N3-K3-V7-d4-nobias"),
        (
            Case("lm_head", "bf16", (2, 3), 1, 1, weight_dtype="fp32", bias="fp16"),
            "lm_head-bf16xfp32-N2x3-K1-V1-dauto-bias_fp16",
        ),
        (Case("embedding", "fp16", (), 127, 300, id_dtype="uint8"), "embedding-fp16-Nscalar-H127-V300-uint8"),
        (Case("selected_logprob", "fp32", (3,), 0, 7, id_dtype="int8"), "selected_logprob-fp32-N3-V7-int8"),
        (
            Case("linear_logprob", "bf16", (3,), 5, 7, 4, bias="fp32", id_dtype="int64"),
            "linear_logprob-bf16-N3-K5-V7-d4-bias_fp32-int64",
        ),
    ],
)
def test_an_id_says_what_the_case_is(case, expected):
    assert case.id == expected


def test_the_ids_of_the_default_suite_are_those_that_others_have_stored():
    """Reports and stored outputs name them. Change this digest only together with them."""
    ids = "\n".join(map(by_id, SUITE))
    assert (
        hashlib.sha256(ids.encode()).hexdigest() == "3837702faba4d7d84b248c4d97a86d8ac98a8657f4b00a3738126472f2e8b495"
    )


def test_ids_are_unique():
    for suite in (SUITE, full_suite()):
        assert len({case.id for case in suite}) == len(suite)


def test_the_full_suite_holds_the_default_one():
    assert set(map(by_id, SUITE)) < set(map(by_id, full_suite()))


def test_seeds_come_from_the_id_and_not_from_the_process():
    assert seed_of("lm_head-fp32-N3-K3-V7-d4-nobias") == Case("lm_head", "fp32", (3,), 3, 7, 4).seed
    assert seed_of("a") == 0xCA978112CA1BBDCA


def test_inputs_are_the_same_in_another_process():
    case = LM_HEAD[10]
    program = (
        f"from crosscheck.cases import Case\nfrom crosscheck.bits import digest\n"
        f"print(*map(digest, Case.from_json({case.to_json()!r}).inputs().values()))"
    )
    path = json.dumps([str(entry) for entry in sys.path])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path}\n{program}"],
        capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "12345"},
    )  # fmt: skip
    assert done.stdout.split() == [digest(array) for array in case.inputs().values()]


@pytest.mark.parametrize("case", SUITE, ids=by_id)
def test_inputs_have_the_stated_shapes_and_dtypes(case):
    inputs = case.inputs()
    if case.op.startswith("embedding"):
        assert inputs["token_ids"].shape == case.rows and inputs["token_ids"].dtype == case.id_dtype
        assert inputs["token_ids"].size == 0 or int(inputs["token_ids"].max()) < case.vocab
        assert inputs["weight"].dtype == DTYPES[case.dtype]
    elif case.op == "selected_logprob":
        assert inputs["logits"].shape == (*case.rows, case.vocab) and inputs["logits"].dtype == DTYPES[case.dtype]
    else:
        assert inputs["hidden"].shape == (*case.rows, case.width) and inputs["hidden"].dtype == DTYPES[case.dtype]
        assert inputs["weight"].dtype == DTYPES[case.weight_dtype or case.dtype]
        assert ("bias" in inputs) == (case.bias is not None)
        if case.bias is not None:
            assert inputs["bias"].shape == (case.vocab,) and inputs["bias"].dtype == DTYPES[case.bias]
    if case.op.endswith("logprob"):
        assert inputs["target_ids"].shape == case.rows and inputs["target_ids"].dtype == case.id_dtype
        assert inputs["target_ids"].size == 0 or int(inputs["target_ids"].max()) < case.vocab
    if case.op != "selected_logprob":
        assert inputs["weight"].shape == (case.vocab, case.width)


def test_a_case_survives_json():
    for case in SUITE:
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


# What the default suite covers ------------------------------------------------------------------------------
def test_every_dtype_meets_every_number_of_digits_and_every_bias():
    triples = {(case.dtype, case.digits, bias_kind(case)) for case in LM_HEAD}
    assert triples >= set(product(DTYPES, (2, 3, 4), ("none", "same", "other")))


def test_every_shape_is_tried_in_every_dtype():
    shapes = {(case.rows, case.width, case.vocab) for case in LM_HEAD}
    assert {(*shape, dtype) for shape in shapes for dtype in DTYPES} == {
        (case.rows, case.width, case.vocab, case.dtype) for case in LM_HEAD
    }


def test_the_sizes_span_what_they_should():
    lm_head = [case for case in SUITE if case.op.startswith("lm_head")]
    assert {case.width for case in lm_head} >= {1, 3, 100, 127, 128, 576, 4096}
    assert {case.vocab for case in lm_head} >= {1, 32768}
    assert {case.rows for case in lm_head} >= {(0,), (1,), (3,), (257,)}
    embedding = [case for case in SUITE if case.op == "embedding"]
    assert {case.rows for case in embedding} >= {(), (0,), (2, 0), (2, 3)}
    assert {case.id_dtype for case in embedding} == set(ID_DTYPES)
    assert any(case.width % 128 for case in embedding)


def test_every_operator_has_thorough_cases_and_they_exist():
    from crosscheck.cases import _THOROUGH

    thorough = [case for case in SUITE if case.thorough]
    assert {case.id for case in thorough} == _THOROUGH
    assert {case.op for case in thorough} == {*OPS} - {"linear_logprob"}  # which is made of two of them
    assert {case.dtype for case in thorough if case.op == "lm_head"} == set(DTYPES)


# Special values --------------------------------------------------------------------------------------------
def test_special_values_are_among_the_inputs():
    case = Case("lm_head", "fp32", (257,), 128, 257, 3, bias="fp32")
    hidden, weight, bias = case.inputs().values()
    assert not hidden[1].any() and np.signbit(hidden[1]).any()
    assert ((hidden != 0) & (np.abs(hidden) < 2.0**-126)).any()
    assert np.isnan(hidden).any() and np.isinf(hidden).any() and np.isfinite(hidden).all(axis=1).any()
    assert np.isnan(weight).any() and np.isinf(weight).any()
    assert np.isinf(bias).any() and np.signbit(bias[1]) and bias[1] == 0
    columns = np.abs(hidden[6:]).mean(axis=0)
    assert columns.max() > 10 * np.median(columns)


def test_tables_hold_nan_payloads_and_ids_hold_duplicates_and_both_ends():
    case = Case("embedding", "bf16", (257,), 576, 100, id_dtype="int8")
    inputs = case.inputs()
    nans = inputs["weight"].view(np.uint16)[np.isnan(inputs["weight"].astype(np.float32))]
    assert len(np.unique(nans)) > 10
    ids = inputs["token_ids"]
    assert {0, 99} <= set(ids.tolist()) and len(np.unique(ids)) < ids.size
    assert inputs["weight"].dtype == ml_dtypes.bfloat16
