"""A table of int8 values with one scale a row gives exact products rounded once, as rows, as a weight and aligned."""

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from exact_reference import FORMATS, NAN, SMALLEST, decode, encode, floor_log2
from frameworks import BFLOAT16, FLOATS, JAX, TORCH, Framework, both, eager_and_compiled
from gradients import normal, pull_back
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from crosscheck import contract, scaled
from crosscheck import quantized as reference
from crosscheck.bits import as_numpy, assert_bits_equal
from crosscheck.rounding import narrow

CONSTANT = "the gradient of a quantized table is not offered, it is a constant: train the weight itself"
INT8 = np.arange(-128, 128, dtype=np.int8)
kinds = pytest.mark.parametrize("kind", ["power_of_two", "float32"])


def odd_scales() -> NDArray[Any]:
    """Float32 bit patterns: subnormals, the normal ones around 2^-126, those whose products lie around limits, NaN."""
    draw = np.random.default_rng(0).integers(0, 2**32, 300)
    edges = [2.0**-24 / 127, 2.0**-25 / 3, 2.0**-126 / 127, 2.0**-126 / 5, 65504 / 127, 2.0**128 / 127, 2.0**128 / 100]
    near = [int(np.float32(edge).view(np.uint32)) + step for edge in edges for step in range(-3, 4)]
    others = [*range(4), *range(2**23 - 3, 2**23 + 3), 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 2**31]
    return np.concatenate([draw, near, others]).astype(np.uint32).view(np.float32)


POWERS = np.arange(-128, 128).astype(np.int8)
SCALES = {"power_of_two": POWERS, "float32": odd_scales()}


def quantized(framework: Framework, values: NDArray[Any], scale: NDArray[Any]) -> Any:
    array = torch.from_numpy if framework is TORCH else jnp.asarray
    return framework.package.QuantizedTable(array(values.copy()), array(scale.copy()))


def dtype_of(framework: Framework, dtype: np.dtype[Any]) -> Any:
    return getattr(torch if framework is TORCH else jnp, dtype.name)


