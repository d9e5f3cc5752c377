"""Every Triton kernel compiles for CUDA, down to PTX, without a GPU."""

from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="not run: Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from rlk_torch.alignment_triton import align_kernel  # noqa: E402
from rlk_torch.digit_sums_triton import many_rows_kernel, plane_sums_kernel  # noqa: E402
from rlk_torch.embedding_grad_triton import table_gradient_kernel  # noqa: E402
from rlk_torch.embedding_triton import gather_kernel  # noqa: E402
from rlk_torch.four_digits_triton import combine_kernel, products_kernel  # noqa: E402
from rlk_torch.lm_head_grad_triton import part_kernel  # noqa: E402
from rlk_torch.logprob_triton import gradients_kernel, sums_kernel  # noqa: E402
from rlk_torch.products_triton import _config, few_rows_kernel  # noqa: E402
from rlk_torch.quantized_triton import quantized_rows_kernel  # noqa: E402

BITS = {"bfloat16": "*i16", "float16": "*i16", "float32": "*i32"}
WIDE = (
    "row_stride",
    "scale_stride",
    "column_stride",
    "plane_stride",
    "hidden_plane",
    "weight_plane",
    "out_stride",
    "count",
    "product_stride",
)
POINTERS = {
    "ids": "*i64", "planes": "*i8", "hidden": "*i8", "weight": "*i8", "exponents": "*i32", "flags": "*i8",
    "hidden_exponents": "*i32", "hidden_flags": "*i8", "weight_exponents": "*i32", "weight_flags": "*i8",
}  # fmt: skip


def ptx(kernel: Any, constants: dict[str, Any], types: dict[str, str], **options: int) -> str:
    known = {**POINTERS, **dict.fromkeys(WIDE, "i64"), **types}
    signature = {name: "constexpr" if name in constants else known.get(name, "i32") for name in kernel.arg_names}
    indices = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=indices)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


@pytest.mark.parametrize("widen", ["", "bfloat16", "float16"])
def test_the_gather_compiles(widen):
    constants = {"WIDEN": widen, "SCALED": False, "OUT": "float32", "ROWS": 2, "COLUMNS": 1024}
    types = {"table": "*i16", "out": "*i32" if widen else "*i16", "significand": "fp32"}
    assert "st.global" in ptx(gather_kernel, constants, types)


@pytest.mark.parametrize("out", BITS)
@pytest.mark.parametrize("dtype", BITS)
def test_the_scaled_gather_rounds_its_product_once(dtype, out):
    constants = {"WIDEN": dtype, "SCALED": True, "OUT": out, "ROWS": 2, "COLUMNS": 1024}
    text = ptx(gather_kernel, constants, {"table": BITS[dtype], "out": BITS[out], "significand": "fp32"})
    assert "mul.f32" in text or "mul.rn.f32" in text
    assert "fma.rn" not in text and ".ftz" not in text


@pytest.mark.parametrize("digits", [2, 3, 4])
@pytest.mark.parametrize("dtype", BITS)
def test_the_alignment_compiles(dtype, digits):
    constants = {"DTYPE": dtype, "DIGITS": digits, "BLOCK": 1024, "ONE_READ": digits == 3}
    assert "st.global" in ptx(align_kernel, constants, {"x": BITS[dtype]})


@pytest.mark.parametrize("rows", [16, 32, 64])
@pytest.mark.parametrize("digits", [2, 3, 4])
def test_the_products_of_few_rows_use_int8_matrix_units(digits, rows):
    config = _config(digits, rows)
    options = {name: config.pop(name) for name in ("num_warps", "num_stages")}
    constants = {"DIGITS": digits, "TWO_WORDS": digits == 4, "BIAS": "float16", "DTYPE": "bfloat16", "ROWS": rows}
    text = ptx(few_rows_kernel, {**constants, **config}, {"bias": "*i16", "out": "*i16"}, **options)
    assert "s32.s8.s8" in text


