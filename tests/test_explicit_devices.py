"""What is asked of a device runs there, whichever device is the default or the current one."""

import ast
from pathlib import Path

import jax
import pytest
import torch
from processes import run_alone

import rlk_jax
import rlk_torch
from rlk_jax.devices import default_device, on_gpu
from rlk_torch.devices import has_triton

KERNELS = sorted(Path(rlk_torch.__file__).parent.glob("*_triton.py"))

EIGHT_DEVICES = """
import jax, numpy as np, pytest, rlk_jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

devices = jax.devices("cpu")
assert len(devices) == 8
rng = np.random.default_rng(0)
hidden, weight, bias = (rng.standard_normal(shape, np.float32) for shape in ((3, 16), (20, 16), 20))
ids = np.array([3, 19, 0])
put = jax.device_put


def refused(call, text):
    with pytest.raises(ValueError) as raised:
        call()
    assert str(raised.value) == text, raised.value


for device in (devices[3], "cpu:3"):
    head, gather = rlk_jax.get_op("lm_head", device), rlk_jax.get_op("embedding", device)
    assert (head.device, gather.device) == ("cpu:3", "cpu:3")
    for default in (None, devices[5]):
        with jax.default_device(default):
            # NumPy arrays and arrays that are bound to no device go there; what is there stays there.
            for move in (lambda x: x, jnp.asarray, lambda x: put(x, devices[3])):
                logits = head(move(hidden), move(weight), move(bias))
                rows = gather(ids, move(weight))
                assert logits.devices() == rows.devices() == {devices[3]}
                assert_bits_equal(logits, contract.lm_head(hidden, weight, bias))
                assert_bits_equal(rows, weight[ids])
            aligned = head(hidden, rlk_jax.align(put(weight, devices[3]), 4))
            assert aligned.devices() == {devices[3]}
    gradient = jax.grad(lambda w: (head(hidden, w) * jnp.float32(1)).sum())(put(weight, devices[3]))
    assert gradient.devices() == {devices[3]}

# Everything that is elsewhere is refused, both devices named; so is what lies on several.
head, gather = rlk_jax.get_op("lm_head", devices[3]), rlk_jax.get_op("embedding", devices[3])
there = lambda x: put(x, devices[6])
weight_apart = "weight is on cpu:6 and the operator on cpu:3; move weight, or get_op for cpu:6"
apart = "is on cpu:6, weight on cpu:3; expected one device: move one of them"
refused(lambda: head(hidden, there(weight)), weight_apart)
refused(lambda: head(hidden, rlk_jax.align(there(weight), 4)), weight_apart)
refused(lambda: gather(ids, there(weight)), weight_apart)
refused(lambda: head(there(hidden), weight), f"hidden {apart}")
refused(lambda: head.forward_fp32(hidden, weight, there(bias)), f"bias {apart}")
refused(lambda: gather(there(jnp.asarray(ids)), weight), f"token_ids {apart}")
spread = NamedSharding(Mesh(np.array(devices[:2]), "x"), PartitionSpec("x"))
several = "weight is on cpu:0, cpu:1 and the operator on cpu:3; move weight, or get_op for cpu:0, cpu:1"
refused(lambda: head(hidden, put(weight, spread)), several)
refused(lambda: rlk_jax.get_op("lm_head", "cpu:8"), "device 'cpu:8' is not available: jax sees 8 CPU devices")

# A table in host memory puts its rows where it is told to.
table = rlk_jax.EmbeddingTable(weight, residency="host", device=devices[4])
assert table(ids).devices() == {devices[4]}
assert jax.jit(lambda ids: table(ids))(put(ids, devices[4])).devices() == {devices[4]}
assert "cpu:4" in table.mechanism
free = rlk_jax.EmbeddingTable(weight, residency="host")
with jax.default_device(devices[2]):
    assert free(ids).devices() == {devices[2]}
refused(
    lambda: table(there(jnp.asarray(ids))),
    "token_ids is on cpu:6, the table's result on cpu:4; expected one device: move one of them",
)

# Functions follow their arguments.
assert rlk_jax.lm_head(there(hidden), there(weight)).devices() == {devices[6]}
quantized = rlk_jax.quantize(there(weight))
assert rlk_jax.EmbeddingTable(quantized)(ids).devices() == {devices[6]}
assert rlk_jax.lm_head(there(hidden), quantized).devices() == {devices[6]}
"""


