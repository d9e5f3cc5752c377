"""assert_batch_invariant finds a function that treats a row by its company, and names the transform and the batch."""

import pickle

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from frameworks import JAX, both
from processes import run_alone

import crosscheck
import rlk_torch
from crosscheck import BatchVariant, assert_batch_invariant, contract
from crosscheck.cases import Case
from crosscheck.invariance import COLUMNS
from crosscheck.row_transforms import row_trials

RNG = np.random.default_rng(0)
HIDDEN = RNG.standard_normal((5, 16)).astype(np.float32)
WEIGHT = RNG.standard_normal((9, 16)).astype(np.float32)
X = np.arange(1, 41, dtype=np.float32).reshape(10, 4)


def variant(function, inputs, *transforms, **options) -> BatchVariant:
    with pytest.raises(BatchVariant) as error:
        assert_batch_invariant(function, inputs, transforms or None, **options)
    return error.value


# Functions that pass --------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", [
    Case("lm_head", "fp16", (2, 3), 16, 9, 3, bias="bf16"), Case("embedding", "bf16", (2, 3), 8, 20, id_dtype="uint8"),
], ids=lambda case: case.op)  # fmt: skip
@both
def test_the_operators_are_invariant_in_every_framework(framework, case):
    inputs = {name: framework.array(x) for name, x in case.inputs().items()}
    transforms = ["population", "layout"] if framework is JAX else None  # each shape is a compilation there
    assert_batch_invariant(getattr(framework.package, case.op), inputs, transforms)


def test_the_contract_is_invariant():
    assert_batch_invariant(contract.lm_head, (HIDDEN, WEIGHT))
    assert_batch_invariant(contract.embedding, (np.array([[3, 1], [0, 3]]), WEIGHT))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int8", ml_dtypes.bfloat16], ids=str)
def test_a_function_of_each_row_alone_is_invariant_in_any_dtype(dtype):
    assert_batch_invariant(lambda x: x[..., ::-1], X.astype(dtype))


def test_rows_may_have_any_shape_and_none_at_all():
    assert_batch_invariant(lambda x: x.sum(axis=(1, 2)), np.ones((4, 2, 3), np.float32))
    assert_batch_invariant(lambda x: x, np.arange(4))
    assert_batch_invariant(lambda x: x, np.zeros((3, 0), np.float32))
    assert_batch_invariant(lambda x: x, np.zeros((0, 3), np.float32))


def test_arguments_that_are_not_the_batch_are_passed_on_as_they_are():
    scale, heard = object(), []

    def scaled(x, scale, *, power=1):
        heard.append(scale)
        return x**power

    assert_batch_invariant(scaled, (X, scale))
    assert_batch_invariant(scaled, {"x": X, "scale": scale, "power": 2})
    assert set(map(id, heard)) == {id(scale)}


def test_several_arguments_can_be_one_batch():
    mask = np.arange(10) % 3 == 0
    assert_batch_invariant(lambda x, mask: x * mask[:, None], (X, mask), rows=["x", "mask"])
    found = variant(lambda x, mask: x * mask.sum(), (X, mask), rows=["x", "mask"])
    assert (found.transform, found.rows) == ("first row alone", 4)


def test_an_aligned_weight_is_passed_on():
    weight = rlk_torch.align(torch.from_numpy(WEIGHT), 4)
    assert_batch_invariant(rlk_torch.lm_head, {"hidden": torch.from_numpy(HIDDEN), "weight": weight})


# Functions that do not ------------------------------------------------------------------------------------
def by_number(x):
    return x + np.arange(len(x))[:, None]


FAULTS = {
    "population": lambda x: x + (len(x) == 1),
    "position": by_number,
    "neighbours": lambda x: x + np.nan_to_num(x).max(),
    "padding": lambda x: x + (~np.isfinite(x)).any(),
    "chunking": lambda x: x + (len(x) == 5),
    "layout": lambda x: x + (not x.flags.c_contiguous),
}


@pytest.mark.parametrize("column", FAULTS)
def test_each_planted_fault_is_found_by_its_column(column):
    found = variant(FAULTS[column], X, column)
    assert found.column == column
    assert found.difference.actual_bits != found.difference.expected_bits
    assert found.transform in str(found) and str(found.difference.actual_bits) in str(found)


