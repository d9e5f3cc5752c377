"""A user's own function is told for what it is: the faults that people write are named, and what is right passes."""

from dataclasses import replace

import planted_torch
import pytest

from crosscheck.candidate_adapters import JaxCandidate, TorchCandidate, load
from crosscheck.candidate_report import sentence
from crosscheck.candidates import candidate_backends
from crosscheck.cases import Case, default_suite
from crosscheck.judge import Effort, expected_answer, judge
from crosscheck.registry import Backend
from crosscheck.runner import Run, run
from crosscheck.verdict import CHECKS, NOT_OFFERED, Check, Verdict

THREE = Case("lm_head", "bf16", (3,), 64, 33)
BF16, FP32 = Case("lm_head", "bf16", (9,), 64, 33), Case("lm_head", "fp32", (9,), 64, 33)
IDS = Case("embedding", "bf16", (5,), 16, 9, id_dtype="int64")
ADAPTERS = {"torch": TorchCandidate, "jax": JaxCandidate}
CHECKED = {name: Check(passed=1) for name in CHECKS}


def judged(framework: str, target: str, *cases: Case, modes: tuple[str, ...] = ("eager",)) -> list[Verdict]:
    adapter = ADAPTERS[framework]("cpu", 1, target)
    assert adapter.available() is None
    return [
        judge(adapter, "mine", case, mode, expected_answer(case), effort=Effort(mode != "eager", mode == "eager"))
        for case in cases
        for mode in modes
    ]


# What is wrong ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "case", "begins", "outcome"),
    [
        ("other_dtype", BF16, "returns another dtype: dtype is float32; expected bfloat16", "different"),
        ("other_shape", BF16, "returns another shape: shape is (1, 9, 33); expected (9, 33)", "different"),
        (
            "negative_zero",
            BF16,
            "batch-invariant, with other bits than the contract (only signs of zeros)",
            "different",
        ),
        ("other_nan", BF16, "batch-invariant, with other bits than the contract (only NaN patterns)", "different"),
        ("in_place", BF16, "exactly the contract's bits; changes its arguments: hidden", "different"),
        ("no_gradients", BF16, "exactly the contract's bits; at most 0.495 ULP", "equal"),
        ("scaled_by_the_batch", BF16, "depends on the batch: first row alone, from 3 rows on", "different"),
        (
            "another_kernel_from_five_rows_on",
            BF16,
            "depends on the batch: first row alone, from 5 rows on",
            "different",
        ),
        (
            "neighbour_times_zero",
            THREE,
            "depends on the batch: even rows kept, the others replaced by NaN and infinities, from 2 rows on",
            "different",
        ),
        ("strides_ignored", BF16, "depends on how its arguments are stored: transposed storage", "different"),
        ("other_bits_every_second_time", THREE, "not repeatable: ", "different"),
        ("refuses_nan", THREE, "exactly the contract's bits; raised FloatingPointError: planted under a", "failed"),
        ("clamping_gather", IDS, "answers a bad id with another row, where an error or a row of NaN", "different"),
        ("one_hot_matmul", IDS, "depends on the rest of the vocab: table rows that no id names", "different"),
    ],
)
def test_a_fault_in_torch_is_named(name, case, begins, outcome):
    (verdict,) = judged("torch", f"planted_torch:{name}", case)
    assert sentence([verdict]).startswith(begins)
    assert verdict.outcome == outcome


def test_a_bf16_accumulator_has_other_bits_and_a_large_error():
    (verdict,) = judged("torch", "planted_torch:bf16_accumulator", BF16)
    assert "with other bits than the contract" in sentence([verdict])
    assert verdict.accuracy is not None and 2 < verdict.accuracy.max_scaled_ulp < 100
    (right,) = judged("torch", "planted_torch:no_gradients", BF16)
    assert right.accuracy is not None and right.accuracy.max_scaled_ulp < 0.51


