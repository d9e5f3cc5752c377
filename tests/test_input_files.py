"""Token ids and hidden states come out of files as they were stored; every other file is refused in a sentence."""

from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from bit_arrays import BFLOAT16, random_bits
from safetensors.numpy import save_file

from crosscheck.bits import assert_bits_equal
from crosscheck.checkpoint import CheckpointError, load_array


def saved(path: Path, array: Any, **options: Any) -> Path:
    np.save(path, array, **options)
    return path


def refusal(path: Path | str, what: Literal["token_ids", "hidden"]) -> str:
    with pytest.raises(CheckpointError) as error:
        load_array(path, what)
    return str(error.value)


# What is read -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_ids_of_every_integer_dtype_are_read(tmp_path, dtype):
    ids = np.array([[0, 1], [100, 7]], dtype)
    assert_bits_equal(load_array(saved(tmp_path / "ids.npy", ids), "token_ids"), ids)


@pytest.mark.parametrize("ids", [np.zeros((2, 0), np.int64), np.int64(5), np.arange(6).reshape(2, 3).T])
def test_ids_of_every_shape_are_read(tmp_path, ids):
    assert_bits_equal(load_array(saved(tmp_path / "ids.npy", ids), "token_ids"), ids)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_hidden_keeps_its_bits(tmp_path, dtype):
    hidden = random_bits(np.dtype(dtype), (2, 3, 4))
    assert_bits_equal(load_array(saved(tmp_path / "h.npy", hidden), "hidden"), hidden)


def test_big_endian_arrays_are_read_as_native_ones(tmp_path):
    hidden = random_bits(np.dtype("f4"), (3, 4))
    stored = saved(tmp_path / "h.npy", hidden.byteswap().view(">f4"))
    loaded = load_array(stored, "hidden")
    assert loaded.dtype.isnative
    assert_bits_equal(loaded, hidden)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)], ids=str)
def test_bfloat16_hidden_in_a_safetensors_file_keeps_its_bits(tmp_path, shape):
    hidden = random_bits(BFLOAT16, shape)
    save_file({"states.7": hidden}, tmp_path / "h.safetensors")
    assert_bits_equal(load_array(f"{tmp_path}/h.safetensors:states.7", "hidden"), hidden)


def test_bfloat16_hidden_as_bit_patterns_keeps_its_bits(tmp_path):
    hidden = random_bits(BFLOAT16, (3, 4))
    assert_bits_equal(load_array(saved(tmp_path / "h.bf16.npy", hidden.view(np.uint16)), "hidden"), hidden)


# Faults -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ids", [np.ones(3), np.ones(3, bool), np.ones(3, "f4"), np.array(["7"])], ids=str)
def test_ids_that_are_no_integers_are_refused(tmp_path, ids):
    path = saved(tmp_path / "ids.npy", ids)
    assert refusal(path, "token_ids") == f"token_ids in {path} have dtype {ids.dtype}; expected an integer dtype"


@pytest.mark.parametrize("dtype", ["f8", "i4", "?", "c8"])
def test_hidden_of_another_dtype_is_refused(tmp_path, dtype):
    path = saved(tmp_path / "h.npy", np.ones((2, 2), dtype))
    assert refusal(path, "hidden") == (
        f"hidden in {path} has dtype {np.dtype(dtype)}; expected bfloat16, float16 or float32"
    )


@pytest.mark.parametrize(("dtype", "stored"), [(ml_dtypes.bfloat16, "|V2"), (np.uint16, "<u2")])
def test_two_bytes_without_a_type_are_refused_with_the_remedy(tmp_path, dtype, stored):
    path = saved(tmp_path / "h.npy", np.ones((2, 2), dtype))
    assert refusal(path, "hidden") == (
        f"hidden in {path} has dtype {stored}, two bytes without a type: if they are bfloat16, store them in a "
        "safetensors file, or x.view(np.uint16) in a file named *.bf16.npy"
    )


def test_float8_is_refused(tmp_path):
    path = saved(tmp_path / "h.npy", np.ones((2, 2), ml_dtypes.float8_e4m3fn))
    assert refusal(path, "hidden") == f"hidden in {path} has dtype |V1; expected bfloat16, float16 or float32"


def test_a_hidden_scalar_is_refused(tmp_path):
    path = saved(tmp_path / "h.npy", np.float32(1))
    assert refusal(path, "hidden") == f"hidden in {path} has shape (); expected [..., K]"


def test_a_missing_file_is_named(tmp_path):
    assert refusal(tmp_path / "ids.npy", "token_ids").endswith("ids.npy cannot be read: No such file or directory")


def test_an_object_array_is_refused_and_not_unpickled(tmp_path):
    path = saved(tmp_path / "ids.npy", np.array([{}]), allow_pickle=True)
    assert refusal(path, "token_ids").startswith(f"{path} is no usable .npy file, and nothing is unpickled here: ")


@pytest.mark.parametrize("content", [b"", b"1 2 3\n", b"PK\x03\x04" + bytes(99)], ids=["empty", "text", "npz"])
def test_another_format_is_refused(tmp_path, content):
    path = tmp_path / "ids.npy"
    path.write_bytes(content)
    assert refusal(path, "token_ids") == f"{path} is no .npy file: save one array with np.save"


@pytest.mark.parametrize("kept", [8, 60, -1])
def test_a_truncated_file_is_refused(tmp_path, kept):
    path = saved(tmp_path / "ids.npy", np.arange(9))
    path.write_bytes(path.read_bytes()[:kept])
    assert refusal(path, "token_ids").startswith(f"{path} is no usable .npy file")


def test_a_header_that_claims_more_than_the_file_holds_allocates_nothing(tmp_path):
    path = tmp_path / "ids.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (2**50,)})
    assert refusal(path, "token_ids").startswith(f"{path} is no usable .npy file")


@pytest.mark.parametrize(
    ("path", "what", "remedy"),
    [
        ("h.safetensors", "hidden", "FILE.safetensors:KEY"),
        ("ids.safetensors", "token_ids", "a .npy file"),
        ("ids.safetensors:k", "token_ids", "a .npy file"),
    ],
)
def test_a_safetensors_file_needs_a_key_and_holds_hidden_only(path, what, remedy):
    assert refusal(path, what) == f"{what} cannot be taken from {path}: name {remedy}"


def test_a_key_that_the_file_lacks_lists_the_close_ones(tmp_path):
    save_file({"states": np.ones((1, 2), "f4")}, tmp_path / "h.safetensors")
    assert refusal(f"{tmp_path}/h.safetensors:state", "hidden").endswith("; its only one is states")


def test_an_unknown_kind_of_input_is_refused():
    with pytest.raises(ValueError, match=r"^what is 'logits'; expected 'token_ids' or 'hidden'$"):
        load_array("x.npy", "logits")
