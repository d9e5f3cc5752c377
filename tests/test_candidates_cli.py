"""Candidates on the command line: what is refused, the report, the controls and the tolerances."""

import json
import re
import subprocess
import sys

import planted
import pytest
from click.testing import CliRunner, Result

from crosscheck import controls
from crosscheck.candidates import CandidateError, candidate_backends, tolerances
from crosscheck.cli import main
from crosscheck.registry import FEW

CASE = "lm_head-bf16-N3-K100-V33-d3-bias"


def crosscheck(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["run", *arguments], obj=planted.REGISTRY)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def candidate(spec: str, *arguments: str) -> Result:
    return crosscheck("--op", "lm_head", "--filter", CASE, "--candidate", spec, *arguments)


# Refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--candidate", "mine"],
            "the candidate 'mine' cannot be read; expected NAME=torch:MODULE:FUNCTION or NAME=jax",
        ),
        (["--candidate", "mine=torch:pkg"], "the candidate 'mine=torch:pkg' cannot be read"),
        (["--candidate", "mine=torch:a b:f"], "the candidate 'mine=torch:a b:f' cannot be read"),
        (["--candidate", "mine=tf:pkg:f"], "the candidate 'mine' is in 'tf'; expected torch or jax"),
        (["--candidate", "=jax:pkg:f"], "'' is no name for a candidate"),
        (["--candidate", "a,b=jax:pkg:f"], "'a,b' is no name for a candidate"),
        (
            ["--candidate", "numpy=jax:pkg:f"],
            "a candidate cannot be called 'numpy', which is a name of crosscheck's own",
        ),
        (["--candidate", "contract=jax:p:f"], "a candidate cannot be called 'contract'"),
        (["--candidate", "Planted=jax:p:f"], "a candidate cannot be called 'Planted'"),
        (["--candidate", "a=jax:p:f", "--candidate", "a=torch:p:f"], "two candidates are called 'a'"),
        (["--candidate", "a=jax:p:f", "--op", "embedding"], "a candidate is a function of one operator; expected one"),
        (
            ["--tolerance", "bf16"],
            "the tolerance 'bf16' cannot be read; expected a dtype of bf16, fp16, fp32 and a num",
        ),
        (["--tolerance", "f64=1"], "the tolerance 'f64=1' cannot be read"),
        (["--tolerance", "bf16=-1"], "the tolerance 'bf16=-1' cannot be read"),
        (["--tolerance", "bf16=1", "--tolerance", "bf16=2"], "two tolerances are given for bf16; expected one"),
    ],
)
def test_unusable_candidates_are_2_and_say_what_is_wrong(arguments, message):
    result = crosscheck("--op", "lm_head", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"crosscheck: {message}")


def test_a_candidate_without_an_operator_is_refused():
    result = crosscheck("--candidate", "mine=torch:pkg:f")
    assert result.exit_code == 2 and "expected one --op, as in --op lm_head" in result.stderr


def test_a_device_is_of_candidates():
    result = crosscheck("--device", "cuda")
    assert result.exit_code == 2 and "--device means something with --candidate only" in result.stderr


def test_a_candidate_that_cannot_be_imported_is_2():
    result = candidate("mine=torch:no_such_module:f")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "crosscheck: mine is not available: no_such_module cannot be imported: ModuleNotFoundError: "
        "No module named 'no_such_module'; nothing was compared\n"
    )


# Judged ----------------------------------------------------------------------------------------------------
def test_a_candidate_of_the_current_directory_is_judged(tmp_path):
    (tmp_path / "my_head.py").write_text(
        "import rlk_torch\n"
        "def head(hidden, weight, bias=None, *, digits=None):\n"
        "    return rlk_torch.lm_head(hidden, weight, bias, digits=digits)\n"
    )
    words = ["run", "--op", "lm_head", "--filter", CASE, "--candidate", "mine=torch:my_head:head"]
    program = "from crosscheck.cli import main; main(prog_name='crosscheck')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *words, "--json", "report.json", "--tolerance", "bf16=0.6"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "  mine: exactly the contract's bits; compiled, the same bits; at most 0." in done.stdout
    assert "  equal in the 1 case that all have judged: contract, mine eager, mine compile" in lines
    assert lines[-1].startswith("EQUAL: ") and "1 candidate, 2 verdicts" in lines[-1]
    assert [line for line in lines if "control" in line] == [
        "  control, a batch-variant backend: caught",
        "  control, a backend with one flipped bit: caught",
    ]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["backends"]["mine"]["implementations"] == {"lm_head": "my_head:head"}
    assert report["candidates"]["mine"].startswith("exactly the contract's bits")
    assert [control["caught"] for control in report["controls"]] == [True, True]
    assert report["agreement"]["classes"] == [["contract", "mine eager", "mine compile"]]
    assert {verdict["tolerance"] for verdict in report["verdicts"]} == {0.6}


