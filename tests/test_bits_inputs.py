"""The comparer and the digest read NumPy, torch and JAX arrays alike, and refuse what has no clear bits."""

import hashlib

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from bit_arrays import BFLOAT16, LAYOUTS, random_bits

from crosscheck.bits import as_numpy, compare, digest


# Frameworks ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dtype", [np.dtype(name) for name in ("f2", "f4", "f8", "i1", "u1", "i4", "i8", "u2")], ids=str
)
def test_torch_tensors_keep_their_bits(dtype):
    x = random_bits(dtype, (3, 4))
    assert compare(torch.from_numpy(x), x) is None


def test_torch_bfloat16_keeps_its_bits():
    x = random_bits(BFLOAT16, (3, 4))
    tensor = torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    assert compare(tensor.T, x.T) is None


def test_a_torch_tensor_that_requires_grad_is_read():
    assert compare(torch.ones(3, requires_grad=True), np.ones(3, np.float32)) is None


def test_a_torch_scalar_is_not_a_vector():
    difference = compare(torch.ones(()), np.ones(1, np.float32))
    assert difference is not None and difference.kind == "shape"


def test_jax_arrays_keep_their_bits():
    x = random_bits(BFLOAT16, (3, 4))
    assert compare(jnp.asarray(x), x) is None


def test_a_fault_between_two_frameworks_is_found():
    difference = compare(torch.tensor([1.0, 2.0]), jnp.array([1.0, 3.0]))
    assert difference is not None and (difference.actual, difference.expected) == (2.0, 3.0)


# Refusals -----------------------------------------------------------------------------------------------
REFUSED = [
    (np.zeros(2, "V2"), "actual has dtype |V2, bytes without a type: view it as what it is first"),
    (np.zeros(2, [("x", "f4")]), "actual has dtype |V4, bytes without a type"),
    (np.zeros(2, ml_dtypes.float8_e4m3fn), "actual has dtype float8_e4m3fn; expected bool, an integer, bfloat16"),
    (np.zeros(2, ml_dtypes.float8_e5m2), "actual has dtype float8_e5m2; expected"),
    (torch.zeros(2, dtype=torch.float8_e5m2), "actual has dtype float8_e5m2; expected"),
    (jnp.zeros(2, jnp.float8_e5m2), "actual has dtype float8_e5m2; expected"),
    (np.zeros(2, complex), "actual has dtype complex128; expected"),
    (torch.zeros(2, dtype=torch.complex64), "actual has dtype complex64; expected"),
    (np.array([None]), "actual has dtype object; expected"),
    (np.array(["x"]), "actual has dtype str32; expected"),
    ([1.0], "actual is a list; expected a NumPy array, a torch tensor or a JAX array: give it a dtype"),
    (1.0, "actual is a float; expected a NumPy array"),
]


@pytest.mark.parametrize(("x", "message"), REFUSED, ids=[message[:28] for _, message in REFUSED])
def test_what_has_no_clear_bits_is_refused(x, message):
    with pytest.raises(TypeError) as error:
        compare(x, np.zeros(2, np.float32))
    assert str(error.value).startswith(message)


def test_a_refusal_names_the_argument():
    with pytest.raises(TypeError, match=r"^expected is a tuple"):
        compare(np.zeros(2), (0, 0))


# Digests ------------------------------------------------------------------------------------------------
def test_the_digest_is_a_format_others_can_reproduce():
    expected = hashlib.sha256(b"float32[2]" + bytes.fromhex("0000803f000000c0")).hexdigest()
    assert digest(np.array([1, -2], "f4")) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_digest_does_not_depend_on_layout(layout):
    x = random_bits(np.dtype("f4"), (5, 6))
    assert digest(LAYOUTS[layout](x)) == digest(x)


def test_the_digest_does_not_depend_on_the_framework():
    x = np.arange(6, dtype=np.float32).astype(BFLOAT16)
    tensor = torch.arange(6).to(torch.bfloat16)
    assert digest(x) == digest(tensor) == digest(jnp.asarray(x))


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(6, np.int32),
        np.zeros((2, 3), np.float32),
        np.array([0, 0, 0, 0, 0, -0.0], "f4"),
        np.zeros(0, np.float32),
    ],
    ids=["dtype", "shape", "bits", "empty"],
)
def test_the_digest_tells_differences_apart(other):
    assert digest(other) != digest(np.zeros(6, np.float32))


def test_a_masked_array_is_refused_since_its_mask_would_not_be_compared():
    with pytest.raises(TypeError) as caught:
        as_numpy(np.ma.array([1.0, 2.0], mask=[False, True]), "actual")
    assert str(caught.value) == (
        "actual is a masked array; expected a plain one: fill it, or compare data and mask apart"
    )
