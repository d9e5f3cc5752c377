"""EmbeddingTable gives the rows of `embedding`, wherever they stay, or their exact product by a scale, rounded once."""

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from bit_arrays import random_bits
from exact_reference import INF, NAN, NEG_INF, decode, encode, round_float32
from frameworks import BFLOAT16, FLOATS, JAX, TORCH, Framework, both, eager_and_compiled
from gradients import normal, value_and_gradients
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from vector_cases import array, vector_cases

from crosscheck import contract, scaled
from crosscheck.bits import as_numpy, assert_bits_equal

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tables.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
SCALES = [64.0, *(float(np.float32(x)) for x in (3072**0.5, -0.3, 2.0**-126, 2.0**127 * 1.9))]
products = pytest.mark.parametrize(
    ("dtype", "scale"),
    [(dtype, scale) for dtype in FLOATS for scale in SCALES if dtype == np.float32 or scale in SCALES[:3:2]],
    ids=str,
)
HOST_IN_TORCH = (
    'the gradient of a table in host memory is not offered, it is a constant: use residency="device" to train it'
)
everywhere = pytest.mark.parametrize("residency", ["device", "host"])


def table_of(framework: Framework, weight: NDArray[Any], **options: Any) -> Any:
    return framework.package.EmbeddingTable(framework.array(weight), **options)


def every_16_bits(dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.arange(2**16, dtype=np.uint16).view(dtype)


def around_the_boundary(scale: float, reach: int) -> NDArray[Any]:
    """Float32 numbers of both signs whose products by the scale lie around 2^-126, and the least and largest ones."""
    least = int(np.float32(min(2.0**-126 / abs(scale), 2.0**127)).view(np.uint32))
    near = np.arange(max(0, least - reach), min(least + reach, 2**31))
    others = [np.arange(reach), 2**23 + np.arange(-reach, reach), 0x7F800000 + np.arange(-reach, reach)]
    bits = np.concatenate([near, *others]).astype(np.uint32)
    return np.concatenate([bits, bits | np.uint32(2**31)]).view(np.float32)


def exact_product(bits: int, dtype: str, scale: float) -> int:
    """The float32 bits that docs/tables.md asks for, by exact rational arithmetic."""
    value = decode(bits, dtype)
    if value == NAN:
        return encode(NAN, "float32")
    if isinstance(value, str):
        return encode(INF if (value == INF) == (scale > 0) else NEG_INF, "float32")
    return encode(round_float32(value * Fraction(scale)), "float32")


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_page_run(number):
    assert "assert" in EXAMPLES[number]
    exec(compile(EXAMPLES[number], str(PAGE), "exec"), {"__name__": "example"})


# The judge ---------------------------------------------------------------------------------------------
@products
def test_the_reference_is_the_exact_product_rounded_once(dtype, scale):
    x = around_the_boundary(scale, 150) if dtype == np.float32 else every_16_bits(dtype)[:: 3 if scale == 64 else 29]
    unsigned = x.view(f"uint{8 * dtype.itemsize}")
    expected = [exact_product(int(bits), dtype.name, scale) for bits in unsigned]
    assert_bits_equal(scaled.times(x, scale), np.uint32(expected).view(np.float32))


# The scale ---------------------------------------------------------------------------------------------
@products
@both
def test_a_scaled_row_is_rounded_once_to_float32_and_once_to_its_dtype(framework, dtype, scale):
    x = around_the_boundary(scale, 5000) if dtype == np.float32 else every_16_bits(dtype)
    weight = x[None]
    table = table_of(framework, weight, scale=scale)
    assert_bits_equal(table.fp32([0]), scaled.embedding_fp32([0], weight, scale))
    assert_bits_equal(table([0]), scaled.embedding([0], weight, scale))


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.float32)], ids=str)
def test_no_flag_of_the_processor_reaches_a_scaled_row(dtype):
    weight = (around_the_boundary(64.0, 5000) if dtype == np.float32 else every_16_bits(dtype))[None]
    assert torch.set_flush_denormal(True)
    try:
        rows = table_of(TORCH, weight, scale=64).fp32([0])
    finally:
        torch.set_flush_denormal(False)
    assert_bits_equal(rows, scaled.embedding_fp32([0], weight, 64))


@eager_and_compiled
@both
def test_a_compiled_table_gives_the_bits_of_eager_code(framework, compiled):
    weight, ids = random_bits(BFLOAT16, (9, 8)), np.array([[3, -1], [8, 9]], np.int32)

    def rows(ids: Any, weight: Any) -> tuple[Any, Any]:
        table = framework.package.EmbeddingTable(weight, scale=55.5)
        return table(ids, check_ids=False), table.fp32(ids, check_ids=False)

    if framework is TORCH:
        module = table_of(framework, weight, scale=55.5)
        found = (framework.compiled(module) if compiled else module)(torch.from_numpy(ids), check_ids=False)
        wide = scaled.embedding_fp32(ids, weight, 55.5, check_ids=False)
        assert_bits_equal(module.fp32(torch.from_numpy(ids), check_ids=False), wide)
    else:
        found, _ = (framework.compiled(rows) if compiled else rows)(ids, framework.array(weight))
    assert_bits_equal(found, scaled.embedding(ids, weight, 55.5, check_ids=False))


