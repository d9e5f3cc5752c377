"""No flag that a program may set changes a bit or a dtype, and importing or running the packages sets none."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import numpy as np
import pytest
import torch
from frameworks import JAX, TORCH, Framework, both
from processes import run_alone
from program_state import changes, state
from vector_cases import array, vector_cases

from crosscheck.bits import assert_bits_equal

ALL = [case.values[0] for case in vector_cases("lm_head", "embedding", "embedding_fp32")]
# JAX compiles anew under most of its flags: one case of each kind.
FEW = [
    case
    for case in ALL
    if case["id"]
    in (
        "fma-probe", "tf32-probe", "underflow-f32", "subnormal-f16", "f16-tiny-negative", "overflow-f16",
        "not-through-float64", "bias-bfloat16-float16", "outlier-bfloat16", "embedding-bits-bfloat16",
        "embedding-fp32-float16",
    )
]  # fmt: skip
FINITE = [case for case in FEW if "overflow" not in case["id"] and case["op"] == "lm_head"]


def check(framework: Framework, cases: list[Any]) -> None:
    """Each case gives its bits."""
    for case in cases:
        if case["op"] == "lm_head":
            op = "lm_head" if case["out_dtype"] == case["hidden"]["dtype"] else "lm_head_fp32"
            args = [array(case[name]) if name in case else None for name in ("hidden", "weight", "bias")]
            actual = framework.run(op, *args, digits=case["digits"])
        else:
            actual = framework.run(case["op"], np.array(case["token_ids"]), array(case["weight"]), check_ids=False)
        assert_bits_equal(actual, array(case["expect"]), context=f"{framework.name}, {case['id']}")


@contextmanager
def torch_flag(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def attribute(owner: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[None]]:
    return lambda: torch_flag(lambda: getattr(owner, name), lambda new: setattr(owner, name, new), value)


def matmul_precision(value: str) -> AbstractContextManager[None]:
    return torch_flag(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, value)


TORCH_FLAGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "matmul precision high": lambda: matmul_precision("high"),
    "matmul precision medium": lambda: matmul_precision("medium"),
    "cuda allow_tf32": attribute(torch.backends.cuda.matmul, "allow_tf32", True),
    "cudnn allow_tf32": attribute(torch.backends.cudnn, "allow_tf32", True),
    "bf16 reduced-precision reduction": attribute(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", True
    ),
    "fp16 reduced-precision reduction": attribute(
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", True
    ),
    "autocast bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "flush denormals": lambda: torch_flag(lambda: False, torch.set_flush_denormal, True),
    "deterministic algorithms": lambda: torch_flag(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "default dtype float64": lambda: torch_flag(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "default dtype bfloat16": lambda: torch_flag(torch.get_default_dtype, torch.set_default_dtype, torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "no oneDNN": attribute(torch.backends.mkldnn, "enabled", False),
}


@contextmanager
def promotion_as_users_have_it() -> Iterator[None]:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


JAX_FLAGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    **{
        f"matmul precision {name}": (lambda name=name: jax.default_matmul_precision(name))  # type: ignore[misc]
        for name in ("bfloat16", "tensorfloat32", "BF16_BF16_F32")
    },
    "x64": lambda: jax.enable_x64(True),
    "no strict promotion": promotion_as_users_have_it,
}


@pytest.mark.parametrize("flag", TORCH_FLAGS)
def test_a_flag_of_torch_changes_nothing(flag):
    with TORCH_FLAGS[flag]():
        check(TORCH, ALL)


@pytest.mark.parametrize("flag", JAX_FLAGS)
def test_a_flag_of_jax_changes_nothing(flag):
    with JAX_FLAGS[flag]():
        check(JAX, FEW)


def test_no_nan_appears_on_the_way_to_finite_logits():
    with jax.debug_nans(True):
        check(JAX, FINITE)


@pytest.mark.parametrize("state", [jax.disable_jit, jax.checking_leaks], ids=["no jit", "tracer leak check"])
def test_a_way_to_find_faults_in_jax_changes_nothing(state):
    with state():
        check(JAX, [case for case in FEW if case["id"] in ("fma-probe", "embedding-fp32-float16")])


@both
def test_float16_overflows_to_infinity(framework):
    actual = framework.run("lm_head", np.array([[300]], np.float16), np.array([[300], [-300]], np.float16))
    assert_bits_equal(actual, np.array([[np.inf, -np.inf]], np.float16))


@both
def test_no_integer_is_rounded_as_tf32_would(framework):
    actual = framework.run("lm_head", np.array([[1]], np.float32), np.arange(8192, dtype=np.float32)[:, None])
    assert_bits_equal(actual, np.arange(8192, dtype=np.float32)[None])


# Processes of their own --------------------------------------------------------------------------------
@pytest.mark.parametrize("isa", ["SSE4_2", "AVX", "AVX2"])
def test_jax_on_lesser_instruction_sets(isa):
    program = "import test_global_state as t; t.check(t.JAX, t.FEW)"
    run_alone(program, XLA_FLAGS=f"--xla_cpu_max_isa={isa}")


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_torch_on_lesser_instruction_sets(capability):
    run_alone("import test_global_state as t; t.check(t.TORCH, t.ALL)", ATEN_CPU_CAPABILITY=capability)


def test_running_sets_nothing():
    before = state()
    check(TORCH, ALL)
    check(JAX, FEW)
    assert changes(before, state()) == []


def test_importing_sets_nothing():
    run_alone(
        "from program_state import changes, state\n"
        "before = state()\n"
        "import rlk_torch, rlk_jax\n"
        "assert changes(before, state()) == []\n"
    )


def test_a_change_of_state_would_be_seen():
    run_alone(
        "import numpy as np, torch\n"
        "from program_state import changes, state\n"
        "for change in (lambda: np.seterr(under='raise'), lambda: torch.set_default_dtype(torch.float64)):\n"
        "    before = state()\n"
        "    change()\n"
        "    assert changes(before, state())\n"
    )
