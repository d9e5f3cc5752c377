"""The GPU kernels pass through compilers and transformations: jit, vmap, scan, torch.compile, export, opcheck."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

import rlk_jax
import rlk_torch
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

pytestmark = pytest.mark.gpu


@pytest.fixture
def table() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((300, 256)).astype(np.float32)


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(1).integers(-1, 301, (7, 37)).astype(np.int32)


def test_pallas_under_jit_vmap_and_scan(table, ids):
    weight = jax.device_put(table, jax.devices("gpu")[0])
    expected = contract.embedding(ids, table, check_ids=False)

    def scanned(ids, weight):
        return lax.scan(lambda carry, row: (carry, rlk_jax.embedding(row, weight)), 0, ids)[1]

    for name, function in {
        "jit": rlk_jax.embedding,
        "vmap": lambda ids, weight: jax.vmap(lambda row: rlk_jax.embedding(row, weight))(ids),
        "scan": scanned,
    }.items():
        assert_bits_equal(jax.jit(function)(ids, weight), expected, context=name)


def test_pallas_takes_ids_at_any_address(table, ids):
    """A kernel's buffers have to start at multiples of 256 bytes; slices of ids and of tables do not."""
    weight = jax.device_put(table, jax.devices("gpu")[0])
    for start in range(1, 9):
        actual = jax.jit(lambda ids, weight, s=start: rlk_jax.embedding(ids[1, s:30], weight[s:]))(ids, weight)
        assert_bits_equal(actual, contract.embedding(ids[1, start:30], table[start:], check_ids=False))


def test_pallas_beside_small_temporaries(table, ids):
    weight = jax.device_put(table, jax.devices("gpu")[0])

    @jax.jit
    def busy(ids, weight):
        rows = rlk_jax.embedding(jnp.sort(ids, axis=1)[:, ::3], weight)
        return rows, jnp.cumsum(ids, axis=1) * 3, rlk_jax.embedding(ids.sum(axis=1) % 300, weight * 2)

    rows, _, more = busy(ids, weight)
    assert_bits_equal(rows, contract.embedding(np.sort(ids, axis=1)[:, ::3], table, check_ids=False))
    assert_bits_equal(more, contract.embedding(ids.sum(axis=1) % 300, table * 2))


def test_torch_compile_gives_the_bits_of_eager(table):
    weight, hidden = torch.from_numpy(table).cuda(), torch.from_numpy(table[:5]).cuda()
    ids = torch.tensor([[1, 299], [300, -1]], device="cuda")
    compiled = torch.compile(lambda i, h, w: (rlk_torch.embedding(i, w), rlk_torch.lm_head(h, w)), fullgraph=True)
    rows, logits = compiled(ids, hidden, weight)
    assert_bits_equal(rows, contract.embedding(ids.cpu().numpy(), table, check_ids=False))
    assert_bits_equal(logits, contract.lm_head(table[:5], table))


def test_torch_export_keeps_the_operators(table):
    class Head(torch.nn.Module):
        def forward(self, hidden, weight):
            return rlk_torch.lm_head(hidden, weight, digits=3)

    weight, hidden = torch.from_numpy(table).cuda(), torch.from_numpy(table[:5]).cuda()
    exported = torch.export.export(Head(), (hidden, weight))
    assert "rlk_torch.lm_head" in exported.graph_module.code
    assert_bits_equal(exported.module()(hidden, weight), contract.lm_head(table[:5], table, digits=3))


def test_the_operators_pass_opcheck_on_cuda(table):
    weight, ids = torch.from_numpy(table).cuda(), torch.tensor([1, 2, 299], device="cuda")
    ops = torch.ops.rlk_torch
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.embedding.default, (ids, weight, False, False, "", -1), test_utils=checks)
    rows = (weight[:3], ids, 300, torch.bfloat16, 1, "")
    torch.library.opcheck(ops.embedding_grad.default, rows, test_utils=checks)
    torch.library.opcheck(ops.align.default, (weight, 3), test_utils=checks)
    torch.library.opcheck(ops.lm_head.default, (weight[:3], weight, None, 3, torch.float32, ""), test_utils=checks)


def test_torch_kernels_take_any_strides(table):
    base = torch.from_numpy(table).cuda()
    for name, weight in {
        "transposed": base.t().contiguous().t(), "columns": base[:, ::2], "expanded": base[:1].expand(64, 256),
        "offset": base.reshape(-1)[3 : 3 + 256 * 299].view(299, 256),
    }.items():  # fmt: skip
        plain = weight.cpu().numpy()
        ids = torch.tensor([0, 5, 63, 2], device="cuda").repeat(2)[::2]
        assert_bits_equal(rlk_torch.embedding(ids, weight), contract.embedding(ids.cpu().numpy(), plain), context=name)
        assert_bits_equal(rlk_torch.lm_head(weight[:3], weight), contract.lm_head(plain[:3], plain), context=name)
