"""assert_matches_golden passes a function or results with the golden's bits alone, and never passes nothing."""

import pickle
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from golden_files import CASE, MAKER, answered, changed_manifest, crosscheck, write
from planted import flipped

import rlk_jax
import rlk_torch
from crosscheck import GoldenDiffers, assert_matches_golden, contract
from crosscheck.golden_write import write_golden
from crosscheck.goldens import GoldenError, open_golden


@pytest.fixture(scope="module")
def golden(tmp_path_factory) -> Path:
    """Three LM heads, of which two have a bias."""
    folder = tmp_path_factory.mktemp("goldens") / "golden"
    assert crosscheck("golden", "write", folder, "--filter", "*-N3-K100-V33-*").exit_code == 0
    return folder


def message(function, folder, **options) -> str:
    with pytest.raises(GoldenDiffers) as error:
        assert_matches_golden(function, folder, **options)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    return str(error.value)


def one_bit_off(*arguments, **options):
    result = contract.lm_head(*arguments, **options)
    return np.where(np.arange(result.size).reshape(result.shape) == 34, flipped(result), result)


# Functions ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("framework", "function", "kind"),
    [("numpy", contract.lm_head, np.ndarray), ("torch", rlk_torch.lm_head, torch.Tensor),
     ("jax", rlk_jax.lm_head, jax.Array)],
    ids=["numpy", "torch", "jax"],
)  # fmt: skip
def test_each_framework_is_called_with_its_own_arrays(golden, framework, function, kind):
    called = []

    def listening(hidden, weight, bias=None, *, digits=None):
        assert all(isinstance(x, kind) for x in (hidden, weight, bias) if x is not None)
        called.append((bias is not None, digits))
        return function(hidden, weight, bias, digits=digits)

    assert_matches_golden(listening, golden, framework=framework)
    assert sorted(called) == [(False, 2), (True, 3), (True, 4)]


def test_ids_of_every_width_reach_an_embedding_of_jax(tmp_path):
    folder = tmp_path / "ids"
    assert crosscheck("golden", "write", folder, "--filter", "embedding-bf16-N2x3-*-int64").exit_code == 0
    assert_matches_golden(rlk_jax.embedding, folder, framework="jax")


def test_the_message_names_the_case_and_the_first_difference(golden):
    case = "lm_head-bf16-N3-K100-V33-d3-bias"
    lines = message(one_bit_off, golden, cases=[case], context="my port").splitlines()
    assert lines[0] == f"my port: 1 of 1 case has other bits than {golden}:"
    assert lines[1].startswith(f"  {case}: 1 of 99 elements of bfloat16 (3, 33) differ; first at [1, 1]: actual ")
    assert len(message(one_bit_off, golden).splitlines()) == 4


def test_a_dtype_and_a_shape_are_differences(golden):
    options = {"cases": "*-fp32-*"}
    text = message(lambda h, w, digits: contract.lm_head(h, w, digits=digits).astype(np.float64), golden, **options)
    assert "dtype is float64; expected float32" in text
    text = message(lambda h, w, digits: contract.lm_head(h, w, digits=digits)[:1], golden, **options)
    assert "shape is (1, 33); expected (3, 33)" in text


def test_a_function_that_takes_no_digits_is_told_so_where_it_differs(golden):
    text = message(lambda hidden, weight: contract.lm_head(hidden, weight), golden, cases="*-d2-*")
    assert text.endswith(" (the function takes no digits, and the case has 2)")
    assert_matches_golden(lambda h, w, bias: contract.lm_head(h, w, bias), golden, cases="*-bf16-*-d3-*")


def test_a_function_without_a_bias_is_no_answer_to_a_case_with_one(golden):
    with pytest.raises(TypeError, match=r"-bias has a bias, and the function takes none; choose other cases"):
        assert_matches_golden(lambda hidden, weight: hidden, golden, cases="*-bias")


