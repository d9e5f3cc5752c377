"""The examples run on a CPU, each command ends with the exit code that it names, and examples/README.md quotes them."""

import os
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PAGE = (EXAMPLES / "README.md").read_text()


def output(name: str, folder: Path) -> str:
    """What the example prints. It ends at once where a command has another exit code than it is meant to have."""
    words = ["bash", f"examples/{name}/run.sh"]
    environment = {**os.environ, "OUT": str(folder), "COLUMNS": "200"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def quoted(name: str) -> list[str]:
    """The lines of the example's section that show what is printed, without the commands."""
    (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    lines = "\n".join(re.findall(r"^```text\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)).splitlines()
    return [line for line in lines if line.strip(" .") and not line.startswith("$ ")]


def assert_printed(lines: list[str], text: str) -> None:
    """Each line, whatever stands in place of `...` and of a number that a float sum decides, in this order."""
    place = 0
    for line in lines:
        parts = [re.escape(part) for part in line.split("...")]
        found = re.compile(".*".join(parts) + r" *$", re.MULTILINE).search(text, place)
        assert found, f"{line!r} is in examples/README.md, and was not printed, or earlier:\n{text[place:]}"
        place = found.start()


@pytest.mark.parametrize("lines", [["three"], ["two", "one"], ["o... two"]])
def test_the_check_itself_can_fail(lines):
    assert_printed(["o...e", "two"], "one\ntwo   \n")
    with pytest.raises(AssertionError, match=r"in examples/README\.md, and was not printed"):
        assert_printed(lines, "one\ntwo\n")


# Run -------------------------------------------------------------------------------------------------------
def test_the_port_of_a_gather_is_judged(tmp_path):
    pytest.importorskip("triton", reason="not run: Triton is not installed")
    assert_printed(quoted("port_gather"), output("port_gather", tmp_path))


def test_a_trainer_and_a_rollout_engine_are_compared(tmp_path):
    text = output("rollout_vs_trainer", tmp_path)
    floats = re.compile(r"\d+ of 2097152 .*|\d+ of 256 differ.*|from 0.* to .*")  # the machine's
    lines = [floats.sub("...", line) for line in quoted("rollout_vs_trainer")]
    assert_printed(lines, text)
    tokens = re.findall(r"^greedy tokens: (\d+) of 256 differ", text, re.MULTILINE)
    assert int(tokens[1]) > 0 and tokens[2] == "0"


def test_importance_ratios_are_one_with_the_contract_and_not_with_stock_functions(tmp_path):
    text = output("importance_ratio", tmp_path)
    floats = re.compile(r"\d+ of 256 elements .*|exactly 1 for \d+ of 256 tokens, from 0.*")  # the machine's
    lines = quoted("importance_ratio")
    assert_printed([floats.sub("...", line) for line in lines], text)
    exact = [int(found) for found in re.findall(r"exactly 1 for (\d+) of 256 tokens", text)]
    assert exact[0] < 256 == exact[1]


def test_a_head_that_depends_on_the_batch_is_explained(tmp_path):
    machines = re.compile(r"K 5, |^B .*|^ +\(0 \+ 8\).*")  # how many lanes a sum of torch has
    lines = [machines.sub("...", line) for line in quoted("own_head")]
    assert_printed(lines, output("own_head", tmp_path))


# For a GPU -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", ["_copy", "_copy_or_poison"])
def test_the_port_lowers_for_cuda(kernel):
    import jax
    import jax.numpy as jnp
    from test_pallas import abstract_hopper

    from examples.port_gather import pallas_gather

    ids, table, out = (
        jax.ShapeDtypeStruct(*kind) for kind in (((7,), jnp.int32), ((33, 4096), jnp.uint16), ((7, 4096), jnp.uint16))
    )
    gather = partial(pallas_gather.on_gpu, partial(getattr(pallas_gather, kernel), poison=0x7FC0), out)
    with jax.sharding.use_abstract_mesh(abstract_hopper()):
        lowered = jax.jit(gather).trace(ids, table).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()


def test_the_triton_gather_compiles_for_cuda():
    pytest.importorskip("triton", reason="not run: Triton is not installed")
    from test_triton import ptx

    from examples.port_gather.triton_gather import gather_kernel

    assert "st.global" in ptx(gather_kernel, {"COLUMNS": 1024}, {"table": "*bf16", "out": "*bf16"})


# The page --------------------------------------------------------------------------------------------------
def test_the_page_names_every_example():
    names = {path.parent.name for path in EXAMPLES.glob("*/run.sh")}
    assert names == set(re.findall(r"^\$ bash examples/(\w+)/run.sh$", PAGE, re.MULTILINE))
    assert names == set(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE))


def test_the_links_lead_to_files():
    targets = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert [target for target in targets if not (EXAMPLES / target).exists()] == []
