"""A token id names its own row or none: it never wraps, clamps, narrows or masks, and a bad one is reported."""

import re
from typing import Any

import jax
import numpy as np
import pytest
import torch
from frameworks import FLOATS, INTEGERS, JAX, TORCH, both, eager_and_compiled
from numpy.typing import NDArray

from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

W = np.arange(12, dtype=np.float32).reshape(4, 3)
TALL = np.arange(600, dtype=np.float32).reshape(300, 2)

BAD = [4, -1, -5, -100, 2**31 - 1, 2**31, -(2**31), 2**32 + 1, -(2**32) + 1, 2**63 - 1, -(2**63)]
in_32_bits = [token for token in BAD if -(2**31) <= token < 2**31]
x64 = pytest.mark.parametrize("x64", [False, True], ids=["x64 off", "x64 on"])


def sentence(token: int, position: str, vocab: int) -> str:
    return (
        f"token_ids{position} is {token}; expected 0 <= id < {vocab}, the vocab: check the tokenizer against the "
        "table, or mask padding ids first"
    )


def message(error: pytest.ExceptionInfo[Any]) -> str:
    return str(error.value)


def poisoned(table: NDArray[Any], ids: Any) -> NDArray[Any]:
    """What the contract gives where the ids cannot be read: rows of quiet NaN for the bad ones."""
    return contract.embedding(ids, table, check_ids=False)


# Ids that can be read ----------------------------------------------------------------------------------
@x64
@pytest.mark.parametrize("token", BAD)
@pytest.mark.parametrize("form", [list, np.array], ids=["list", "NumPy"])
@both
def test_a_bad_id_is_an_index_error(framework, form, token, x64):
    with jax.enable_x64(x64), pytest.raises(IndexError) as error:
        framework.run("embedding", form([3, token]), W)
    assert message(error) == sentence(token, "[1]", 4)


@pytest.mark.parametrize("token", in_32_bits)
@both
def test_a_bad_id_in_an_array_of_the_framework_is_an_index_error(framework, token):
    with pytest.raises(IndexError) as error:
        framework.run("embedding", framework.array(np.array([3, token], np.int32)), W)
    assert message(error) == sentence(token, "[1]", 4)


@pytest.mark.parametrize("form", [lambda ids: ids, np.array], ids=["list", "NumPy"])
@both
def test_the_largest_unsigned_id_is_an_index_error(framework, form):
    with pytest.raises(IndexError) as error:
        framework.run("embedding", form([2**64 - 1]), W)
    assert message(error) == sentence(2**64 - 1, "[0]", 4)


def test_an_unsigned_tensor_is_read_before_it_is_widened():
    with pytest.raises(IndexError) as error:
        TORCH.run("embedding", torch.tensor([2**64 - 1], dtype=torch.uint64), W)
    assert message(error) == sentence(2**64 - 1, "[0]", 4)


@pytest.mark.parametrize(
    ("ids", "position"), [(7, ""), ([[0, 1], [7, 9]], "[1, 0]"), ([[[0, 7]]], "[0, 0, 1]")], ids=["scalar", "2d", "3d"]
)
@both
def test_the_first_bad_id_is_named_with_its_position(framework, ids, position):
    with pytest.raises(IndexError) as error:
        framework.run("embedding_fp32", ids, W)
    assert message(error) == sentence(7, position, 4)


@both
def test_no_id_is_good_where_the_vocab_is_empty(framework):
    with pytest.raises(IndexError) as error:
        framework.run("embedding", [0], W[:0])
    assert message(error) == sentence(0, "[0]", 0)


@both
def test_a_good_call_follows_a_bad_one(framework):
    with pytest.raises(IndexError):
        framework.run("embedding", [4], W)
    assert_bits_equal(framework.run("embedding", [3], W), W[[3]])


def test_ids_known_when_jax_traces_are_read():
    with pytest.raises(IndexError, match=re.escape(sentence(7, "[1]", 4))):
        jax.jit(lambda weight: JAX.package.embedding(np.array([1, 7]), weight))(W)


