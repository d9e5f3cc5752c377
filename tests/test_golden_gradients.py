"""A golden with gradients holds the contract's, is verified and compared with them, and one without is told apart."""

import numpy as np
import pytest
from golden_files import CASE, MAKER, PlantedCase, changed_manifest, crosscheck
from safetensors.numpy import load_file, save_file

from crosscheck import assert_bits_equal, digest, gradients, real_input
from crosscheck.cases import default_suite
from crosscheck.golden_write import Answered, contract_answers, write_golden
from crosscheck.goldens import open_golden
from crosscheck.gradients import wanted
from crosscheck.judge import expected_answer

EMBEDDING = "embedding-fp32-N7-H100-V300-int16"
SMALL = [case for case in default_suite() if case.width * case.vocab < 40_000]


def written(folder, *options, case=CASE):
    result = crosscheck("golden", "write", folder, "--filter", case, "--gradients", *options)
    assert result.exit_code == 0, result.output
    return folder


def last_line(*arguments):
    result = crosscheck(*arguments)
    return result.exit_code, result.stdout.splitlines()[-1]


def changed_array(golden, case, name, change):
    """Change the bits of an array in place, and the digest in the manifest with them."""
    file = golden / f"{case}.safetensors"
    tensors = load_file(file)
    change(tensors[name].reshape(-1).view(np.uint8))
    save_file(tensors, file)
    said = digest(tensors[name])
    changed_manifest(golden, lambda manifest: manifest["cases"][case]["arrays"][name].update(sha256=said))


def flip(bits):
    bits[0] ^= 1


# What is stored ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_a_golden_holds_the_gradients_that_a_run_expects(tmp_path, case):
    write_golden(tmp_path / "g", contract_answers([case], gradients=True), MAKER)
    golden, answer = open_golden(tmp_path / "g"), expected_answer(case)
    held = golden.cases[case.id]
    assert held.gradients == "all inputs"
    assert list(held.named("inputs")) == [*case.inputs(), "grad"]
    assert list(held.named("outputs")) == ["result", *(f"grad.{name}" for name in wanted(case.inputs()))]
    for name, expected in answer.gradients.items():
        assert_bits_equal(golden.array(case.id, f"outputs.grad.{name}"), expected, context=name)
    assert golden.array(case.id, "inputs.grad").shape == answer.result.shape


def test_no_gradient_is_stored_unless_it_is_asked_for(tmp_path):
    assert crosscheck("golden", "write", tmp_path / "g", "--filter", CASE).exit_code == 0
    case = open_golden(tmp_path / "g").cases[CASE]
    assert (list(case.named("inputs")), list(case.named("outputs"))) == (["hidden", "weight", "bias"], ["result"])
    assert (case.gradients, case.has_gradients) == ("", False)


# Verified ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [(), ("--whole-up-to", "0")], ids=["whole", "blocks"])
@pytest.mark.parametrize("case", [CASE, EMBEDDING, "lm_head_fp32-bf16-N3-*", "lm_head-*-N2x3-*", "embedding-*-N0-*"])
def test_gradients_are_verified(tmp_path, case, options):
    golden = written(tmp_path / "g", *options, case=case)
    assert last_line("golden", "verify", golden)[0] == 0
    assert last_line("compare", golden, golden)[0] == 0


@pytest.mark.parametrize("name", ["hidden", "weight", "bias"])
def test_a_wrong_gradient_is_named_by_verify_and_by_compare(tmp_path, name):
    golden, right = written(tmp_path / "g"), written(tmp_path / "right")
    changed_array(golden, CASE, f"outputs.grad.{name}", flip)
    for command in (("golden", "verify", golden), ("compare", golden, right)):
        result = crosscheck(*command)
        assert result.exit_code == 1
        assert f"DIFFERENT {CASE}: outputs.grad.{name}: 1 of " in result.stdout
        assert "outputs.result" not in result.stdout


def test_another_upstream_gradient_is_another_input(tmp_path):
    golden, right = written(tmp_path / "g"), written(tmp_path / "right")
    changed_array(golden, CASE, "inputs.grad", flip)
    result = crosscheck("compare", golden, right)
    assert (result.exit_code, "the inputs are not the same: inputs.grad: 1 of 99" in result.stdout) == (2, True)
    assert crosscheck("golden", "verify", golden).exit_code == 1


def test_a_part_takes_part_of_a_large_weight(tmp_path, monkeypatch):
    monkeypatch.setattr(gradients, "WHOLE", 1000)
    golden = open_golden(written(tmp_path / "g"))
    case = golden.cases[CASE]
    assert case.gradients == "the first 10 of 33 rows of the LM head"
    shapes = {name: stored.shape for name, stored in case.arrays.items()}
    assert (shapes["inputs.weight"], shapes["outputs.grad.weight"]) == ((33, 100), (10, 100))
    assert shapes["inputs.grad"] == (3, 10)
    assert last_line("golden", "verify", tmp_path / "g")[0] == 0