@pytest.mark.gpu
def test_tf32_has_other_bits_and_the_error_of_eleven_bits():
    case, errors = Case("lm_head", "fp32", (64,), 128, 64), {}
    for name in ("tf32", "linear"):
        adapter = TorchCandidate("cuda", 1, f"planted_torch:{name}")
        assert adapter.available() is None
        verdict = judge(adapter, "mine", case, "eager", expected_answer(case))
        assert verdict.checks["bits"].state == "fail" and "exactly" not in sentence([verdict])
        assert verdict.accuracy is not None
        errors[name] = verdict.accuracy.max_scaled_ulp
    assert errors["linear"] < 20 < 200 < errors["tf32"]  # of 24 bits


@pytest.mark.parametrize("name", ["linear", "mv_on_a_shifted_view"])
def test_a_float_matrix_product_in_torch_has_other_bits(name):
    """Whether it depends on the batch, too, is the machine's: its libraries choose by shape and alignment."""
    verdicts = judged("torch", f"planted_torch:{name}", BF16, FP32)
    assert {verdict.outcome for verdict in verdicts} == {"different"}
    said = sentence(verdicts)
    assert said.startswith(("depends on the ", "batch-invariant", "depends on how")) and "exactly" not in said


def test_a_builtin_without_a_signature_is_judged():
    case = Case("lm_head", "bf16", (3,), 16, 9, bias="bf16")
    (verdict,) = judged("torch", "torch.nn.functional:linear", case)
    assert verdict.status == "judged" and verdict.checks["bits"].state == "fail"


def test_a_jitted_multiply_add_has_other_bits():
    verdicts = judged("jax", "planted_jax:multiply_add", FP32)
    assert sentence(verdicts).startswith(("depends on the batch: ", "batch-invariant, with other bits"))
    assert verdicts[0].checks["bits"].state == "fail"


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("clamping_gather", "answers a bad id with another row"),
        ("one_hot_matmul", "depends on the rest of the vocab: table rows that no id names"),
    ],
)
def test_a_wrong_gather_in_jax_is_named(name, begins):
    assert sentence(judged("jax", f"planted_jax:{name}", IDS)).startswith(begins)


def test_no_answer_is_named_and_costs_no_other_candidate_its_verdict():
    names = ("raises", "hangs", "crashes", "no_gradients")
    backends = candidate_backends([f"{name}=torch:planted_torch:{name}" for name in names], "cpu")
    found = run([Case("lm_head", "bf16", (3,), 16, 9)], [one_mode(backend) for backend in backends], timeout=8)
    said = {verdict.backend: sentence([verdict]) for verdict in found.verdicts}
    assert said["raises"] == "raised: ValueError: planted, in: the call itself"
    assert said["hangs"] == "hung: no answer within 8 s, in: the call itself"
    assert said["crashes"].startswith("crashed: its process was ended by SIGABRT")
    assert said["no_gradients"].startswith("exactly the contract's bits; ")


def one_mode(backend: Backend) -> Backend:
    return replace(backend, modes=("eager",), compiling=())


# What is right ---------------------------------------------------------------------------------------------
def alarms(verdicts: list[Verdict]) -> list[tuple[str, str, dict]]:
    return [(verdict.case, verdict.mode, verdict.to_json()["checks"]) for verdict in verdicts if verdict.failed]


@pytest.mark.parametrize("op", ["lm_head", "lm_head_fp32", "embedding", "embedding_fp32"])
def test_the_operators_of_rlk_torch_raise_no_alarm(op):
    cases = [case for case in default_suite() if case.op == op and 0 not in case.rows]
    cases = sorted(cases, key=lambda case: case.width * case.vocab)[1:5]
    verdicts = judged("torch", f"rlk_torch:{op}", *cases)
    assert len(verdicts) == 4 and alarms(verdicts) == []
    assert sentence(verdicts).startswith("exactly the contract's bits; ")
    assert sentence(verdicts).endswith("gradients with exactly the contract's bits")