def test_a_failing_candidate_is_repeated_as_it_was_typed():
    spec = "bad=torch:torch.nn.functional:linear"
    result = candidate(spec, "--device", "cpu", "--backends", "Planted,FlipsBits", "--tolerance", "bf16=0.001")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    shared = f"  repeat: crosscheck run --tolerance bf16=0.001 --op lm_head --filter {CASE}"
    assert f"{shared} --candidate {spec} --device cpu" in lines
    assert f"{shared} --backends FlipsBits" in lines
    assert any(line.startswith("  accuracy: ") and line.endswith("; tolerated are 0.001") for line in lines)
    assert "; above the tolerance in 2 of 2 verdicts" in result.stdout
    assert lines[-1].endswith("(1 case, 1 candidate, 2 backends, 4 verdicts)")
    assert re.findall(r"(?<![\d.])1 (?:of 1 )?(?:cases|backends|candidates|verdicts|rows)", result.stdout) == []


# Controls --------------------------------------------------------------------------------------------------
def test_a_control_that_is_not_caught_fails_the_run(monkeypatch, tmp_path):
    innocent = tuple(
        controls.Control(control.what, planted.backend(planted.Planted), control.names_it)
        for control in controls.CONTROLS
    )
    monkeypatch.setattr("crosscheck.controls.CONTROLS", innocent)
    monkeypatch.setattr("crosscheck.cli_candidates.CONTROLS", innocent)
    result = candidate("mine=torch:rlk_torch:lm_head", "--json", str(tmp_path / "report.json"))
    assert result.exit_code == 1
    assert "  control, a batch-variant backend: NOT CAUGHT" in result.stdout.splitlines()
    last = result.stdout.splitlines()[-1]
    assert last.startswith("FAILED: 2 negative controls not caught, so this judge is not to be believed")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["outcome"] == "failed"
    assert [control["caught"] for control in report["controls"]] == [False, False]


def test_the_controls_are_caught_for_every_operator():
    from crosscheck.cases import OPS
    from crosscheck.judge import expected_answer, judge

    for op in OPS:
        (case,) = controls.control_cases(op)
        for control, adapter in zip(controls.CONTROLS, (controls.BatchVariant, controls.FlippedBit), strict=True):
            verdict = judge(adapter("cpu", 1), control.backend.name, case, "eager", expected_answer(case))
            assert [other.what for other in controls.CONTROLS if other.names_it(verdict)] == [control.what]


# What is typed ---------------------------------------------------------------------------------------------
def test_a_candidate_runs_as_the_backend_of_its_framework_and_device():
    torch_cpu, jax_gpu = (
        candidate_backends([f"mine={spec}"], device)[0]
        for spec, device in (("torch:pkg.module:Class.method", "cpu"), ("jax:m:f", "cuda"))
    )
    assert (torch_cpu.target, torch_cpu.modes, torch_cpu.device) == (
        "pkg.module:Class.method",
        ("eager", "compile"),
        "cpu",
    )
    assert (jax_gpu.device, dict(jax_gpu.settings)["JAX_PLATFORMS"]) == ("cuda", "cuda,cpu")


def test_each_case_has_its_gradients_taken_in_one_mode_of_a_candidate():
    (backend,) = candidate_backends(["mine=jax:m:f"], "cpu")
    for seed in range(0, 2**32, 2**27):
        assert sum(backend.takes_gradients(mode, seed, FEW + 1) for mode in backend.modes) == 1
        assert all(backend.takes_gradients(mode, seed, FEW) for mode in backend.modes)


def test_tolerances_are_by_the_dtype_of_the_result():
    assert tolerances(["bf16=0.5", "fp32=2"]) == {"bfloat16": 0.5, "float32": 2.0}
    with pytest.raises(CandidateError):
        tolerances(["bf16=inf"])