def drawn(kind: str, vocab: int, width: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    values = rng.integers(-128, 128, (vocab, width)).astype(np.int8)
    scale = rng.integers(-20, 5, vocab) if kind == "power_of_two" else rng.standard_normal(vocab)
    return values, scale.astype(np.int8 if kind == "power_of_two" else np.float32)


def exact(value: int, scale: Any, dtype: str) -> int:
    """The bits that docs/tables.md asks for: rounded once, then below 2^-126 +0."""
    factor = Fraction(2) ** int(scale) if scale.dtype == np.int8 else decode(int(scale.view(np.uint32)), "float32")
    if isinstance(factor, str):
        return encode(NAN, dtype)
    product = value * factor
    if product == 0:
        return 0
    fraction_bits = FORMATS[dtype][1]
    last = floor_log2(abs(product)) - fraction_bits
    if dtype == "float16":
        last = max(last, -24)
    rounded = round(product / Fraction(2) ** last) * Fraction(2) ** last
    return 0 if abs(rounded) < SMALLEST else encode(rounded, dtype)


# The judge ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@kinds
def test_the_reference_is_the_exact_product_rounded_once(kind, dtype):
    values, scale = INT8[::7], SCALES[kind]
    rows = reference.dequantized(np.tile(values, (len(scale), 1)), scale, dtype)
    expected = [[exact(int(value), factor, dtype.name) for value in values] for factor in scale]
    assert_bits_equal(rows, np.array(expected, f"uint{8 * dtype.itemsize}").view(dtype))


# Rows --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@kinds
@both
def test_every_value_and_odd_scales(framework, kind, dtype):
    scale = SCALES[kind]
    values = np.tile(INT8, (len(scale), 1))
    table = quantized(framework, values, scale)
    assert_bits_equal(table.dequantized(dtype_of(framework, dtype)), reference.dequantized(values, scale, dtype))


@pytest.mark.parametrize("residency", ["device", "host"])
@pytest.mark.parametrize("scale_by", [None, 55.5])
@kinds
@both
def test_an_embedding_table_gathers_and_dequantizes(framework, kind, scale_by, residency):
    (values, scale), ids = drawn(kind, 40, 7), np.array([[0, 39], [-1, 40]])
    for dtype in FLOATS:
        options = {"residency": residency, "scale": scale_by, "dtype": dtype_of(framework, dtype)}
        table = framework.package.EmbeddingTable(quantized(framework, values, scale), **options)
        wide = reference.embedding(ids, values, scale, np.float32, check_ids=False)
        expected = reference.embedding(ids, values, scale, dtype, check_ids=False)
        if scale_by is not None:
            wide = scaled.times(wide, scale_by)
            expected = narrow(wide, dtype)
        assert_bits_equal(table(ids, check_ids=False), expected)
        assert_bits_equal(table.fp32(ids, check_ids=False), wide)


@eager_and_compiled
@both
def test_rows_of_bfloat16_unless_named(framework, compiled):
    (values, scale), ids = drawn("float32", 40, 7), framework.array(np.array([[0, 39], [3, 3]], np.int32))
    table = framework.package.EmbeddingTable(quantized(framework, values, scale))
    rows = (framework.compiled(lambda ids: table(ids)) if compiled else table)(ids)
    expected = reference.embedding(as_numpy(ids), values, scale, BFLOAT16)
    assert_bits_equal(rows, expected)
    assert_bits_equal(framework.vmap(lambda row: table(row))(ids), expected)


@both
def test_a_bad_id_is_an_index_error(framework):
    table = framework.package.EmbeddingTable(quantized(framework, *drawn("float32", 4, 3)))
    with pytest.raises(IndexError, match=r"^token_ids\[1\] is 4; expected 0 <= id < 4, the vocab: check the tokenizer"):
        table([3, 4])


def test_no_flag_of_the_processor_reaches_a_row():
    scale = SCALES["float32"]
    values = np.tile(INT8, (len(scale), 1))
    table = quantized(TORCH, values, scale)
    assert torch.set_flush_denormal(True)
    try:
        rows = [table.dequantized(dtype_of(TORCH, dtype)) for dtype in FLOATS]
    finally:
        torch.set_flush_denormal(False)
    for row, dtype in zip(rows, FLOATS, strict=True):
        assert_bits_equal(row, reference.dequantized(values, scale, dtype))


# The LM head -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("digits", [2, 3, 4])
@kinds
@both
def test_the_aligned_table_is_that_of_its_float32_rows(framework, kind, digits):
    scale = SCALES[kind]
    values = np.random.default_rng(1).choice(INT8, (len(scale), 3))
    values[[3, 5]] = [[0], [1]]
    aligned = framework.package.align(quantized(framework, values, scale), digits)
    expected = contract.align(reference.dequantized(values, scale, np.float32), digits)
    planes = as_numpy(aligned.planes)[:, :, :3].astype(np.int32)
    assert_bits_equal(sum(plane << 7 * i for i, plane in enumerate(planes)), expected.q)
    assert_bits_equal(aligned.exponent, expected.exponent)
    assert_bits_equal(as_numpy(aligned.nonfinite), expected.nonfinite)
    assert aligned.shape == values.shape


@pytest.mark.parametrize(
    ("kind", "dtype"), [("power_of_two", FLOATS[0]), ("float32", FLOATS[1]), ("power_of_two", FLOATS[2])], ids=str
)
@both
def test_logits_and_gradients_are_those_of_the_float32_rows(framework, kind, dtype):
    (values, scale), rows = drawn(kind, 300, 19), 5
    weight = reference.dequantized(values, scale, np.float32)
    hidden, bias, grad = normal(rows, 19, dtype=dtype), normal(300, dtype=dtype), normal(rows, 300, dtype=dtype, seed=1)
    table = quantized(framework, values, scale)
    given_ = [framework.array(hidden), table, framework.array(bias)]
    assert_bits_equal(framework.package.lm_head(*given_), contract.lm_head(hidden, weight, bias))
    assert_bits_equal(framework.package.lm_head_fp32(*given_), contract.lm_head_fp32(hidden, weight, bias))
    found = pull_back(framework, framework.package.lm_head, given_, [0, 2], framework.array(grad))
    of_hidden, _, of_bias = contract.lm_head_grads(grad, hidden, weight, dtype)
    assert_bits_equal(found[0], of_hidden)
    assert_bits_equal(found[1], of_bias)


@both
def test_a_compiled_and_a_batched_head_and_one_of_an_operator(framework):
    values, scale = drawn("power_of_two", 20, 6)
    hidden, table = normal(4, 6), quantized(framework, values, scale)
    expected = contract.lm_head(hidden, reference.dequantized(values, scale, np.float32))
    assert_bits_equal(framework.package.get_op("lm_head")(framework.array(hidden), table), expected)
    head, hidden = framework.package.lm_head, framework.array(hidden)
    assert_bits_equal(framework.compiled(lambda h: head(h, table))(hidden), expected)
    assert_bits_equal(framework.vmap(lambda row: head(row, table))(hidden), expected)


def test_the_gradient_is_refused_in_torch():
    scale = torch.ones(4, requires_grad=True)
    table, hidden = TORCH.package.QuantizedTable(torch.ones(4, 3, dtype=torch.int8), scale), torch.ones(2, 3)
    for call in (
        lambda: TORCH.package.lm_head(hidden, table),
        lambda: TORCH.package.lm_head(hidden, TORCH.package.align(table, 4)),
        lambda: TORCH.package.EmbeddingTable(table)([1]),
        lambda: table.dequantized(),
    ):
        with pytest.raises(NotImplementedError, match=CONSTANT):
            call().sum().backward()


def test_the_gradient_is_refused_in_jax():
    values, hidden = jnp.ones((4, 3), jnp.int8), jnp.ones((2, 3))
    table_of, package = JAX.package.QuantizedTable, JAX.package
    for call in (
        lambda scale: package.lm_head(hidden, table_of(values, scale)),
        lambda scale: package.lm_head(hidden, package.align(table_of(values, scale), 4)),
        lambda scale: package.EmbeddingTable(table_of(values, scale))([1]),
        lambda scale: table_of(values, scale).dequantized(),
    ):
        with pytest.raises(NotImplementedError, match=CONSTANT):
            jax.grad(lambda scale, call=call: call(scale).sum())(jnp.ones(4))


# Making one --------------------------------------------------------------------------------------------
@given(st.data())
@kinds
def test_a_value_is_the_exact_quotient_rounded_to_an_integer(kind, data):
    bits = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6))
    weight = np.array([bits], np.uint32).view(np.float32)
    weight[~np.isfinite(weight)] = 1
    table = TORCH.package.quantize(TORCH.array(weight), kind)
    members = [decode(int(x), "float32") for x in weight.view(np.uint32)[0]]
    members = [x if abs(x) >= SMALLEST else Fraction(0) for x in members]
    largest = max(abs(x) for x in members)
    if kind == "power_of_two":
        power = next((k for k in range(-128, 128) if largest <= 127 * Fraction(2) ** k), 0) if largest else 0
        assert int(table.scale[0]) == power
        factor = Fraction(2) ** power
    else:
        factor = decode(encode(largest / 127, "float32"), "float32") if largest / 127 >= SMALLEST else Fraction(0)
        assert Fraction(float(table.scale[0])) == factor
    expected = [round(x / factor) if factor else 0 for x in members]
    assert table.values[0].tolist() == expected


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@kinds
def test_both_packages_make_the_same_table(kind, dtype):
    weight = (normal(50, 33) * np.exp2(np.random.default_rng(1).integers(-9, 9, (50, 1)))).astype(dtype)
    weight[7] = 0
    ours, twin = (framework.package.quantize(framework.array(weight), kind) for framework in (TORCH, JAX))
    assert_bits_equal(ours.values, as_numpy(twin.values))
    assert_bits_equal(ours.scale, as_numpy(twin.scale))