def test_a_function_that_counts_its_calls_is_not_repeatable():
    calls = []

    def counting(x):
        calls.append(len(x))
        return x + len(calls)

    found = variant(counting, X, "repeat")
    assert (found.transform, found.column, found.rows) == ("second run", "repeat", 10)
    assert str(found).startswith("the result is not repeatable: 'second run' (repeat) changes it; in the transformed")


def test_the_message_says_all_of_it():
    found = variant(lambda x: x - x.max(), np.float32([[1, 2], [3, 5]]), context="my norm")
    assert str(found) == (
        "my norm: the result depends on the batch: 'first row alone' (population) changes it, from 2 rows on; in the "
        "transformed call (actual) and in the call itself (expected), 2 of 2 elements of float32 (1, 2) differ; first "
        "at [0, 0]: actual -1.0 (0xBF800000), expected -4.0 (0xC0800000), 16777216 ULP apart, at most 1077936128"
    )
    again = pickle.loads(pickle.dumps(found))
    assert (str(again), again.transform, again.rows) == (str(found), "first row alone", 2)


@pytest.mark.parametrize("smallest", [2, 3, 6, 10])
def test_the_smallest_batch_is_found(smallest):
    assert variant(lambda x: x + (len(x) >= smallest), X, "first row alone").rows == smallest
    assert f", from {smallest} rows on;" in str(variant(lambda x: x + (len(x) >= smallest), X, "population"))


def test_one_row_may_show_it():
    found = variant(lambda x: x + len(x), X, "rows added")
    assert found.rows == 1 and ", from 1 row on;" in str(found)


def test_an_lm_head_that_looks_at_its_neighbours_in_the_vocab_says_so():
    def softmax(hidden, weight):
        logits = np.nan_to_num(hidden @ weight.T)
        return logits - logits.max(axis=-1, keepdims=True)

    found = variant(softmax, (HIDDEN, WEIGHT), "vocab in 2 shards")
    assert str(found).startswith("the result depends on the rest of the vocab: 'vocab in 2 shards' (chunking)")


def test_storage_is_named_and_of_jax_there_is_none():
    assert str(variant(FAULTS["layout"], X)).startswith("the result depends on how its arguments are stored: 'transp")
    with pytest.raises(ValueError, match="there is no transform 'strided storage'"):
        assert_batch_invariant(lambda x: x, jnp.asarray(X), "strided storage")


def test_another_dtype_or_shape_in_the_transformed_call_is_a_difference():
    found = variant(lambda x: x.astype(np.float64) if len(x) == 1 else x, X)
    assert "dtype is float64; expected float32" in str(found)
    found = variant(lambda x: x[:-1] if len(x) > 10 else x, X, "padding")
    assert "from 9 rows on" in str(found) and "shape is (10, 4); expected (11, 4), float32" in str(found)


# What the function is called with -------------------------------------------------------------------------
@pytest.mark.parametrize("array", [
    torch.from_numpy(X).to(torch.bfloat16), jnp.asarray(X, jnp.float16), X.astype(ml_dtypes.bfloat16),
], ids=["torch", "jax", "numpy"])  # fmt: skip
def test_the_function_gets_arrays_of_the_given_kind(array):
    seen = set()

    def doubled(x):
        seen.add((type(x), str(x.dtype), str(getattr(x, "device", None))))
        return x * 2

    assert_batch_invariant(
        doubled, array, ["population", "padding", "strided storage"][: 2 if isinstance(array, jax.Array) else 3]
    )
    assert seen == {(type(array), str(array.dtype), str(getattr(array, "device", None)))}


def test_jit_and_gradients_of_torch_are_no_matter():
    assert_batch_invariant(jax.jit(lambda x: x * 2), jnp.asarray(X), ["population"])
    assert_batch_invariant(lambda x: x * 2, torch.from_numpy(X).requires_grad_(), ["population"])


def test_rows_that_come_in_are_valid():
    """Of floats nothing is; of integers and bools, what the batch has."""
    for dtype in (np.int16, bool):
        values = X.astype(dtype)
        for trial in row_trials({"x": values}, 0):
            assert all(np.isin(call["x"], values).all() for call in getattr(trial, "calls", ()))
    calls = [call["x"] for trial in row_trials({"x": X}, 0) for call in getattr(trial, "calls", ())]
    assert any(np.isnan(x).any() for x in calls) and any((x == 0).all(axis=1).any() for x in calls)