@given(st.data())
def test_any_scale_and_any_bits(data):
    dtype = data.draw(st.sampled_from(FLOATS))
    magnitude = st.floats(2.0**-126, 2.0**127, width=32)
    scale = data.draw(magnitude) * data.draw(st.sampled_from([1, -1]))
    weight = random_bits(dtype, (3, 40), data.draw(st.integers(0, 2**32 - 1)))
    expected = scaled.embedding([2, 0], weight, scale)
    assert_bits_equal(table_of(TORCH, weight, scale=scale)([2, 0]), expected)


# Gradients ---------------------------------------------------------------------------------------------
def gradient_of_table(framework: Framework, weight: Any, ids: Any, grad: Any, compiled: bool, **options: Any) -> Any:
    """By the framework's own autograd, of a table that is made of its argument."""

    def rows(weight: Any) -> Any:
        return framework.package.EmbeddingTable(weight, **options)(ids, check_ids=False)

    if framework is TORCH:
        module = table_of(framework, weight, **options)
        (framework.compiled(module) if compiled else module)(ids, check_ids=False).backward(framework.array(grad))
        return module.weight.grad
    arrays = [framework.array(weight)]
    return value_and_gradients(framework, rows, arrays, [0], framework.array(grad), compiled)[1][0]


@eager_and_compiled
@pytest.mark.parametrize("scale", [None, 55.5])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@both
def test_the_gradient_is_the_exact_sum_of_scaled_upstream_gradients(framework, dtype, scale, compiled):
    weight, ids = normal(7, 5, dtype=dtype), np.array([[0, 5, 1], [6, 5, 5], [2, 7, -1]])
    grad = normal(3, 3, 5, dtype=dtype, seed=1)
    grad[1, 1] = dtype.type(1e-4 if dtype == np.float16 else 2.0**-130)
    ids_there = torch.from_numpy(ids) if framework is TORCH else jnp.asarray(ids.astype(np.int32))
    actual = gradient_of_table(framework, weight, ids_there, grad, compiled, scale=scale, padding_idx=0)
    ids[ids == 0] = -1
    if scale is None:
        assert_bits_equal(actual, contract.embedding_grad(ids, grad, 7, dtype))
    else:
        assert_bits_equal(actual, scaled.embedding_grad(ids, grad, 7, dtype, scale))


# Where the rows stay -----------------------------------------------------------------------------------
@everywhere
@pytest.mark.parametrize("case", vector_cases("embedding", "embedding_fp32"))
@both
def test_every_vector(framework, case, residency):
    table = table_of(framework, array(case["weight"]), residency=residency)
    rows = (table.fp32 if case["op"] == "embedding_fp32" else table)(np.array(case["token_ids"]), check_ids=False)
    assert_bits_equal(rows, array(case["expect"]))


@pytest.mark.parametrize(("dtype", "scale"), [(FLOATS[0], None), (FLOATS[1], 64), (FLOATS[2], None)], ids=str)
@both
def test_a_table_in_host_memory_gives_the_bits_of_one_on_the_device(framework, dtype, scale):
    weight, ids = random_bits(dtype, (300, 33)), np.random.default_rng(0).integers(-1, 301, (2, 3, 5))
    there, here = (table_of(framework, weight, residency=kind, scale=scale) for kind in ("host", "device"))
    for path in ("__call__", "fp32"):
        expected = getattr(here, path)(ids, check_ids=False)
        assert_bits_equal(getattr(there, path)(ids, check_ids=False), as_numpy(expected), context=path)


@both
def test_a_table_in_host_memory_is_gathered_in_compiled_and_batched_code(framework):
    weight, ids = random_bits(BFLOAT16, (30, 3)), np.array([[3, 29], [30, -1]], np.int32)
    table = table_of(framework, weight, residency="host")
    expected, ids = contract.embedding(ids, weight, check_ids=False), framework.array(ids)
    assert_bits_equal(framework.compiled(lambda ids: table(ids))(ids), expected)
    assert_bits_equal(framework.vmap(lambda row: table(row, check_ids=False))(ids), expected)


def test_jit_takes_a_table_in_host_memory_as_a_constant():
    table, seen = table_of(JAX, random_bits(BFLOAT16, (30, 3)), residency="host"), []

    @jax.jit
    def rows(table: Any, ids: Any) -> Any:
        seen.append(type(table.weight))
        return table(ids)

    for _ in range(2):
        rows(table, jnp.arange(3))
    assert seen == [np.ndarray]
    assert [leaf.size for leaf in jax.tree.leaves(table)] == [0]


