"""On an NVIDIA GPU the gradients have the bits of every vector and of the contract, at odd sizes, in every run."""

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from exact_inputs import generated, matrix_array
from frameworks import BFLOAT16, FLOATS, JAX, TORCH, both
from gradients import gradients, normal, placed
from vector_cases import array, vector_cases

import rlk_torch
from crosscheck import contract
from crosscheck.bits import assert_bits_equal

pytestmark = pytest.mark.gpu

DEVICE = "gpu"
CUDA = "cuda"


def check_lm_head(
    framework: Any, hidden: Any, weight: Any, grad: Any, bias_dtype: Any = np.float32, **how: Any
) -> None:
    """All three gradients are the contract's; in JAX they are compiled together, which takes less time."""
    __tracebackhide__ = True
    how = {"compiled": framework is JAX, "op": "lm_head", **how}
    bias = np.zeros(len(weight), bias_dtype)
    actual = gradients(framework, how.pop("op"), hidden, weight, bias, grad=grad, device=DEVICE, **how)
    expected = contract.lm_head_grads(grad, hidden, weight, bias_dtype)
    for name, one, other in zip(("hidden", "weight", "bias"), actual, expected, strict=True):
        assert_bits_equal(one, other, context=f"the gradient of {name}, N V K {len(hidden), *weight.shape}")


def check_table(
    framework: Any, ids: Any, grad: Any, vocab: int, dtype: Any, padding_idx: int | None = None, **how: Any
) -> None:
    """The gradient of the table is the contract's, with +0 for the padding row."""
    __tracebackhide__ = True
    how = {"compiled": framework is JAX, "op": "embedding" if grad.dtype == dtype else "embedding_fp32", **how}
    table = np.zeros((vocab, grad.shape[-1]), dtype)
    options = {} if padding_idx is None else {"padding_idx": padding_idx}
    (actual,) = gradients(
        framework, how.pop("op"), ids, table, grad=grad, device=DEVICE, check_ids=False, **options, **how
    )
    kept = np.where(ids == padding_idx, -1, ids) if padding_idx is not None else ids
    assert_bits_equal(actual, contract.embedding_grad(kept, grad, vocab, dtype))


# Vectors -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", vector_cases("lm_head_grad"))
@both
def test_lm_head_gives_the_bits_of_the_vector(framework, case):
    hidden, weight, grad = (array(case[name]) for name in ("hidden", "weight", "grad_logits"))
    bias = np.zeros_like(array(case["expect_grad_bias"]))
    op = "lm_head" if grad.dtype == hidden.dtype else "lm_head_fp32"
    compiled = framework is JAX
    actual = gradients(framework, op, hidden, weight, bias, grad=grad, compiled=compiled, device=DEVICE)
    for name, of in zip(("hidden", "weight", "bias"), actual, strict=True):
        assert_bits_equal(of, array(case[f"expect_grad_{name}"]), context=f"the gradient of {name}")


@pytest.mark.parametrize("case", vector_cases("embedding_grad"))
@both
def test_embedding_gives_the_bits_of_the_vector(framework, case):
    grad, expected = array(case["grad_rows"]), array(case["expect"])
    op = "embedding" if grad.dtype == expected.dtype else "embedding_fp32"
    ids, table = np.array(case["token_ids"], np.int32), np.zeros_like(expected)
    assert_bits_equal(
        gradients(framework, op, ids, table, grad=grad, compiled=framework is JAX, device=DEVICE)[0], expected
    )


# LM head -----------------------------------------------------------------------------------------------------
ODD = (1, 3, 17, 65, 257, 300)
STEPS = {"torch": range(3), "jax": range(1)}


