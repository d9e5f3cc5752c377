"""Each kind of failure becomes a script that fails as long as the failure is there, and its inputs a golden."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import planted
import pytest
from click.testing import CliRunner
from processes import run_alone

from crosscheck.candidate_adapters import THIRD, JaxCandidate, TorchCandidate
from crosscheck.candidates import candidate_backends
from crosscheck.cases import Case
from crosscheck.cli import main
from crosscheck.failing import Failing, Retrial
from crosscheck.golden_compare import verify_golden
from crosscheck.goldens import open_golden
from crosscheck.gradient_invariance import gradient_trials
from crosscheck.gradients import result_shape, wanted
from crosscheck.invariance import Trial, trials
from crosscheck.judge import Effort, expected_answer, judge
from crosscheck.judge_gradient import gradient_call
from crosscheck.registry import BACKENDS, Backend
from crosscheck.reproducer import MOST_OF_A_BACKEND, _Found, _problem, _Shrinker, first_failures, reproduce
from crosscheck.reproducer_places import Places, matched
from crosscheck.reproducer_report import Reproducer
from crosscheck.reproducer_script import Target, script
from crosscheck.runner import Run
from crosscheck.shrink import shrink
from crosscheck.verdict import Failure, Verdict, in_one_line

TESTS = Path(__file__).parent
THREE, BIAS = Case("lm_head", "bf16", (3,), 16, 9), Case("lm_head", "bf16", (2, 2), 16, 9, 3, bias="bf16")
FP32, IDS = Case("lm_head", "fp32", (9,), 64, 33), Case("embedding", "bf16", (5,), 16, 9, id_dtype="int64")
ADAPTERS = {"torch": TorchCandidate, "jax": JaxCandidate}
# Framework, function, case, and the kinds of its failures that are looked at.
FAULTS = [
    ("torch", "linear", FP32, {"bits", "grad", "grad-transform"}),
    ("torch", "linear", BIAS, {"bits"}),
    ("torch", "bf16_accumulator", FP32, {"bits"}),
    ("torch", "neighbour_times_zero", THREE, {"batch"}),
    ("torch", "another_kernel_from_five_rows_on", FP32, {"bits", "batch"}),
    ("torch", "strides_ignored", THREE, {"layout", "grad-transform"}),
    ("torch", "other_bits_every_second_time", THREE, {"repeat"}),
    ("torch", "in_place", THREE, {"arguments"}),
    ("torch", "other_dtype", THREE, {"dtype"}),
    ("torch", "other_shape", THREE, {"shape"}),
    ("torch", "negative_zero", THREE, {"bits-special"}),
    ("torch", "raises", THREE, {"raises"}),
    ("torch", "refuses_nan", THREE, {"raises-transformed"}),
    ("torch", "mv_on_a_shifted_view", THREE, {"grad-raises"}),
    ("torch", "clamping_gather", IDS, {"bad-id"}),
    ("torch", "one_hot_matmul", IDS, {"vocab"}),
    ("jax", "multiply_add", Case("lm_head", "fp32", (3,), 16, 9), {"bits", "grad"}),
    ("jax", "clamping_gather", IDS, {"bad-id"}),
    ("jax", "one_hot_matmul", IDS, {"vocab"}),
]


def judged(framework: str, name: str, case: Case) -> tuple[Run, Backend, Any]:
    """A run of one verdict, and the adapter that made it, in this process."""
    adapter = ADAPTERS[framework]("cpu", 1, f"planted_{framework}:{name}")
    assert adapter.available() is None
    (backend,) = candidate_backends([f"{name}={framework}:planted_{framework}:{name}"], "cpu")
    try:
        verdict = judge(adapter, name, case, "eager", expected_answer(case), effort=Effort(False))
    except ValueError as error:  # as the process boundary has it
        message = f"{in_one_line(error)}, in: the call itself"
        verdict = Verdict(case.id, case.op, name, "eager", "x", "raised", message)
    return Run(verdicts=[verdict]), replace(backend, modes=("eager",)), adapter


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, list[tuple[Reproducer, str]]]:
    """By framework, what was written of each fault, with the name of the function; shrunk in this process."""
    folder, made = tmp_path_factory.mktemp("repro"), {"torch": [], "jax": []}
    usual = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")  # as in processes of their own
    with pytest.MonkeyPatch.context() as patch, usual[0], usual[1]:
        patch.setattr("crosscheck.reproducer._problem", lambda *what: "")
        for i, (framework, name, case, kinds) in enumerate(FAULTS):
            run, backend, adapter = judged(framework, name, case)
            chosen = [found for found in first_failures(run.verdicts, backend) if found[1].kind in kinds]
            patch.setattr(_Shrinker, "shrink", shrinking_here(adapter))
            patch.setattr("crosscheck.reproducer.first_failures", lambda *what, chosen=chosen: chosen)
            reproduce(run, [case], [backend], folder / str(i), timeout=60, seconds=60)
            found = [Reproducer(**said) for said in run.verdicts[0].reproducers]
            assert {one.kind for one in found} == kinds, (name, found)
            made[framework] += [(one, name) for one in found]
    return made


def shrinking_here(adapter: Any) -> Any:
    def shrunk(self, case, mode, failing, seconds):
        inputs = gradient_call(case.op, case.inputs(), case.seed) if failing.gradients else case.inputs()
        retrial = Retrial(adapter, case.op, case.digits, mode, case.seed, failing)
        found, _ = shrink(inputs, retrial.fails, index=failing.index, seconds=60, most=60)
        assert found is not None, failing
        return _Found(found, adapter.takes), ""

    return shrunk


PROGRAM = """
import runpy, sys
sys.argv[1:] = {paths!r}
sys.path.insert(0, {first!r})
for path in sys.argv[1:]:
    try:
        runpy.run_path(path)
        print("nothing")
    except Exception as error:
        print(type(error).__name__, str(error).partition(": ")[0], sep=": ")