def test_a_host_table_does_not_follow_its_model():
    table = table_of(TORCH, random_bits(BFLOAT16, (30, 3)), residency="host")
    model = torch.nn.Sequential(table, torch.nn.Linear(3, 2)).to("meta", torch.float16)
    assert (model[1].weight.device.type, model[0].weight.device.type) == ("meta", "cpu")
    assert model[0].weight.dtype == torch.bfloat16
    assert [name for name, _ in model.named_parameters()] == ["1.weight", "1.bias"]
    assert "0.weight" in model.state_dict()


@everywhere
@both
def test_the_mechanism_says_what_runs(framework, residency):
    mechanism = table_of(framework, normal(3, 2), residency=residency).mechanism
    device = {"torch": "a gather on cpu", "jax": "XLA's gather on the device"}
    host = {
        "torch": "a gather on the host",
        "jax": "a NumPy gather on the host, its rows put on the default device; a callback in compiled code",
    }
    assert mechanism == (device if residency == "device" else host)[framework.name]


def test_the_gradient_of_a_host_table_is_refused_in_torch():
    table = table_of(TORCH, normal(3, 2), residency="host")
    table.weight.requires_grad_()
    with pytest.raises(NotImplementedError, match=HOST_IN_TORCH):
        table([1]).sum().backward()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_gradient_of_a_host_table_is_refused_in_jax(wrap):
    table = table_of(JAX, normal(3, 2), residency="host")
    with pytest.raises(NotImplementedError, match=HOST_IN_TORCH):
        wrap(jax.grad(lambda table: table(jnp.array([1])).sum()))(table)
    # What is computed from its rows has one.
    assert wrap(jax.grad(lambda x: (table(jnp.array([1])) * x).sum()))(jnp.float32(2)) == table([1]).sum()


# Ids and mistakes --------------------------------------------------------------------------------------
@everywhere
@both
def test_a_bad_id_is_an_index_error(framework, residency):
    table = table_of(framework, normal(4, 2), residency=residency)
    for ids in ([3, 4], np.array([3, 2**32 + 1]), framework.array(np.array([3, -1], np.int32))):
        with pytest.raises(IndexError, match=r"^token_ids\[1\] is .*; expected 0 <= id < 4, the vocab: check"):
            table(ids)
    with pytest.raises(TypeError, match=r"^token_ids has dtype bool; expected an integer dtype"):
        table.fp32([True])


@both
def test_an_empty_table_in_host_memory_has_no_row(framework):
    table = table_of(framework, normal(0, 2), residency="host")
    assert np.isnan(as_numpy(table([0, 1], check_ids=False))).all()
    assert table([]).shape == (0, 2)


NUMBER = "expected a finite number of magnitude 2^-126 and more in float32, or None"
MISTAKES = {
    "scale": [
        ("64", TypeError, "scale is of type str; expected a number or None"),
        (True, TypeError, "scale is of type bool; expected a number or None"),
        (0, ValueError, f"scale is 0; {NUMBER}"),
        (1e39, ValueError, f"scale is 1e+39; {NUMBER}"),
        (1e-40, ValueError, f"scale is 1e-40; {NUMBER}"),
        (float("nan"), ValueError, f"scale is nan; {NUMBER}"),
    ],
    "residency": [("disk", ValueError, "residency is 'disk'; expected 'device' or 'host'")],
    "device": [
        (
            "cpu", ValueError,
            "device is cpu and residency 'device'; expected a device for a table in host memory alone: move the weight "
            "itself",
        )
    ],
    "padding_idx": [
        (
            4, ValueError,
            "padding_idx is 4; expected 0 <= padding_idx < 4, the vocab: name the row that padding ids read, or use "
            "None",
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize(("option", "mistake"), [(name, m) for name, found in MISTAKES.items() for m in found])
@both
def test_the_error_says_what_is_wrong(framework, option, mistake):
    value, error, text = mistake
    with pytest.raises(error) as raised:
        table_of(framework, normal(4, 2), **{option: value})
    assert str(raised.value) == text


@both
def test_a_dtype_is_for_quantized_tables(framework):
    with pytest.raises(ValueError) as raised:
        table_of(framework, normal(4, 2), dtype=getattr(torch if framework is TORCH else jnp, "bfloat16"))  # noqa: B009
    assert str(raised.value) == "dtype is for a QuantizedTable; expected None: the rows have the weight's dtype"


@both
def test_an_unknown_device_of_a_host_table_is_refused(framework):
    with pytest.raises(ValueError, match=r"^no device 'tpu'; expected 'cpu', 'cuda' or 'cuda:N'$"):
        table_of(framework, normal(4, 2), residency="host", device="tpu")


def test_a_traced_weight_cannot_stay_on_the_host():
    with pytest.raises(TypeError, match=r"^weight is traced; expected an array in host memory: make the table outside"):
        jax.jit(lambda w: JAX.package.EmbeddingTable(w, residency="host")([0]))(jnp.ones((2, 2)))