def test_every_column_has_a_trial_and_the_same_seed_draws_the_same():
    def drawn(seed):
        return [trial.calls[0]["x"].tobytes() for trial in row_trials({"x": X}, seed) if trial.column in COLUMNS]

    assert {trial.column for trial in row_trials({"x": X}, 0)} == set(COLUMNS)
    assert drawn(1) == drawn(1) != drawn(2)


# Refusals -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("function", "inputs", "options", "text"),
    [
        (len, X, {"transforms": ["rows inverted"]}, r"there is no transform 'rows inverted' of these inputs; expected "
         "a column, population, position, .*, or one of 'first row alone', .*'third run'"),
        (len, (), {}, "inputs are empty"),
        (len, X[0, 0], {}, r"the batch has the shapes \{.*: \(\)\}; expected \[rows, ...\]"),
        (lambda x, y: x, (X, X[:3]), {"rows": ("x", "y")}, r"shapes \{'x': \(10, 4\), 'y': \(3, 4\)\}; expected"),
        (lambda x: x, X, {"rows": "y"}, r"rows names \['y'\]; expected names of arguments, among \['x'\]"),
        (lambda x: x.sum(), X, {}, r"the result has shape \(\) for 10 rows; expected \[10, ...\]"),
        (lambda hidden, weight: hidden, (HIDDEN, WEIGHT), {}, r"the result has shape \(5, 16\); expected \(5, 9\), as "
         "an operator of the contract .*: of another function, name the batch, rows='hidden'"),
        (lambda x: x, X[:1], {"transforms": ["position"]}, "nothing compared: no transform applies to these inputs "
         r"\(rows in another order: the batch has one row\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(function, inputs, options, text):
    with pytest.raises(ValueError, match=text):
        assert_batch_invariant(function, inputs, **options)


def test_a_function_that_looks_like_an_lm_head_is_called_what_it_is_by_rows():
    square = WEIGHT[:, :9].copy()

    def project(hidden, weight):
        return np.stack([(row[:, None] * weight).sum(0) for row in hidden])

    assert variant(project, (HIDDEN[:, :9], square)).transform == "vocab shuffled"
    assert_batch_invariant(project, (HIDDEN[:, :9], square), rows="hidden")


def test_what_the_function_raises_comes_with_the_transform():
    def refuses(x):
        if len(x) == 1:
            raise RuntimeError("one row")
        return x

    with pytest.raises(RuntimeError, match="one row") as error:
        assert_batch_invariant(refuses, X)
    assert error.value.__notes__ == ["crosscheck: raised under the transform 'first row alone' (population)"]


def test_every_public_name_is_there_and_no_other():
    assert all(getattr(crosscheck, name).__module__.startswith("crosscheck.") for name in crosscheck.__all__)
    assert set(crosscheck.__all__) <= set(dir(crosscheck))
    with pytest.raises(AttributeError, match="module 'crosscheck' has no attribute 'assert_equal'"):
        _ = crosscheck.assert_equal


def test_no_framework_is_imported_for_numpy_arrays():
    run_alone("""
import sys
import numpy as np
from crosscheck import assert_batch_invariant, contract
assert_batch_invariant(contract.lm_head, (np.ones((3, 4), np.float32), np.ones((5, 4), np.float32)))
assert not {"jax", "torch", "pytest", "click", "rich"} & set(sys.modules), sorted(sys.modules)
""")


def test_a_result_in_a_buffer_that_every_call_writes_into_is_kept_as_it_was():
    buffer = np.zeros((4, 3), np.float32)
    calls = []

    def counts(x):
        calls.append(x)
        buffer[: len(x)] = x + np.float32(len(calls))
        return buffer[: len(x)]

    with pytest.raises(BatchVariant, match="second run"):
        assert_batch_invariant(counts, np.ones((4, 3), np.float32), ["repeat"])

    def doubles(x):
        buffer[: len(x)] = x * np.float32(2)
        return buffer[: len(x)]

    assert_batch_invariant(doubles, np.arange(12, dtype=np.float32).reshape(4, 3), ["position"])