"""
MENDED = {
    "torch": "import rlk_torch as right\n",
    "jax": "import jax\nimport rlk_jax as right\n",
}


# The scripts -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_every_script_fails_as_its_failure_does_and_for_a_mended_function_does_not(framework, written, tmp_path):
    """In one process for all of them; what the exit code is of one alone is seen below."""
    made = written[framework]
    paths = [one.path for one, _ in made]
    said = run_alone(PROGRAM.format(paths=paths, first="")).splitlines()
    raised = {"raises": "ValueError", "raises-transformed": "FloatingPointError"}
    raised["grad-raises"] = {"torch": "RuntimeError", "jax": "ValueError"}[framework]
    errors = [raised.get(one.kind, "BitsDiffer") for one, _ in made]
    assert [line.partition(":")[0] for line in said if not line.startswith("refused: ")] == errors
    names = dict.fromkeys(name for _, name in made)
    lines = [
        f"{name} = right.{'embedding' if name in ('clamping_gather', 'one_hot_matmul') else 'lm_head'}"
        for name in names
    ]
    (tmp_path / f"planted_{framework}.py").write_text("\n".join([MENDED[framework], *lines]))
    said = run_alone(PROGRAM.format(paths=paths, first=str(tmp_path))).splitlines()
    assert [line for line in said if not line.startswith("refused: ")] == ["nothing"] * len(made)
    assert sum(line.startswith("refused: ") for line in said) == sum(one.kind == "bad-id" for one, _ in made)


def test_the_inputs_are_a_golden_with_the_contracts_outputs(written):
    for one, _ in written["torch"] + written["jax"]:
        golden = open_golden(Path(one.path).parent)
        findings = verify_golden(golden, lambda case_id: True)
        assert findings.exit_code == 0, (one, findings)
        assert "call" in golden.cases and golden.cases["call"].case["kind"] == "shrunk"


def test_scripts_are_small_and_whole_programs(written):
    for one, _ in written["torch"] + written["jax"]:
        text = Path(one.path).read_text()
        compile(text, one.path, "exec")
        assert max(map(len, text.splitlines())) <= 200 and str(Path.cwd()) not in text
        assert text.splitlines()[0].endswith(f"; shrunk to {one.shrunk}.")
        after = text[text.index("here = ") :].splitlines()
        assert len(after) <= (20 if one.kind.startswith("grad") else 12), text


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"takes": (THIRD,)}, ['actual = head(call["inputs.hidden"], call["inputs.weight"], call["inputs.bias"])']),
        ({"takes": ()}, ['actual = head(call["inputs.hidden"], call["inputs.weight"], bias=call["inputs.bias"])']),
        ({"compiled": True}, ["compiled = torch.compile(head, dynamic=True, fullgraph=True)", "digits=3)"]),
        ({"device": "cuda"}, ['load_file(here / "call.safetensors", device="cuda")']),
        (
            {"framework": "jax", "compiled": True},
            ['jax.config.update("jax_platforms", "cpu")', "compiled = jax.jit(head, static_argnames=['digits'])"],
        ),
        ({"framework": "jax", "device": "cuda"}, ['call = load_file(here / "call.safetensors")']),
    ],
)
def test_a_script_calls_what_was_judged_as_it_was_judged(changes, lines):
    target = Target("mine, eager", "torch", "my_head:head", "cpu", False, ("bias", "digits"), 3)
    text = script(replace(target, **changes), Failing("bits", "other bits"), BIAS.inputs(), "shrunk to much", None, [])
    compile(text, "reproduce.py", "exec")
    assert all(line in text for line in lines), text


# Alone -----------------------------------------------------------------------------------------------------
HEAD = """
import torch, rlk_torch
def head(hidden, weight, bias=None, *, digits=None):
    torch._dynamo.graph_break()  # not to be compiled
    return {body}
