"""On any bit patterns, in any mix of float types, both packages give the bits of the NumPy contract."""

from typing import Any

import numpy as np
import pytest
from exact_inputs import (
    NUMPY_TYPES,
    any_patterns,
    digit_counts,
    dtypes,
    examples,
    matrices,
    matrix_array,
    to_array,
    vector_array,
    vectors,
)
from frameworks import JAX, TORCH, Framework, both
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

# JAX compiles each shape with each mix of types, so it gets one shape and one mix in a test; every pair of types of
# hidden and weight is there. (hidden, weight, bias, digits, rows, width, vocab)
MIXES = [
    ("bfloat16", "bfloat16", None, 3, 3, 130, 4),
    ("bfloat16", "float16", "float32", 2, 2, 65, 3),
    ("bfloat16", "float32", "bfloat16", 4, 1, 64, 5),
    ("float16", "bfloat16", "float16", 3, 2, 17, 3),
    ("float16", "float16", None, 4, 3, 33, 2),
    ("float16", "float32", "bfloat16", 2, 2, 3, 4),
    ("float32", "bfloat16", "float16", 4, 1, 1, 3),
    ("float32", "float16", "float32", 3, 2, 63, 3),
    ("float32", "float32", "float32", 4, 3, 100, 3),
]
OPS = ("lm_head", "lm_head_fp32")


@st.composite
def arguments(draw: Any, mix: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    hidden, weight, bias, digits, rows, width, vocab = mix
    return (
        matrix_array(draw(matrices(hidden, rows, width, digits)), width),
        matrix_array(draw(matrices(weight, vocab, width, digits)), width),
        None if bias is None else vector_array(draw(vectors(bias, vocab))),
    )


mixes = st.tuples(
    dtypes,
    dtypes,
    st.one_of(st.none(), dtypes),
    digit_counts,
    st.integers(1, 4),
    st.integers(1, 130),
    st.integers(1, 5),
)


def check_lm_head(framework: Framework, op: str, args: Any, digits: int) -> None:
    assert_bits_equal(framework.run(op, *args, digits=digits), getattr(contract, op)(*args, digits=digits))


@examples(100)
@given(st.data())
def test_lm_head_in_torch(data):
    mix = data.draw(mixes)
    check_lm_head(TORCH, data.draw(st.sampled_from(OPS)), data.draw(arguments(mix)), mix[3])


@pytest.mark.parametrize("implementation", ["float64", "int8"])
@examples(50)
@given(st.data())
def test_lm_head_in_each_implementation_of_torch(implementation, data):
    mix = data.draw(mixes)
    args = data.draw(arguments(mix))
    op = TORCH.package.get_op("lm_head", implementation=implementation)
    logits = op(*(None if x is None else TORCH.array(x) for x in args), digits=mix[3])
    assert_bits_equal(logits, contract.lm_head(*args, digits=mix[3]))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(map(str, mix)))
@examples(25)
@given(st.data())
def test_lm_head_in_jax(op, mix, data):
    check_lm_head(JAX, op, data.draw(arguments(mix)), mix[3])


# Alignment ---------------------------------------------------------------------------------------------
def digits_of(planes: NDArray[np.int8]) -> NDArray[np.int64]:
    return sum(plane.astype(np.int64) << (7 * i) for i, plane in enumerate(planes))


@pytest.mark.parametrize("digits", [2, 3, 4])
@pytest.mark.parametrize("dtype", NUMPY_TYPES)
@both
@examples(25)
@given(st.data())
def test_align(framework, dtype, digits, data):
    x = matrix_array(data.draw(matrices(dtype, 4, 65, digits)), 65)
    actual, expected = framework.package.align(framework.array(x), digits), contract.align(x, digits)
    planes = as_numpy(actual.planes)
    assert_bits_equal(digits_of(planes[:, :, :65]).astype(np.int32), expected.q, context="the integers")
    assert_bits_equal(actual.exponent, expected.exponent, context="the exponents")
    assert_bits_equal(actual.nonfinite, expected.nonfinite, context="the flags")
    assert planes[:-1].max(initial=0) <= 63
    assert planes.min() >= -64
    assert not planes[:, :, 65:].any()


# Embedding ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", ["embedding", "embedding_fp32"])
@pytest.mark.parametrize("dtype", NUMPY_TYPES)
@both
@examples(25)
@given(st.data())
def test_embedding(framework, dtype, op, data):
    bits = data.draw(st.lists(any_patterns(dtype), min_size=5 * 3, max_size=5 * 3))
    table = to_array(dtype, bits, (5, 3))
    tokens = st.one_of(st.integers(0, 4), st.integers(-(2**63), 2**63 - 1))
    ids = np.array(data.draw(st.lists(tokens, min_size=8, max_size=8)), np.int64)
    actual = framework.run(op, ids, table, check_ids=False)
    assert_bits_equal(actual, getattr(contract, op)(ids, table, check_ids=False))
