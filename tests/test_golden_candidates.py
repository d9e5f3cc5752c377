"""What a user's own function gives is recorded by the rules of a run: named, called and excused as there."""

import json
from pathlib import Path

import pytest
from golden_files import CASE, changed_manifest, crosscheck

from crosscheck.goldens import MANIFEST, open_golden

OWN, FOUR = "lm_head-bf16-N1-K1-V1-d3-nobias", "lm_head-bf16-N1-K4096-V257-d4-nobias"
HEAD = """import rlk_torch


def head(hidden, weight, bias=None, *, digits=None):
    return rlk_torch.lm_head(hidden, weight, bias, digits=digits)


def plain(hidden, weight):
    return rlk_torch.lm_head(hidden, weight).detach()
"""


@pytest.fixture(autouse=True)
def own_head(tmp_path, monkeypatch):
    (tmp_path / "own_head.py").write_text(HEAD)
    monkeypatch.chdir(tmp_path)


def recorded(folder: str, spec: str, *options: str, case: str = CASE, op: str = "lm_head"):
    return crosscheck("record", "-o", folder, "--op", op, "--candidate", spec, "--filter", case, *options)


# Recorded ----------------------------------------------------------------------------------------------
def test_a_function_of_the_current_directory_is_recorded_and_judged_elsewhere():
    result = recorded("mine", "mine=torch:own_head:head", "--gradients")
    assert (result.exit_code, result.stdout.splitlines()[-1][:21]) == (0, "written: mine, 1 case")
    said = crosscheck("golden", "verify", "mine").stdout
    assert "mine: 1 case of the candidate mine=torch:own_head:head, eager\n" in said
    assert "runs own_head:head\n" in said
    assert said.splitlines()[-1] == "EQUAL: every output has the contract's bits (1 case)"


def test_one_in_jax_and_compiled_is_recorded_and_the_manifest_says_what_made_it():
    assert recorded("port", "port=jax:rlk_jax:lm_head", "--gradients", "--mode", "jit").exit_code == 0
    manifest = json.loads((Path("port") / MANIFEST).read_text())
    made, (case,) = manifest["made_by"], manifest["cases"].values()
    assert (made["candidate"], made["backend"], made["mode"]) == ("port=jax:rlk_jax:lm_head", "port", "jit")
    assert (made["device"], case["implementation"]) == ("cpu", "rlk_jax:lm_head")
    assert "jax" in made["versions"]
    crosscheck("golden", "write", "contract", "--filter", CASE, "--gradients")
    assert crosscheck("compare", "port", "contract").stdout.splitlines()[-1].startswith("EQUAL: ")


def test_other_bits_are_found_by_verify():
    assert recorded("mine", "mine=torch:torch.nn.functional:linear", "--gradients").exit_code == 0
    result = crosscheck("golden", "verify", "mine")
    assert (result.exit_code, f"DIFFERENT {CASE}: outputs.result: " in result.stdout) == (1, True)


# Not offered -------------------------------------------------------------------------------------------
def test_a_case_with_a_bias_that_is_not_taken_is_left_out_and_said():
    result = recorded("mine", "mine=torch:own_head:plain", case="lm_head-bf16-N[13]-K1*")
    assert result.exit_code == 0
    assert "note: 2 cases left out: it takes no bias\n" in result.stdout
    golden = open_golden("mine")
    assert (list(golden.cases), golden.not_offered[CASE]) == ([OWN], "it takes no bias")
    crosscheck("golden", "write", "contract", "--filter", "lm_head-bf16-N[13]-K1*")
    said = crosscheck("compare", "mine", "contract").stdout
    assert f"UNUSABLE {CASE}: it is missing from mine, not offered: it takes no bias" in said
    assert said.splitlines()[-1] == "UNUSABLE: 2 cases not comparable, 1 case equal"


def test_gradients_that_it_has_not_are_left_out_and_said():
    result = recorded("mine", "mine=torch:own_head:plain", "--gradients", case=OWN)
    reason = "not offered: no gradients: its result does not require any"
    assert f"note: {OWN} without gradients, {reason}\n" in result.stdout
    assert open_golden("mine").cases[OWN].gradients == reason
    assert crosscheck("golden", "verify", "mine").exit_code == 0
    crosscheck("golden", "write", "contract", "--filter", OWN, "--gradients")
    said = crosscheck("compare", "mine", "contract").stdout
    assert f"UNUSABLE {OWN}: its gradients are missing from mine ({reason}) and are not compared" in said


def test_digits_that_it_cannot_be_told_are_said_and_compared_among_their_kind():
    result = recorded("mine", "mine=torch:own_head:plain", case=FOUR)
    reason = "it takes no digits, and the case has 4 in place of the operator's own choice, 3"
    assert f"note: {FOUR} cannot be held against the contract: {reason}\n" in result.stdout
    assert crosscheck("compare", "mine", "mine").exit_code == 0
    result = crosscheck("golden", "verify", "mine")
    assert (result.exit_code, f"UNUSABLE {FOUR}: {reason}" in result.stdout) == (2, True)
    crosscheck("golden", "write", "told", "--filter", FOUR)
    for words in (("told", "mine"), ("mine", "told")):
        result = crosscheck("compare", *words)
        said = f"UNUSABLE {FOUR}: the one in mine was not told the digits: {reason}; outputs are not compared"
        assert (result.exit_code, said in result.stdout) == (2, True)


def test_no_case_at_all_gives_no_golden():
    result = recorded("mine", "mine=torch:own_head:plain")
    assert (result.exit_code, Path("mine").exists()) == (1, False)
    assert result.stderr.startswith(f"crosscheck: {CASE} left out: it takes no bias; nothing was written")


def test_a_function_that_raises_gives_no_golden_and_says_how_to_go_on():
    case = "lm_head-bf16-N257-K128-V257-d2-bias_fp32"
    result = recorded("mine", "mine=torch:torch.nn.functional:linear", case=case)
    assert (result.exit_code, Path("mine").exists()) == (1, False)
    assert f"{case}: raised RuntimeError" in result.stderr
    assert result.stderr.endswith("; nothing was written; --filter chooses other cases\n")


# Refused -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--candidate", "m=torch:own_head:head"), "expected one --op, as in --op lm_head"),
        (("--candidate", "m=torch:own_head", "--op", "lm_head"), "the candidate 'm=torch:own_head' cannot be read"),
        (("--candidate", "numpy=torch:own_head:head", "--op", "lm_head"), "a name of crosscheck's own"),
        (("--candidate", "m=torch:no_module:f", "--op", "lm_head"), "m is not available: no_module cannot be imported"),
        (("--candidate", "m=torch:own_head:head", "--op", "lm_head", "--mode", "jit"), "m has no mode 'jit'"),
        (("--candidate", "m=torch:own_head:head", "--backend", "numpy"), "record runs one thing; expected --backend"),
        ((), "record runs one thing; expected --backend NAME or --candidate NAME="),
        (("--backend", "numpy", "--device", "cpu"), "--device means something with --candidate only"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_2_and_said(options, said):
    result = crosscheck("record", "-o", "mine", *options)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
    assert not Path("mine").exists()


@pytest.mark.parametrize("value", [[], {CASE: 5}, "text"])
def test_a_manifest_whose_reasons_are_no_words_is_refused(value):
    crosscheck("golden", "write", "g", "--filter", CASE)
    changed_manifest(Path("g"), lambda manifest: manifest.update(not_offered=value))
    result = crosscheck("golden", "verify", "g")
    assert (result.exit_code, "manifest.json is damaged: " in result.stderr) == (2, True)