def test_a_checkpoint_has_its_gradients_verified_from_its_own_files(tmp_path):
    save_file({"table": np.random.default_rng(0).standard_normal((40, 16), np.float32)}, tmp_path / "m.safetensors")
    np.save(tmp_path / "ids.npy", np.array([3, 1, 39, 3]))
    options = (
        "--checkpoint", str(tmp_path / "m.safetensors"), "--embedding-key", "table", "--token-ids",
        str(tmp_path / "ids.npy"), "--whole-up-to", "100",
    )  # fmt: skip
    golden = written(tmp_path / "g", *options, case="*")
    assert last_line("golden", "verify", golden) == (0, "EQUAL: every output has the contract's bits (5 cases)")
    real_input._tensor.cache_clear()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda arrays: arrays.pop("inputs.grad"), "expected an operator of the contract with result"),
        (lambda arrays: arrays.pop("outputs.grad.bias"), "with grad.bias, grad.hidden, grad.weight, result"),
        (lambda arrays: arrays["inputs.grad"].update(shape=[99]), "inputs.grad is BF16 (3, 33); expected BF16 (99,)"),
    ],
)
def test_gradients_that_are_not_whole_are_refused(tmp_path, change, said):
    golden = written(tmp_path / "g")
    changed_manifest(golden, lambda manifest: change(manifest["cases"][CASE]["arrays"]))
    names = set(open_golden(golden).cases[CASE].arrays)
    file = golden / f"{CASE}.safetensors"
    save_file({name: array for name, array in load_file(file).items() if name in names}, file)
    result = crosscheck("golden", "verify", golden)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert said in result.stderr


@pytest.mark.parametrize("field", ["gradients", "untold"])
def test_words_that_are_no_words_are_refused(tmp_path, field):
    golden = written(tmp_path / "g")
    changed_manifest(golden, lambda manifest: manifest["cases"][CASE].update({field: 5}))
    result = crosscheck("golden", "verify", golden)
    assert (result.exit_code, f"case {CASE}: {field} is missing, or of another type" in result.stderr) == (2, True)


def test_a_grad_of_another_shape_cannot_be_computed(tmp_path):
    inputs = {**PlantedCase().inputs(), "grad": np.float32([[1, 2, 3]])}
    outputs = {"result": np.float32([[11]]), "grad.hidden": np.float32([[3, 4]]), "grad.weight": np.float32([[1, 2]])}
    write_golden(tmp_path / "g", [Answered(PlantedCase(), inputs, outputs, "planted")], MAKER)
    result = crosscheck("golden", "verify", tmp_path / "g")
    assert (result.exit_code, "planted in " in result.stderr, "cannot be computed" in result.stderr) == (2, True, True)


# Beside one without ------------------------------------------------------------------------------------
@pytest.mark.parametrize("turned", [False, True])
def test_one_without_gradients_is_unusable_and_its_equal_results_are_said(tmp_path, turned):
    full, bare = written(tmp_path / "full"), tmp_path / "bare"
    crosscheck("golden", "write", bare, "--filter", CASE)
    result = crosscheck("compare", *((bare, full) if turned else (full, bare)))
    assert result.exit_code == 2
    assert f"UNUSABLE {CASE}: its gradients are missing from {bare} and are not compared" in result.stdout
    assert result.stdout.splitlines()[-1] == "UNUSABLE: 1 case not comparable, 1 of them equal but for gradients"


def test_one_without_gradients_hides_no_difference(tmp_path):
    full, bare = written(tmp_path / "full"), tmp_path / "bare"
    crosscheck("golden", "write", bare, "--filter", CASE)
    changed_array(bare, CASE, "outputs.result", flip)
    result = crosscheck("compare", full, bare)
    assert result.exit_code == 1
    assert f"DIFFERENT {CASE}: outputs.result: 1 of 99" in result.stdout
    assert result.stdout.splitlines()[-1] == "DIFFERENT: 1 output of 1 case with other bits, 1 case not comparable"


# Recorded ----------------------------------------------------------------------------------------------
def test_a_backend_is_recorded_with_its_gradients(tmp_path):
    options = ("--filter", CASE, "--gradients")
    for name, code in (("Planted", 0), ("FlipsOneGradientBit", 1)):
        recording = tmp_path / name
        assert crosscheck("record", "-o", recording, "--backend", name, *options).exit_code == 0
        assert crosscheck("golden", "verify", recording).exit_code == code
    result = crosscheck("compare", tmp_path / "FlipsOneGradientBit", tmp_path / "Planted")
    assert f"DIFFERENT {CASE}: outputs.grad.weight: 1 of 3300 elements" in result.stdout


def test_a_backend_that_raises_on_gradients_gives_no_golden(tmp_path):
    words = ("record", "-o", tmp_path / "r", "--backend", "RaisesOnGradients", "--filter", CASE)
    result = crosscheck(*words, "--gradients")
    assert (result.exit_code, "raised NotImplementedError: planted: no gradients" in result.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []
    assert crosscheck(*words).exit_code == 0