@pytest.mark.parametrize(("op", "case"), [("lm_head", Case("lm_head", "bf16", (3,), 16, 9)), ("embedding", IDS)])
def test_the_operators_of_rlk_jax_raise_no_alarm(op, case):
    verdicts = judged("jax", f"rlk_jax:{op}", case, modes=("eager", "jit"))
    assert alarms(verdicts) == []
    assert sentence(verdicts).startswith("exactly the contract's bits; compiled, the same bits; ")


def test_a_function_that_takes_no_digits_is_compared_where_the_operator_would_choose_the_same(monkeypatch):
    def plain(hidden, weight):
        import rlk_torch

        return rlk_torch.lm_head(hidden, weight)

    monkeypatch.setattr(planted_torch, "plain", plain, raising=False)
    two, three = (Case("lm_head", "bf16", (3,), 16, 9, digits) for digits in (2, 3))
    verdicts = judged("torch", "planted_torch:plain", two, three)
    assert alarms(verdicts) == []
    assert [verdict.checks["bits"].state for verdict in verdicts] == ["not applicable", "pass"]
    assert verdicts[0].checks["bits"].not_applicable[0]["reason"] == (
        "it takes no digits, and the case has 2 in place of the operator's own choice, 3"
    )
    assert [bool(verdict.contract_digest) for verdict in verdicts] == [False, True]


# What is not offered ---------------------------------------------------------------------------------------
def test_no_gradients_are_not_offered_and_no_failure():
    (verdict,) = judged("torch", "planted_torch:no_gradients", BF16)
    assert verdict.checks["grad"].state == "not applicable"
    assert sentence([verdict]).endswith("gradients not offered: no gradients: its result does not require any")


def test_a_bias_that_is_not_taken_leaves_the_case_out():
    (verdict,) = judged("torch", "planted_torch:raises", Case("lm_head", "bf16", (3,), 16, 9, bias="bf16"))
    assert (verdict.status, verdict.message, verdict.outcome) == (NOT_OFFERED, "it takes no bias", NOT_OFFERED)
    assert not verdict.failed


def test_what_cannot_be_compiled_is_said_so_and_judged_eagerly():
    eager, compiled = judged("torch", "planted_torch:not_compiled", BF16, modes=("eager", "compile"))
    assert (eager.outcome, compiled.outcome) == ("equal", NOT_OFFERED)
    assert compiled.message.startswith("it cannot be compiled: Unsupported: ")
    assert "; it cannot be compiled: " in sentence([eager, compiled])


def test_a_run_in_which_nothing_was_judged_is_not_equal():
    lacking = Verdict("one", "lm_head", "mine", "eager", "x", NOT_OFFERED, "it takes no bias")
    assert Run(verdicts=[lacking]).outcome == "incomplete"
    assert Run(verdicts=[lacking, Verdict("two", "lm_head", "mine", "eager", "x")]).outcome == "equal"
    assert sentence([lacking]) == "nothing was judged: it takes no bias"


def test_compiled_code_with_other_bits_in_one_case():
    modes = {"eager": "p", "compile": "q"}
    found = [Verdict("one", "lm_head", "mine", mode, "x", checks=CHECKED, digest=d) for mode, d in modes.items()]
    assert "; compiled, other bits in 1 of 1 case" in sentence(found)


# Importing -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "no_such_module:f",
            "no_such_module cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("planted_torch:nothing", "planted_torch has no nothing"),
        ("planted_torch:torch.nothing", "planted_torch has no torch.nothing"),
        ("planted_torch:number", "planted_torch:number is an int; expected a function"),
    ],
)
def test_what_cannot_be_loaded_is_a_reason(target, message):
    with pytest.raises(ValueError) as refused:
        load(target)
    assert str(refused.value) == message
    assert TorchCandidate("cpu", 1, target).available() == message