def test_what_the_function_raises_comes_with_the_case(golden):
    with pytest.raises(ZeroDivisionError) as error:
        assert_matches_golden(lambda *a, **k: 1 // 0, golden, cases="*-fp32-*")
    assert error.value.__notes__ == ["crosscheck: raised for lm_head-fp32-N3-K100-V33-d2-nobias"]


def test_other_arguments_than_an_operators_are_refused(tmp_path):
    folder = write(tmp_path / "g", np.float32([1]), {"x": np.float32([1])})
    with pytest.raises(GoldenError, match="planted has the inputs x; expected those of an operator"):
        assert_matches_golden(contract.lm_head, folder)


# Results --------------------------------------------------------------------------------------------------
def test_results_are_compared_from_any_framework(golden):
    stored = open_golden(golden)
    results = {name: stored.array(name, "outputs.result") for name in stored.cases}
    assert_matches_golden(results, golden)
    results[CASE] = torch.from_numpy(results[CASE].view(np.int16)).view(torch.bfloat16)
    assert_matches_golden(results, golden)
    results[CASE] = -results[CASE]
    assert f"\n  {CASE}: " in message(results, golden)


def test_each_chosen_case_needs_a_result_and_each_result_a_case(golden):
    with pytest.raises(ValueError, match=r"lm_head-\S+ is missing from the results, and was chosen; expected one"):
        assert_matches_golden({}, golden)
    with pytest.raises(ValueError, match=r"other is missing from the cases chosen from .*golden; expected one"):
        assert_matches_golden({CASE: np.float32(1), "other": np.float32(1)}, golden, cases=[CASE])


# Large arrays, goldens with gradients ---------------------------------------------------------------------
def test_large_arrays_are_compared_by_their_digests_and_name_their_rows(tmp_path):
    folder = tmp_path / "large"
    options = ("--filter", "lm_head-bf16-N257-K128-V257-*", "--whole-up-to", "1000", "--sample-rows", "3")
    assert crosscheck("golden", "write", folder, *options).exit_code == 0
    assert_matches_golden(contract.lm_head, folder)

    def late(*arguments, **options):
        result = contract.lm_head(*arguments, **options)
        result.view(np.uint16)[[7, 8, 128]] ^= 1
        return result

    text = message(late, folder)
    assert "3 of 257 rows of bfloat16 (257, 257) differ: rows 7-8, 128; in row 128, a sampled one, " in text
    assert "first at [128, 0]: actual " in text


def test_gradients_in_a_golden_are_left_out(tmp_path):
    folder = tmp_path / "g"
    assert crosscheck("golden", "write", folder, "--gradients", "--filter", CASE).exit_code == 0
    assert open_golden(folder).cases[CASE].has_gradients
    assert_matches_golden(contract.lm_head, folder)
    assert CASE in message(one_bit_off, folder)


# Nothing is no pass ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cases", "text"),
    [("embedding-*", "nothing compared: .* has no such case"), ([], "nothing compared"),
     (["lm_head"], "has no case lm_head; it has lm_head-bf16-")],
)  # fmt: skip
def test_nothing_to_compare_is_an_error(golden, cases, text):
    with pytest.raises(GoldenError, match=text):
        assert_matches_golden(contract.lm_head, golden, cases=cases)


def test_a_golden_that_is_none_or_damaged_is_an_error(tmp_path):
    with pytest.raises(GoldenError, match="is no golden"):
        assert_matches_golden(contract.lm_head, tmp_path)
    folder = tmp_path / "empty"
    write_golden(folder, [answered(np.float32([[1]]))], MAKER)
    changed_manifest(folder, lambda manifest: manifest["cases"]["planted"]["arrays"].pop("outputs.result"))
    with pytest.raises(GoldenError, match=r"planted in .* has no outputs\.result|is in no manifest"):
        assert_matches_golden(contract.lm_head, folder)


@pytest.mark.parametrize(
    ("function", "cases", "text"),
    [
        (3, None, "function_or_results is an int; expected a function with an operator's arguments, or"),
        (None, None, "function_or_results is None; expected a function"),
        (contract.lm_head, 3, "cases is an int; expected a glob, a list of ids, or None for all"),
        (lambda *_, **__: None, "*-d2-*", "the result of lm_head-fp32-N3-K100-V33-d2-nobias is None; expected a Num"),
        (lambda *_, **__: [1], "*-d2-*", "the result of lm_head-fp32-N3-K100-V33-d2-nobias is a list; expected a Num"),
    ],
    ids=["int", "None", "cases", "returns None", "returns a list"],
)
def test_arguments_and_results_of_another_type_are_refused(golden, function, cases, text):
    with pytest.raises(TypeError) as error:
        assert_matches_golden(function, golden, cases=cases)
    assert str(error.value).startswith(text)


def test_a_result_whose_key_is_no_case_id_is_refused(golden):
    with pytest.raises(ValueError, match=r"^1 is missing from the cases chosen from "):
        assert_matches_golden({1: np.float32(1)}, golden)


def test_an_unknown_framework_is_refused(golden):
    with pytest.raises(ValueError, match="the framework is 'tf'; expected one of numpy, torch, jax"):
        assert_matches_golden(contract.lm_head, golden, framework="tf")


def test_the_inputs_are_those_that_are_stored(tmp_path):
    """The planted case only has a name, so nothing could be drawn."""
    inputs = {"hidden": np.ones((2, 4), ml_dtypes.bfloat16), "weight": np.ones((3, 4), ml_dtypes.bfloat16)}
    folder = write(tmp_path / "g", contract.lm_head(*inputs.values()), inputs)
    assert_matches_golden(contract.lm_head, folder)
