"""What a backend gives on one machine is recorded, and judged elsewhere with the same verdict and without it."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden_files import CASE, answered, changed_manifest, crosscheck
from processes import TESTS, run_alone
from safetensors.numpy import save_file

from crosscheck import real_input
from crosscheck.cases import default_suite
from crosscheck.golden_write import contract_answers, write_golden
from crosscheck.goldens import MANIFEST, open_golden

PAGE = (TESTS.parent / "docs" / "goldens.md").read_text()
CHOSEN = "*-N3-K100-*"


def written(folder: Path, *options: str) -> Path:
    result = crosscheck("golden", "write", folder, *(options or ("--filter", CASE)))
    assert result.exit_code == 0, result.output
    return folder


def recorded(folder: Path, backend: str, *options: str):
    return crosscheck("record", "-o", folder, "--backend", backend, "--filter", CASE, *options)


def alone(*arguments: str | Path, **environment: str) -> str:
    """The output of a command in a process of its own."""
    command = [sys.executable, "-m", "crosscheck.cli", *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Recording ---------------------------------------------------------------------------------------------
def test_a_right_backend_has_the_bits_of_the_contract(tmp_path):
    assert recorded(tmp_path / "r", "Planted").exit_code == 0
    assert crosscheck("compare", tmp_path / "r", written(tmp_path / "g")).exit_code == 0
    result = crosscheck("golden", "verify", tmp_path / "r")
    assert result.stdout.splitlines()[-1] == "EQUAL: every output has the contract's bits (1 case)"
    assert "1 case of Planted, eager" in result.stdout
    assert "runs planted" in result.stdout


@pytest.mark.parametrize(
    ("fault", "said"),
    [("FlipsBits", "99 of 99 elements of bfloat16 (3, 33) differ; first at [0, 0]"),
     ("OtherDtype", "dtype is float16; expected bfloat16"),
     ("OtherShape", "shape is (1, 3, 33); expected (3, 33), bfloat16")],
)  # fmt: skip
def test_a_wrong_backend_differs_in_compare_and_in_verify(tmp_path, fault, said):
    assert recorded(tmp_path / "r", fault).exit_code == 0
    for command in (("compare", tmp_path / "r", written(tmp_path / "g")), ("golden", "verify", tmp_path / "r")):
        result = crosscheck(*command)
        assert (result.exit_code, f"DIFFERENT {CASE}: outputs.result: {said}" in result.stdout) == (1, True)


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [("Raises", 1, f"{CASE}: raised ValueError: planted; nothing was written"),
     ("Exits", 1, "exited with status 3"), ("Hangs", 1, "no answer within 2 s"),
     ("Unavailable", 2, "Unavailable is not available: planted: not here"),
     ("no-such-backend", 2, "no backend 'no-such-backend'; the known ones are Planted, ")],
)  # fmt: skip
def test_no_answer_leaves_no_golden(tmp_path, fault, code, said):
    result = recorded(tmp_path / "r", fault, "--timeout", "2")
    assert (result.exit_code, said in result.stderr) == (code, True), result.output
    assert list(tmp_path.iterdir()) == []


def test_sigterm_ends_the_backend_and_clears_away(tmp_path):
    program = f"from golden_files import crosscheck; crosscheck('record', '-o', {str(tmp_path / 'r')!r}, '--backend', "
    program += f"'Hangs', '--filter', {CASE!r})"
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent))),
        "PLANTED_FILE": str(tmp_path / "pid"),
    }
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **environment})
    deadline = time.monotonic() + 30
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.terminate()
    assert process.wait(20) == 0  # the command's own 130 is kept by the runner that called it
    assert [path.name for path in tmp_path.iterdir()] == ["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--mode", "jit"), "Planted has no mode 'jit'; expected one of eager"),
     (("--dtype", "bf16"), "--dtype means something with --checkpoint only"),
     (("--checkpoint", "x"), "--checkpoint needs --embedding-key and --token-ids as well"),
     (("--op", "embedding"), "no case matches")],
)  # fmt: skip
def test_options_that_cannot_be_used_are_refused(tmp_path, options, said):
    result = recorded(tmp_path / "r", "Planted", *options)
    assert (result.exit_code, said in result.stderr) == (2, True)


def test_a_checkpoint_is_recorded_and_verified_from_its_own_files(tmp_path):
    rng = np.random.default_rng(0)
    save_file({"table": rng.standard_normal((40, 16), np.float32)}, tmp_path / "model.safetensors")
    np.save(tmp_path / "ids.npy", np.array([3, 1, 39]))
    options = (
        "--checkpoint", str(tmp_path), "--embedding-key", "table", "--token-ids", str(tmp_path / "ids.npy"),
        "--whole-up-to", "500",
    )  # fmt: skip
    golden = written(tmp_path / "g", *options)
    assert open_golden(golden).cases["lm_head-fp32-N3-K16-V40-checkpoint"].arrays["inputs.weight"].sampled_rows
    assert crosscheck("golden", "verify", golden).exit_code == 0
    save_file({"table": rng.standard_normal((40, 16), np.float32)}, tmp_path / "model.safetensors")
    real_input._tensor.cache_clear()  # as in a process of its own
    result = crosscheck("golden", "verify", golden)
    assert (result.exit_code, "are others when made again here" in result.stdout) == (2, True)
    (tmp_path / "model.safetensors").unlink()
    real_input._tensor.cache_clear()
    assert crosscheck("golden", "verify", golden).exit_code == 2


def test_inputs_that_are_not_stored_are_drawn_again(tmp_path):
    golden = written(tmp_path / "g", "--filter", CHOSEN, "--whole-up-to", "0")
    assert crosscheck("golden", "verify", golden).exit_code == 0
    changed_manifest(golden, lambda manifest: manifest["cases"][CASE]["case"].update(rows=[2]))
    assert crosscheck("golden", "verify", golden).exit_code == 2
    changed_manifest(golden, lambda manifest: manifest["cases"][CASE].update(case={}))
    result = crosscheck("golden", "verify", golden)
    assert (result.exit_code, "does not say how to make them again" in result.stdout) == (2, True)


# Without frameworks, and on other machines --------------------------------------------------------------
@pytest.mark.parametrize("command", [["golden", "verify", "G"], ["compare", "G", "G"]], ids=" ".join)
def test_no_framework_is_needed_to_judge(tmp_path, command):
    golden = written(tmp_path / "G", "--filter", CHOSEN)
    words = [str(golden) if word == "G" else word for word in command]
    program = "\n".join([
        "import sys",
        "sys.modules.update(dict.fromkeys(['torch', 'jax', 'jaxlib', 'rlk_torch', 'rlk_jax']))  # None: not importable",
        "from crosscheck.cli import main",
        f"main({words!r})",
    ])  # fmt: skip
    assert run_alone(program).splitlines()[-1].startswith("EQUAL")


@pytest.mark.parametrize("core", ["Haswell", "SkylakeX"])
def test_the_verdict_is_the_same_under_another_blas(tmp_path, core):
    golden = written(tmp_path / "g", "--filter", "*-N3-*", "--gradients")
    here = crosscheck("golden", "verify", golden).stdout.splitlines()[-1]
    assert alone("golden", "verify", golden, OPENBLAS_CORETYPE=core).splitlines()[-1] == here
    other = tmp_path / core
    alone("golden", "write", other, "--filter", "*-N3-*", "--gradients", OPENBLAS_CORETYPE=core)
    said = crosscheck("compare", golden, other).stdout
    assert said.splitlines()[-1].startswith("EQUAL")
    assert f"OPENBLAS_CORETYPE={core}" in said


@pytest.mark.parametrize(
    ("backend", "variable", "value"),
    [("torch-cpu", "MKL_CBWR", "COMPATIBLE"), ("jax-cpu", "XLA_FLAGS", "--xla_cpu_max_isa=AVX")],
)
def test_the_verdict_is_the_same_under_other_instruction_sets(tmp_path, monkeypatch, backend, variable, value):
    golden, recording = written(tmp_path / "g", "--filter", CASE, "--gradients"), tmp_path / "r"
    monkeypatch.setenv(variable, value)  # read by the backend's process
    assert recorded(recording, backend, "--gradients").exit_code == 0
    said = crosscheck("compare", recording, golden).stdout
    assert said.splitlines()[-1].startswith("EQUAL")
    made = json.loads((recording / MANIFEST).read_text())["made_by"]
    assert made["environment"][variable] == value
    assert made["cpu_features"] and made["machine"]["architecture"] and made["device"]
    assert f"{variable}={value}" in said
    assert f"of {backend}, eager" in said and "instruction set" in said
    assert re.search(r"(torch|jax) \d", said)


# The page ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("place", range(5), ids=["numpy", "torch", "jax", "gradients", "crosscheck"])
def test_the_page_reads_a_golden(tmp_path, monkeypatch, place):
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(examples) == 5
    assert "assert" in examples[place]
    gradients = ["--gradients"] if "inputs.grad" in examples[place] else []
    written(tmp_path / "golden", "--filter", "lm_head-bf16-N3-K1[02]*", *gradients)
    monkeypatch.chdir(tmp_path)
    exec(compile(examples[place], "docs/goldens.md", "exec"), {"__name__": "example"})


def test_the_page_names_every_field(tmp_path):
    folder = written(tmp_path / "g", "--filter", CASE, "--whole-up-to", "0", "--gradients")
    candidates = [replace(answered(np.float32([1])), untold="reason")]
    write_golden(tmp_path / "m", candidates, {"candidate": "as typed"}, not_offered={"id": "reason"})
    fields = set()
    for manifest in (json.loads((golden / MANIFEST).read_text()) for golden in (folder, tmp_path / "m")):
        (case, *_) = manifest["cases"].values()
        fields |= {*manifest, *manifest["made_by"], *case, *case["arrays"]["outputs.result"]}
    assert fields == set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", PAGE, re.MULTILINE)))) - {
        "EQUAL", "DIFFERENT", "UNUSABLE",
    }  # fmt: skip


def test_the_contract_answers_each_case_once():
    cases = default_suite()[:3]
    heard: list[str] = []
    assert [answer.case for answer in contract_answers(cases, heard.append)] == list(cases)
    assert heard == [case.id for case in cases]