"""
RIGHT = "rlk_torch.lm_head(hidden, weight, bias, digits=digits)"
WRONG = f"{RIGHT} if len(hidden) != 2 else rlk_torch.lm_head(hidden, weight, bias, digits=2)"


def test_a_run_writes_reproducers_and_says_so_and_the_script_ends_with_1_until_it_is_mended(tmp_path):
    (tmp_path / "my_head.py").write_text(HEAD.format(body=WRONG))
    words = ["run", "--op", "lm_head", "--filter", "lm_head-bf16-N3-K100-V33-d3-bias"]
    words += ["--candidate", "mine=torch:my_head:head", "--reproducers", "repro", "--json", "report.json"]

    def alone(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )  # fmt: skip

    crosscheck = ("-c", "from crosscheck.cli import main; main(prog_name='crosscheck')")
    done = alone(*crosscheck, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    (verdict,) = (v for v in json.loads((tmp_path / "report.json").read_text())["verdicts"] if v["mode"] == "eager")
    (said,) = verdict["reproducers"]
    assert (said["kind"], said["fails"], said["note"], said["path"]) == (
        "batch", True, "", "repro/mine-batch/reproduce.py"
    )  # fmt: skip
    assert said["shrunk"].startswith("3 rows, K ") and said["failing"].startswith("depends on the batch: ")
    line = f"  mine eager, {said['failing']}: shrunk to {said['shrunk']}: repro/mine-batch/reproduce.py"
    assert line in done.stdout.splitlines()
    script = alone(said["path"])
    assert script.returncode == 1 and "crosscheck.bits.BitsDiffer: mine, eager: " in script.stderr
    verified = alone(*crosscheck, "golden", "verify", "repro/mine-batch")
    assert verified.returncode == 0 and verified.stdout.splitlines()[-1].startswith("EQUAL: ")
    (tmp_path / "my_head.py").write_text(HEAD.format(body=RIGHT))
    mended = alone(said["path"])
    assert (mended.returncode, mended.stderr) == (0, "")


# What is said ----------------------------------------------------------------------------------------------
def verdict_of(backend: str, trial: str, check: str = "bits") -> Verdict:
    """A verdict with a failure that nothing has."""
    verdict = judge(planted.FlipsBits("cpu", 1), backend, THREE, "eager", expected_answer(THREE))
    (failure,) = verdict.checks["bits"].failed
    verdict.checks["bits"].failed.clear()
    verdict.checks[check].failed.append(Failure(trial, failure.text, failure.difference))
    return verdict


def reproduced(verdict: Verdict, backend: Backend, folder: Path) -> list[str]:
    reproduce(Run(verdicts=[verdict]), [THREE], [backend], folder, timeout=60, seconds=60)
    return [Reproducer(**said).sentence() for said in verdict.reproducers]


@pytest.mark.parametrize(
    ("ended", "reason"),
    [("", "in a process of its own it does not fail"), ("its process exited with status 3",) * 2],
)
def test_what_does_not_fail_again_has_no_reproducer_and_that_is_said(tmp_path, monkeypatch, ended, reason):
    monkeypatch.setattr(_Shrinker, "shrink", lambda *what: (None, ended))
    said = reproduced(verdict_of("torch-cpu", "rows reversed", "position"), BACKENDS["torch-cpu"], tmp_path / "repro")
    assert said == [f"depends on the batch: rows reversed: no reproducer: {reason}"]
    assert not (tmp_path / "repro").exists()


def test_what_is_no_function_of_torch_or_jax_has_no_reproducer(tmp_path):
    said = reproduced(verdict_of("FlipsBits", "the call itself"), planted.backend(planted.FlipsBits), tmp_path)
    assert said == [
        "other bits than the contract: no reproducer: FlipsBits is neither a candidate nor a backend of torch or JAX"
    ]


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("class BitsDiffer(AssertionError): pass\nraise BitsDiffer('mine')", ""),
        ("raise ValueError('BitsDiffer')", "its script ends with 1: ValueError: BitsDiffer"),
        ("pass", "its script ends with 0"),
        ("raise SystemExit(3)", "its script ends with 3"),
        ("while True: pass", "its script does not end within 1 s"),
    ],
)
def test_a_script_that_does_not_fail_as_it_should_is_told(tmp_path, monkeypatch, program, problem):
    monkeypatch.setattr("crosscheck.reproducer.START", 0.5)
    path = tmp_path / "reproduce.py"
    path.write_text(program)
    assert _problem(path, "BitsDiffer", 0.5) == (problem and f"alone in a process {problem}")


def test_a_backend_has_a_few_reproducers_at_most_and_one_of_a_kind(tmp_path, monkeypatch):
    monkeypatch.setattr("crosscheck.reproducer._FRAMEWORKS", {})
    verdict = verdict_of("Planted", "the call itself")
    for check in ("position", "padding", "layout", "repeat", "chunking"):
        verdict.checks[check].failed.append(Failure("t", "", verdict.checks["bits"].failed[0].difference))
    verdict.checks["repeat"].failed.append(Failure("raised", "raised ValueError: x", None))
    verdict.checks["grad"].failed.append(Failure("the call itself", "raised ValueError: x", None))
    verdict.checks["grad"].failed.append(Failure("t", "raised ValueError: x", None))
    verdict.checks["inputs"].failed.append(
        Failure("hidden after the call", "", verdict.checks["bits"].failed[0].difference)
    )
    reproduce(Run(verdicts=[verdict]), [THREE], [planted.backend(planted.Planted)], tmp_path, timeout=9, seconds=9)
    kinds = [said["kind"] for said in verdict.reproducers]
    assert len(kinds) == len(set(kinds)) == MOST_OF_A_BACKEND and kinds[:3] == ["bits", "arguments", "batch"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--reproducers", f"{__file__}/repro"],
            f"reproducers cannot be written to {__file__}/repro: {__file__} is no folder",
        ),
        (["--shrink-seconds", "9"], "--shrink-seconds means something with --reproducers only"),
        (
            ["--list", "--reproducers", "x"],
            "--list judges nothing, so there is nothing for --reproducers; expected one",
        ),
    ],
)
def test_what_cannot_be_written_or_would_be_ignored_is_2(arguments, message):
    result = CliRunner().invoke(main, ["run", "--backends", "FlipsBits", *arguments], obj=planted.REGISTRY)
    assert (result.exit_code, result.stdout) == (2, "") and message in result.stderr


def test_nothing_is_written_where_nothing_was_asked_for_or_nothing_fails(tmp_path):
    typed = ["run", "--filter", "lm_head-bf16-N3-K100-V33-d3-bias", "--backends"]
    for more in (["FlipsBits"], ["Planted", "--reproducers", str(tmp_path / "repro")]):
        result = CliRunner().invoke(main, [*typed, *more], obj=planted.REGISTRY)
        assert "Reproducers" not in result.stdout
    assert not any(tmp_path.iterdir())


# Which elements are held against which ---------------------------------------------------------------------
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