@pytest.mark.parametrize("digits", [2, 3])
def test_the_products_of_many_rows_use_int8_matrix_units(digits):
    tile = "tensordesc<i8[128, 128]>"
    types = dict.fromkeys(("hidden", "hidden_sums", "weight", "weight_sums"), tile) | {"bias": "*i32", "out": "*i32"}
    constants = {"DIGITS": digits, "BIAS": "float32", "DTYPE": "float32"}
    constants |= {"ROWS": 128, "COLUMNS": 128, "DEPTH": 128, "GROUP": 16}
    assert "s32.s8.s8" in ptx(many_rows_kernel, constants, types, num_warps=8, num_stages=4)


def test_the_products_of_four_digits_use_int8_matrix_units():
    types = {"left": "tensordesc<i8[128, 128]>", "right": "tensordesc<i8[256, 128]>"}
    types["out"] = "tensordesc<i32[1, 128, 256]>"
    constants = {"ROWS": 128, "COLUMNS": 256, "DEPTH": 128, "GROUP": 16}
    assert "s32.s8.s8" in ptx(products_kernel, constants, types, num_warps=8, num_stages=4)


@pytest.mark.parametrize(("first", "last"), [(True, True), (True, False), (False, False), (False, True)])
def test_what_puts_four_digits_together_compiles(first, last):
    types = {"products": "*i32", "lows": "*fp64", "highs": "*fp64", "bias": "*i32", "out": "*i32"}
    types |= dict.fromkeys(("left_exponents", "right_exponents"), "*i32")
    types |= dict.fromkeys(("left_flags", "right_flags"), "*i8")
    constants = {"FIRST": first, "LAST": last, "BIAS": "float32", "DTYPE": "float32", "COLUMNS": 1024}
    assert "st.global" in ptx(combine_kernel, constants, types)


@pytest.mark.parametrize("dtype", BITS)
def test_the_digits_of_a_part_compile(dtype):
    constants = {"DTYPE": dtype, "ROWS": 64, "COLUMNS": 128}
    assert "st.global" in ptx(part_kernel, constants, {"x": BITS[dtype]})


@pytest.mark.parametrize(("step", "instruction"), [(0, "atom.global"), (1, "add.u64"), (2, "st.global")])
@pytest.mark.parametrize("dtype", BITS)
def test_the_gradient_of_a_table_compiles(dtype, step, instruction):
    constants = {"STEP": step, "DTYPE": dtype, "OUT": dtype, "CHUNK": 64, "COLUMNS": 1024}
    pointers = dict.fromkeys(("order", "starts", "ends", "sums"), "*i64")
    types = {"grad": BITS[dtype], "out": BITS[dtype], "tops": "*i32", **pointers}
    assert instruction in ptx(table_gradient_kernel, constants, types, num_warps=4)


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_the_sums_of_digits_compile(digits):
    assert "st.global" in ptx(plane_sums_kernel, {"DIGITS": digits, "BLOCK": 4096}, {"out": "*i8"})


@pytest.mark.parametrize("dtype", BITS)
def test_the_sums_of_log_probabilities_compile(dtype):
    types = {"logits": BITS[dtype], "top_out": "*i32", "total_out": "*i64"}
    assert "st.global" in ptx(sums_kernel, {"DTYPE": dtype, "TILE": 2048}, types, num_warps=8)


@pytest.mark.parametrize("dtype", BITS)
def test_the_gradients_of_log_probabilities_compile(dtype):
    types = {"logits": BITS[dtype], "out": BITS[dtype], "targets": "*i64", "totals": "*i64"}
    types |= dict.fromkeys(("significands", "tops", "reciprocals"), "*fp32")
    assert "st.global" in ptx(gradients_kernel, {"DTYPE": dtype, "TILE": 2048}, types, num_warps=8)


@pytest.mark.parametrize("exponents", [True, False])
@pytest.mark.parametrize("out", BITS)
@pytest.mark.parametrize("scaled", [True, False])
def test_the_gather_of_a_quantized_table_compiles(scaled, out, exponents):
    constants = {"EXPONENTS": exponents, "SCALED": scaled, "OUT": out, "ROWS": 2, "COLUMNS": 1024}
    types = {"values": "*i8", "scales": "*i8" if exponents else "*i32", "out": BITS[out], "significand": "fp32"}
    text = ptx(quantized_rows_kernel, constants, types)
    assert "st.global" in text and ".ftz" not in text
