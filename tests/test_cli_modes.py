"""`crosscheck run --mode` judges eager code alone, or compiled code alone."""

import planted
import pytest
from click.testing import CliRunner, Result

from crosscheck.cli import main
from crosscheck.registry import BACKENDS

CASE = "embedding-fp16-N3-H1-V1-uint8"


def run(*arguments: str, backends: str = "Planted") -> Result:
    words = ["run", "--backends", backends, "--filter", CASE, *arguments]
    return CliRunner().invoke(main, words, obj=planted.REGISTRY)


def test_a_backend_has_its_eager_or_its_compiled_modes_alone():
    assert (BACKENDS["torch-cpu"].only("eager").modes, BACKENDS["torch-cpu"].only("eager").compiling) == (
        ("eager",),
        (),
    )
    assert (BACKENDS["jax-cpu"].only("compiled").modes, BACKENDS["jax-cpu"].only("compiled").compiling) == (
        ("jit",), ("jit",),
    )  # fmt: skip
    assert BACKENDS["numpy"].only("compiled").modes == ()


def test_jax_in_one_mode_takes_the_gradients_of_a_quarter_of_many_cases():
    eager = BACKENDS["jax-cpu"].only("eager")
    assert sum(eager.takes_gradients("eager", seed << 30, 64) for seed in range(64)) == 16


def test_what_was_typed_is_repeated():
    result = run("--mode", "eager", backends="FlipsBits")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("  repeat: ")]
    assert "--mode eager" in line


@pytest.mark.parametrize(
    ("backends", "who"), [("Planted", "Planted has"), ("Planted,FlipsBits", "Planted, FlipsBits have")]
)
def test_a_mode_that_a_backend_has_not_is_refused(backends, who):
    result = run("--mode", "compiled", backends=backends)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"crosscheck: --mode compiled: {who} no such mode\n"