@both
def test_it_moves_with_its_model_and_is_never_cast(framework):
    table = quantized(framework, *drawn("float32", 4, 3))
    if framework is TORCH:
        model = torch.nn.Sequential(framework.package.EmbeddingTable(table)).half()
        assert [x.dtype for x in model.state_dict().values()] == [torch.int8, torch.float32]
        assert model.to("meta")[0].weight.device.type == "meta"
    else:
        leaves, tree = jax.tree.flatten(table)
        assert [x.dtype.name for x in leaves] == ["int8", "float32"]
        assert jax.tree.unflatten(tree, leaves).shape == (4, 3)


MISTAKES = {
    "a list": (lambda p, a: p.QuantizedTable([[1]], a(np.ones(1, np.float32))), TypeError,
               "values is of type list; expected an array of shape [V, H]: convert it first"),
    "unsigned values": (lambda p, a: p.QuantizedTable(a(np.ones((1, 2), np.uint8)), a(np.ones(1, np.float32))),
                        TypeError, "values has dtype uint8; expected int8: quantize(weight) makes them"),
    "scale of bytes": (lambda p, a: p.QuantizedTable(a(np.ones((1, 2), np.int8)), a(np.ones(1, np.float16))), TypeError,
                       "scale has dtype float16; expected float32, or int8, the exponents of powers of two"),
    "values of one dimension": (lambda p, a: p.QuantizedTable(a(np.ones(2, np.int8)), a(np.ones(2, np.float32))),
                                ValueError, "values has shape (2,); expected [V, H]: reshape it first"),
    "scales of another length": (lambda p, a: p.QuantizedTable(a(np.ones((2, 3), np.int8)), a(np.ones(3, np.float32))),
                                 ValueError, "scale has shape (3,); expected (2,), one a row of values"),
    "an unknown scale": (lambda p, a: p.quantize(a(np.ones((2, 3), np.float32)), "int4"), ValueError,
                         "scale is 'int4'; expected 'power_of_two' or 'float32'"),
    "an infinite weight": (lambda p, a: p.quantize(a(np.float32([[1], [np.inf]]))), ValueError,
                           "weight is not finite in row 1; expected finite numbers"),
    "NaN": (lambda p, a: p.quantize(a(np.float32([[np.nan]])), "float32"), ValueError,
            "weight is not finite in row 0; expected finite numbers"),
    "a weight of integers": (lambda p, a: p.quantize(a(np.ones((2, 3), np.int8))), TypeError,
                             "weight has dtype int8; expected bfloat16, float16 or float32: convert it first"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
@both
def test_the_error_says_what_is_wrong(framework, name):
    call, error, text = MISTAKES[name]
    with pytest.raises(error) as raised:
        call(framework.package, framework.array)
    assert str(raised.value) == text