@pytest.mark.parametrize("first", range(len(ODD)), ids=lambda i: f"N{ODD[i]}")
@both
def test_odd_sizes_and_all_dtypes(framework, first):
    for step in STEPS[framework.name]:
        vocab, width = ODD[(first + step) % 6], ODD[(first + 2 * step + 1) % 6]
        of_hidden, of_weight, of_bias = (FLOATS[(first + step * i) % 3] for i in (0, 1, 2))
        hidden, weight = normal(ODD[first], width, dtype=of_hidden), normal(vocab, width, dtype=of_weight, seed=1)
        hidden[ODD[first] // 2] *= of_hidden.type(0)
        check_lm_head(framework, hidden, weight, normal(ODD[first], vocab, dtype=of_hidden, seed=2), of_bias)


@pytest.mark.parametrize(("rows", "vocab"), [(3, 70000), (70000, 3)], ids=["V70000", "N70000"])
@both
def test_reductions_longer_than_one_part(framework, rows, vocab):
    """All of one sign, so that the integers of the parts add up as far as they can."""
    hidden, weight, grad = (np.abs(normal(*s)) + 1 for s in ((rows, 5), (vocab, 5), (rows, vocab)))
    check_lm_head(framework, hidden, weight, grad)
    if framework is TORCH:
        check_lm_head(framework, hidden.astype(BFLOAT16), weight, grad.astype(BFLOAT16))


def test_reductions_longer_than_the_kernels_take():
    rows = 2**19 + 7
    check_lm_head(TORCH, normal(rows, 3, dtype=BFLOAT16), normal(2, 3), normal(rows, 2, dtype=BFLOAT16, seed=1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("planted", [False, True], ids=["finite", "NaN and infinities"])
@both
def test_extreme_exponents(framework, planted, dtype):
    sizes = (33, 17), (65, 17), (33, 65)
    hidden, weight, grad = (
        matrix_array(generated("finite", dtype, *size, seed), size[1]) for seed, size in enumerate(sizes)
    )
    if planted:
        hidden[3, 1], weight[5, 2], grad[7, 11], grad[9, 12] = np.nan, -np.inf, np.inf, np.nan
    check_lm_head(framework, hidden, weight, grad)


@pytest.mark.parametrize("name", ["triton", "float64"])
def test_every_implementation_of_torch(name):
    op = rlk_torch.get_op("lm_head", CUDA, name)
    check_lm_head(TORCH, normal(65, 100), normal(257, 100, seed=1), normal(65, 257, seed=2), op=op)


@both
def test_no_rows_give_zero_gradients(framework):
    check_lm_head(framework, np.zeros((0, 6), np.float32), normal(4, 6), np.zeros((0, 4), np.float32))


@pytest.mark.parametrize(
    ("framework", "digits"), [(TORCH, 2), (TORCH, 3), (TORCH, 4), (JAX, 3)], ids=lambda x: getattr(x, "name", str(x))
)
def test_hidden_gets_the_gradient_of_the_matrix_that_an_aligned_weight_stands_for(framework, digits):
    hidden, weight, grad = normal(17, 65), normal(257, 65, seed=1), normal(17, 257, seed=2)
    weight[5] *= 1000
    aligned = contract.align(weight, digits)
    matrix = (aligned.q * aligned.scale()[:, None]).astype(np.float32)
    on_gpu = framework.package.align(placed(framework, weight, DEVICE), digits)
    (actual,) = gradients(
        framework, "lm_head", hidden, on_gpu, grad=grad, compiled=framework is JAX, device=DEVICE, digits=digits
    )
    assert_bits_equal(actual, contract.lm_head_grads(grad, hidden, matrix)[0])


# Embedding ---------------------------------------------------------------------------------------------------
IDS = {
    "unique": lambda rng, vocab: rng.permutation(vocab),
    "Zipf": lambda rng, vocab: rng.zipf(1.3, 1000) % vocab,
    "bad ones": lambda rng, vocab: rng.choice([-1, vocab, vocab + 1, 2**31 - 1, -(2**31), 0, vocab - 1], 1000),
    "padding": lambda rng, vocab: np.where(rng.random(1000) < 0.7, 3, rng.integers(0, vocab, 1000)),
}
WIDTHS = [
    (framework, width) for framework, widths in ((TORCH, (1, 100, 1025, 4096)), (JAX, (1025,))) for width in widths
]


@pytest.mark.parametrize(("framework", "width"), WIDTHS, ids=lambda x: getattr(x, "name", str(x)))
@pytest.mark.parametrize("kind", IDS)
def test_ids_of_any_kind_and_rows_of_any_width(kind, framework, width):
    for vocab, dtype in zip((300, 2000, 300), FLOATS, strict=True):
        ids = IDS[kind](np.random.default_rng(width), vocab).astype(np.int32)
        grad = normal(len(ids), width, dtype=dtype)
        check_table(framework, ids, grad, vocab, dtype, padding_idx=3 if kind == "padding" else None)


COPIES = [1, 2, 63, 64, 65, 127, 128, 129, 4096, 5000]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_number_of_copies_of_an_id_in_torch(dtype):
    """Sums longer than 64 members are cut where ids before them end, so that their chunks meet anywhere."""
    rng = np.random.default_rng(0)
    for copies in COPIES:
        ids = rng.permutation(np.repeat([7, 2, 9, 4], [copies, 1, copies, 100]))
        check_table(TORCH, ids, normal(len(ids), 100, dtype=dtype, seed=copies), 11, dtype)


@both
def test_many_copies_count_exactly(framework):
    for copies in (1000, 5000):
        ids, grad = np.full(copies, 2, np.int32), np.ones((copies, 3), np.float32)
        (actual,) = gradients(framework, "embedding_fp32", ids, np.zeros((4, 3), np.float32), grad=grad, device=DEVICE)
        assert_bits_equal(actual, np.float32([0, 0, copies, 0])[:, None].repeat(3, axis=1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@both
def test_extreme_exponents_of_rows(framework, dtype):
    grad = matrix_array(generated("finite", dtype, 400, 33, 0), 33)
    grad[3, 1], grad[200, 2], grad[201, 3] = np.nan, np.inf, -np.inf
    ids = np.random.default_rng(0).choice([1, 2, 5], 400, p=[0.8, 0.1, 0.1]).astype(np.int32)
    check_table(framework, ids, grad, 6, grad.dtype)


@pytest.mark.parametrize("name", ["triton", "gather"])
def test_every_gather_of_torch(name):
    op = rlk_torch.get_op("embedding", CUDA, name)
    ids = np.random.default_rng(0).zipf(1.2, 3000) % 50
    check_table(TORCH, ids, normal(3000, 130), 50, np.dtype(np.float32), op=op.forward)
    check_table(TORCH, ids, normal(3000, 130), 50, BFLOAT16, op=op.forward_fp32)


# Runs --------------------------------------------------------------------------------------------------------
@contextmanager
def deterministic(wanted: bool) -> Any:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("wanted", [False, True], ids=["as it is", "deterministic algorithms"])
def test_five_runs_of_torch_agree(wanted):
    ids, rows = np.random.default_rng(0).zipf(1.2, 5000) % 90, normal(5000, 130)
    hidden, weight, grad = normal(65, 100), normal(257, 100, seed=1), normal(65, 257, seed=2)
    with deterministic(wanted):
        for _ in range(5):
            check_table(TORCH, ids, rows, 90, np.dtype(np.float32))
            check_lm_head(TORCH, hidden, weight, grad)


def test_five_runs_of_jax_agree():
    ids, rows = (np.random.default_rng(0).zipf(1.2, 5000) % 90).astype(np.int32), normal(5000, 33)
    for _ in range(5):
        check_table(JAX, ids, rows, 90, np.dtype(np.float32), compiled=False)


# Compilers, transformations, layouts -------------------------------------------------------------------------
def test_compiled_by_torch():
    hidden, weight, grad = normal(17, 65), normal(33, 65, seed=1), normal(17, 33, seed=2)
    check_lm_head(TORCH, hidden, weight, grad, compiled=True)
    ids = np.array([0, 1, 1, -1, 40, 8], np.int32)
    check_table(TORCH, ids, normal(6, 65), 9, np.dtype(np.float32), padding_idx=8, compiled=True)


def test_eager_in_jax():
    check_lm_head(JAX, normal(17, 65), normal(33, 65, seed=1), normal(17, 33, seed=2), compiled=False)


@both
def test_rows_under_vmap_share_one_sum(framework):
    hidden, weight, grad = normal(17, 65), normal(33, 65, seed=1), normal(17, 33, seed=2)
    check_lm_head(framework, hidden, weight, grad, rows_under_vmap=True)
    ids = np.array([0, 1, 1, -1, 40, 8], np.int32)
    check_table(framework, ids, normal(6, 65), 9, np.dtype(np.float32), rows_under_vmap=True)


def test_torch_func_grad_of_vmap():
    hidden, weight, grad = normal(17, 65), normal(33, 65, seed=1), normal(17, 33, seed=2)
    on_gpu = [placed(TORCH, x, DEVICE) for x in (weight, hidden, grad)]

    def loss(weight: Any, hidden: Any, grad: Any) -> Any:
        return (torch.func.vmap(lambda row: rlk_torch.lm_head(row, weight))(hidden) * grad).sum()

    of_weight, of_hidden = torch.func.grad(loss, (0, 1))(*on_gpu)
    expected = contract.lm_head_grads(grad, hidden, weight)
    assert_bits_equal(of_hidden, expected[0])
    assert_bits_equal(of_weight, expected[1])


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "one element further": lambda x: torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_torch_takes_operands_and_gradients_of_any_strides(layout):
    originals = normal(17, 65), normal(257, 65, seed=1), normal(17, 257, seed=2)
    *operands, grad = (LAYOUTS[layout](placed(TORCH, x, DEVICE)) for x in originals)
    for one, other in zip(
        gradients(TORCH, "lm_head", *operands, grad=grad),
        contract.lm_head_grads(originals[2], *originals[:2]),
        strict=False,
    ):
        assert_bits_equal(one, other)
    ids, rows = np.random.default_rng(0).integers(0, 9, 300), normal(300, 33)
    (of_table,) = gradients(
        TORCH, "embedding", ids, normal(9, 33), grad=LAYOUTS[layout](placed(TORCH, rows, DEVICE)), device=DEVICE
    )
    assert_bits_equal(of_table, contract.embedding_grad(ids, rows, 9, np.float32))


def test_an_expanded_upstream_gradient_counts_every_time():
    ids, one = np.random.default_rng(0).integers(0, 9, 300), placed(TORCH, np.full(1, 0.1, np.float32), DEVICE)
    (of_table,) = gradients(TORCH, "embedding", ids, normal(9, 33), grad=one.expand(300, 33), device=DEVICE)
    assert_bits_equal(of_table, contract.embedding_grad(ids, np.full((300, 33), np.float32(0.1)), 9, np.float32))


# Memory ------------------------------------------------------------------------------------------------------
def test_the_gradient_of_a_large_table_takes_little_memory_beside_itself():
    vocab, width, tokens = 151936, 4096, 4096
    table = torch.zeros((vocab, width), dtype=torch.bfloat16, device=CUDA, requires_grad=True)
    ids = torch.from_numpy(np.random.default_rng(0).zipf(1.2, tokens) % vocab).to(CUDA)
    rows = rlk_torch.embedding(ids, table)
    grad = torch.ones_like(rows)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    (of_table,) = torch.autograd.grad(rows, table, grad)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= 3 * of_table.nbytes
    named, counts = np.unique(ids.cpu().numpy(), return_counts=True)
    assert_bits_equal(of_table[torch.from_numpy(named).to(CUDA), 0], counts.astype(np.float32).astype(BFLOAT16))
    assert int(of_table.count_nonzero()) == len(named) * width