def test_eight_devices_in_jax():
    run_alone(EIGHT_DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")


class Card:
    """What the package asks of a GPU."""

    platform = "gpu"
    compute_capability = "9.0"


def test_the_default_device_decides_what_runs_in_jax(monkeypatch):
    """Block sizes and kernels follow `jax.default_device`, which an operator sets to its own."""
    assert not on_gpu()
    with jax.default_device(jax.devices("cpu")[0]):
        assert default_device() == jax.devices("cpu")[0]
    with jax.default_device("cpu"):
        assert default_device().platform == "cpu"
    monkeypatch.setattr("rlk_jax.devices.default_device", Card)
    assert on_gpu()


def test_an_operator_runs_with_its_device_as_the_default(monkeypatch):
    seen = []
    operator = rlk_jax.get_op("lm_head", jax.devices("cpu")[0])
    monkeypatch.setattr("rlk_jax.dispatch.default_device", Card)
    monkeypatch.setattr(
        "rlk_jax.dispatch.run_lm_head", lambda *args: seen.append(jax.config.jax_default_device) or args[0]
    )
    operator(jax.numpy.ones((1, 2)), jax.numpy.ones((3, 2)))
    assert seen == [jax.devices("cpu")[0]]


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")], ids=repr)
def test_a_device_of_torch_by_name_or_by_itself(device):
    operator = rlk_torch.get_op("lm_head", device)
    assert operator.device == "cpu"
    assert operator(torch.ones(2, 3), torch.ones(4, 3)).device.type == "cpu"


def test_a_cpu_of_torch_that_is_not_there():
    with pytest.raises(ValueError, match=r"^device 'cpu:1' is not available: torch sees 1 CPU devices$"):
        rlk_torch.get_op("embedding", "cpu:1")


@pytest.fixture
def two_old_cards(monkeypatch):
    """As torch sees them; what is remembered of them is forgotten again."""
    has_triton.cache_clear()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 0))
    yield
    has_triton.cache_clear()


def test_a_second_gpu_is_named_by_its_index(two_old_cards):
    operator = rlk_torch.get_op("lm_head", torch.device("cuda", 1))
    assert (operator.device, operator.implementation) == ("cuda:1", "float64")
    with pytest.raises(ValueError, match=r"^weight is on cpu and the operator on cuda:1; move weight, or get_op for"):
        operator(torch.ones(2, 3), torch.ones(4, 3))
    with pytest.raises(ValueError, match=r"^device 'cuda:2' is not available: torch sees 2 CUDA devices$"):
        rlk_torch.get_op("lm_head", "cuda:2")


def launches(source: str) -> list[tuple[str, bool]]:
    """Each launch `some_kernel[grid](...)` of a module, and whether it lies in `with torch.cuda.device(...)`."""
    found = []

    def walk(node: ast.AST, guarded: bool) -> None:
        if isinstance(node, ast.With):
            guarded = guarded or any("torch.cuda.device(" in ast.unparse(item.context_expr) for item in node.items)
        if isinstance(node, ast.FunctionDef):
            guarded = False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            name = ast.unparse(node.func.value)
            if name.endswith("_kernel"):
                found.append((name, guarded))
        for child in ast.iter_child_nodes(node):
            walk(child, guarded)

    walk(ast.parse(source), False)
    return found


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_every_kernel_is_launched_on_the_device_of_its_arrays(path):
    """Triton launches on the current device, which may be another one."""
    assert [name for name, guarded in launches(path.read_text()) if not guarded] == []


def test_the_search_finds_launches():
    assert launches("x_kernel[1](a)\nwith torch.cuda.device(d):\n    y_kernel[(n,)](b)") == [
        ("x_kernel", False),
        ("y_kernel", True),
    ]
    assert sum(len(launches(path.read_text())) for path in KERNELS) >= 10