# Ids that cannot, or are not to be, read ---------------------------------------------------------------
@pytest.mark.parametrize("op", ["embedding", "embedding_fp32"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@both
def test_unchecked_bad_ids_give_the_quiet_nan(framework, dtype, op):
    table = W.astype(dtype)
    expected = getattr(contract, op)([1, *BAD, 2], table, check_ids=False)
    assert_bits_equal(framework.run(op, np.array([1, *BAD, 2]), table, check_ids=False), expected)


@both
def test_traced_bad_ids_give_the_quiet_nan(framework):
    ids = np.array([1, *in_32_bits, 2], np.int32)
    compiled = framework.compiled(framework.package.embedding)
    assert_bits_equal(compiled(framework.array(ids), framework.array(W)), poisoned(W, ids))


@both
def test_traced_bad_ids_of_64_bits_give_the_quiet_nan(framework):
    ids = np.array([1, *BAD, 2])
    with jax.enable_x64(True):
        compiled = framework.compiled(framework.package.embedding)
        actual = as_numpy(compiled(framework.array(ids), framework.array(W)))
    assert_bits_equal(actual, poisoned(W, ids))


def test_vmap_traces_the_ids_in_jax():
    ids = np.array([[1, 4], [-1, 2]], np.int32)
    batched = JAX.vmap(lambda row: JAX.package.embedding(row, JAX.array(W)))
    assert_bits_equal(batched(JAX.array(ids)), poisoned(W, ids))


def test_vmap_leaves_the_ids_readable_in_torch():
    batched = TORCH.vmap(lambda row: TORCH.package.embedding(row, TORCH.array(W)))
    with pytest.raises(IndexError) as error:
        batched(torch.tensor([[1, 2], [3, 4]]))
    assert message(error) == sentence(4, "[1, 1]", 4)


@pytest.mark.parametrize("form", [list, np.array], ids=["list", "NumPy"])
def test_ids_known_when_torch_compiles(form):
    compiled = TORCH.compiled(lambda weight: TORCH.package.embedding(form([1, 7]), weight))
    assert_bits_equal(compiled(TORCH.array(W)), poisoned(W, [1, 7]))


# Dtypes ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@both
def test_every_integer_dtype_gathers_from_numpy(framework, dtype):
    ids = np.array([100, 1, 127], dtype)
    assert_bits_equal(framework.run("embedding", ids, TALL), TALL[[100, 1, 127]])


@eager_and_compiled
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@both
def test_every_integer_dtype_gathers_from_an_array_of_the_framework(framework, dtype, compiled):
    with jax.enable_x64(True):
        ids = framework.array(np.array([100, 1, 127], dtype))
        actual = framework.run("embedding", ids, TALL, compiled=compiled)
    assert_bits_equal(actual, TALL[[100, 1, 127]])


@both
def test_bytes_are_ids_and_no_mask(framework):
    ids = framework.array(np.array([1, 0, 1, 1], np.uint8))
    assert_bits_equal(framework.run("embedding", ids, W), W[[1, 0, 1, 1]])


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        (1.0, "float64"), ([0.0, 1.0], "float64"), (True, "bool"), ([True, False], "bool"), (None, "object"),
        ("a", "str32"), (np.array([1], np.float32), "float32"), (np.array([True]), "bool"),
    ],
)  # fmt: skip
@both
def test_other_types_are_a_type_error(framework, ids, dtype):
    with pytest.raises(TypeError) as error:
        framework.package.embedding(ids, framework.array(W))
    assert message(error) == (
        f"token_ids has dtype {dtype}; expected an integer dtype: convert the ids, or use them as a mask instead"
    )


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32"])
@both
def test_arrays_of_other_dtypes_are_a_type_error(framework, dtype):
    with pytest.raises(TypeError) as error:
        framework.package.embedding(framework.array(np.array([1], dtype)), framework.array(W))
    assert message(error) == (
        f"token_ids has dtype {dtype}; expected an integer dtype: convert the ids, or use them as a mask instead"
    )


# Memory ------------------------------------------------------------------------------------------------
def read_only(ids: NDArray[Any]) -> NDArray[Any]:
    ids.flags.writeable = False
    return ids


@pytest.mark.parametrize(
    "ids",
    [
        read_only(np.array([2, 0, 1])), np.array([2, 0, 1], ">i8"), np.array([1, 0, 2])[::-1],
        np.array([2, 9, 0, 9, 1])[::2], np.array([2, 0, 1], np.ulonglong), (2, 0, 1), [np.int8(2), np.int64(0), 1],
    ],
    ids=["read-only", "big-endian", "reversed", "strided", "unsigned long long", "tuple", "list of NumPy integers"],
)  # fmt: skip
@both
def test_ids_in_any_memory_gather(framework, ids):
    assert_bits_equal(framework.run("embedding", ids, W), W[[2, 0, 1]])


def test_the_rows_are_a_copy_in_torch():
    table = TORCH.array(W)
    TORCH.package.embedding(np.arange(4), table).zero_()
    assert_bits_equal(table, W)
