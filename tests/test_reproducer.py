"""Each kind of failure becomes a script that fails as long as the failure is there, and its inputs a golden."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from processes import run_alone

from crosscheck.candidate_adapters import LAST, JaxCandidate, TorchCandidate
from crosscheck.candidates import candidate_backends
from crosscheck.cases import Case
from crosscheck.failing import Failing, Retrial
from crosscheck.golden_compare import verify_golden
from crosscheck.goldens import open_golden
from crosscheck.judge import Effort, expected_answer, judge
from crosscheck.judge_gradient import gradient_call
from crosscheck.registry import Backend
from crosscheck.reproducer import _Found, _Shrinker, first_failures, reproduce
from crosscheck.reproducer_report import Reproducer
from crosscheck.reproducer_script import Target, script
from crosscheck.runner import Run
from crosscheck.shrink import shrink
from crosscheck.verdict import Verdict, counted, in_one_line

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
        after = text[text.index("    sys.exit(2)\n") :].splitlines()
        assert len(after) <= (20 if one.kind.startswith("grad") else 12), text


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"takes": (LAST,)}, ['actual = head(call["inputs.hidden"], call["inputs.weight"], call["inputs.bias"])']),
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
    assert said["more"] > 0
    line = f"  mine eager, {said['failing']}: shrunk to {said['shrunk']}: repro/mine-batch/reproduce.py"
    assert f"{line}; {counted(said['more'], 'more failure')} of this kind got no script" in done.stdout.splitlines()
    script = alone(said["path"])
    assert script.returncode == 1 and "crosscheck.bits.BitsDiffer: mine, eager: " in script.stderr
    verified = alone(*crosscheck, "golden", "verify", "repro/mine-batch")
    assert verified.returncode == 0 and verified.stdout.splitlines()[-1].startswith("EQUAL: ")
    (tmp_path / "my_head.py").write_text(HEAD.format(body=RIGHT))
    mended = alone(said["path"])
    assert (mended.returncode, mended.stderr) == (0, "")
    again = alone(*crosscheck, *words)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith(
        "crosscheck: reproducers cannot be written to repro: it is not empty, and scripts of"
    )
    remedy = "; run it where its imports are found, with its files beside it"
    (tmp_path / "my_head.py").unlink()
    lost = alone(said["path"])
    assert (lost.returncode, lost.stderr.splitlines()) == (
        2, [f"not tried: ModuleNotFoundError: No module named 'my_head'{remedy}"]
    )  # fmt: skip
    (tmp_path / "my_head.py").write_text(HEAD.format(body=RIGHT))
    (tmp_path / "repro" / "mine-batch" / "call.safetensors").unlink()
    lost = alone(said["path"])
    assert lost.returncode == 2 and lost.stderr.startswith("not tried: FileNotFoundError: ")
