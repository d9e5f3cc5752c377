"""An array that NumPy cannot take is refused by its place in the tree, its kind and a remedy, by every assertion."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from processes import run_alone
from torch.masked import masked_tensor

from crosscheck import assert_batch_invariant, assert_bits_equal, compare, to_bits
from crosscheck.arrays import a_kind, as_numpy, has_values

ONES = np.ones((2, 3), np.float32)
EXPECTED = "expected an array with values that NumPy can take: "
DTYPES = "expected bool, an integer, bfloat16, float16, float32 or float64: "


def tensor() -> torch.Tensor:
    return torch.from_numpy(ONES.copy())


def deleted() -> jax.Array:
    x = jnp.ones(3)
    x.delete()
    return x


def donated() -> jax.Array:
    x = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x


# Of each kind, what makes one, what it is called, and what to do.
KINDS = {
    "meta": (lambda: tensor().to("meta"), "a meta tensor, which has no values", "make it on a device that holds them"),
    "lazy": (torch.nn.parameter.UninitializedParameter, "an UninitializedParameter, which has no values yet",
             "call its module once first"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor",
               "compare its parts, x.unbind()"),
    "coo": (lambda: tensor().to_sparse(), "a tensor of layout sparse_coo",
            "compare x.to_dense(), or its indices and its values"),
    "csr": (lambda: tensor().to_sparse_csr(), "a tensor of layout sparse_csr", "compare x.to_dense(), or its indices"),
    "csc": (lambda: tensor().to_sparse_csc(), "a tensor of layout sparse_csc", "compare x.to_dense(), or its indices"),
    "bsr": (lambda: tensor().to_sparse_bsr((1, 1)), "a tensor of layout sparse_bsr", "compare x.to_dense()"),
    "masked": (lambda: masked_tensor(tensor(), tensor() > 0),
               "a MaskedTensor that cannot be read here (.numpy() is not supported for tensor subclasses)",
               "compare a plain tensor, outside of torch.func, torch.compile and FakeTensorMode"),
    "deleted": (deleted, "a JAX array that was deleted or donated",
                "compare a copy that was made before, jnp.copy(x)"),
    "donated": (donated, "a JAX array that was deleted or donated", "compare a copy that was made before"),
    "keys": (lambda: jax.random.split(jax.random.key(0)), "a JAX array of PRNG keys, key<fry>",
             "compare jax.random.key_data(x)"),
}  # fmt: skip
UNREADABLE = pytest.mark.parametrize(("make", "kind", "remedy"), KINDS.values(), ids=KINDS)
WARNINGS = (
    "The PyTorch API of nested tensors", "Sparse CSR tensor support", "Sparse CSC tensor support",
    "Sparse BSR tensor support", "The PyTorch API of MaskedTensors", "Some donated buffers",
)  # fmt: skip
prototypes = pytest.mark.filterwarnings(*(f"ignore:{text}" for text in WARNINGS), "ignore:Sparse invariant checks")


# Kinds ----------------------------------------------------------------------------------------------------
@prototypes
@UNREADABLE
def test_an_array_without_values_is_refused_by_path_kind_and_remedy(make, kind, remedy):
    for side, trees in (("actual", ({"w": [make()]}, {"w": [ONES]})), ("expected", ({"w": [ONES]}, {"w": [make()]}))):
        with pytest.raises(TypeError) as error:
            assert_bits_equal(*trees)
        start, _, end = str(error.value).partition(EXPECTED)
        assert start.startswith(f"{side}['w'][0] is {kind}")
        assert end.startswith(remedy)


@prototypes
@UNREADABLE
def test_it_is_no_more_equal_to_itself_and_is_named_beside_other_leaves(make, kind, remedy):
    x = make()
    with pytest.raises(TypeError, match=r"^actual is "):
        compare(x, x)
    with pytest.raises(AssertionError) as error:
        assert_bits_equal([x], [None])
    assert f"\n  [0]: it is {'an array' if has_values(x) else kind}" in str(error.value)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_refused():
    x = torch.quantize_per_tensor(tensor(), 0.1, 0, torch.qint8)
    with pytest.raises(TypeError) as error:
        assert_bits_equal([x], [ONES])
    text = f"actual[0] is a quantized tensor, qint8; {EXPECTED}compare x.int_repr(), the scales and the zero points"
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("x", "dtype", "remedy"),
    [
        (torch.zeros(2, dtype=torch.complex64), "complex64", "compare its real and its imaginary part"),
        (jnp.zeros(2, jnp.complex64), "complex64", "compare its real and its imaginary part"),
        (np.zeros(2, np.complex128), "complex128", "compare its real and its imaginary part"),
        (torch.zeros(2, dtype=torch.float8_e4m3fn), "float8_e4m3fn", "compare its bits as unsigned integers if"),
        (jnp.zeros(2, jnp.float8_e5m2), "float8_e5m2", "compare its bits as unsigned integers if"),
        (jnp.zeros(2, jnp.int4), "int4", "compare its bits as unsigned integers if"),
        (np.zeros(2, ml_dtypes.float8_e4m3b11fnuz), "float8_e4m3b11fnuz", "compare its bits as unsigned integers if"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__module__,
)
def test_a_dtype_that_is_not_compared_is_refused_by_its_path(x, dtype, remedy):
    with pytest.raises(TypeError) as error:
        assert_bits_equal({"x": x}, {"x": ONES})
    assert str(error.value).startswith(f"actual['x'] has dtype {dtype}; {DTYPES}{remedy}")


def test_jax_gradients_of_integers_are_named():
    gradient = jax.grad(lambda x: 1.0, allow_int=True)(3)
    with pytest.raises(TypeError) as error:
        assert_bits_equal([gradient], [gradient])
    text = "actual[0] has dtype float0, JAX's gradient of an integer, which has no values: leave it out"
    assert str(error.value) == text


# Transforms -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())], ids=["jit", "vmap",
    "grad"])  # fmt: skip
def test_an_assertion_inside_a_jax_transform_is_refused(transform):
    def checked(x):
        assert_bits_equal({"x": x}, {"x": ONES})
        return x

    with pytest.raises(TypeError) as error:
        transform(checked)(jnp.ones((2, 3)))
    assert str(error.value) == (
        f"actual['x'] is a traced JAX array, which has no values yet; {EXPECTED}compare what the transformed function "
        "returns, outside of jax.jit, vmap and grad"
    )


@pytest.mark.parametrize(
    "transform", [torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())], ids=["vmap", "grad"]
)
def test_an_assertion_inside_a_torch_transform_is_refused(transform):
    def checked(x):
        assert_bits_equal([x], [ONES])
        return x

    with pytest.raises(TypeError) as error:
        transform(checked)(tensor())
    text = str(error.value)
    assert text.startswith("actual[0] is a Tensor that cannot be read here (Cannot access data pointer of Tensor")
    assert text.endswith(f"; {EXPECTED}compare a plain tensor, outside of torch.func, torch.compile and FakeTensorMode")


# Arrays that can be read ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "x",
    [
        tensor().requires_grad_(),
        torch.nn.Parameter(tensor()),
        torch.complex(tensor(), tensor()).real,
        torch.complex(tensor(), -tensor()).conj().imag,
        torch._neg_view(-tensor()),
        torch.complex(tensor(), tensor()).conj().real,
        tensor().T.contiguous().T,
        torch.ones(3).expand(2, 3),
        torch.ones(2, 6)[:, ::2],
        torch.ones(2, 4)[:, 1:],
    ],
    ids=["grad", "parameter", "real", "conj", "neg", "conj real", "transposed", "expanded", "strided", "offset"],
)
def test_views_and_tensors_with_gradients_are_read(x):
    for dtype in (torch.float32, torch.bfloat16):
        assert_bits_equal([x.to(dtype)], [torch.ones(2, 3, dtype=dtype)])


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0)], ids=str)
def test_scalars_and_empty_arrays_are_read(shape):
    for dtype in ("bfloat16", "float32", "int32"):
        arrays = [torch.ones(shape, dtype=getattr(torch, dtype)), jnp.ones(shape, dtype), np.ones(shape, dtype)]
        assert_bits_equal(arrays, [np.ones(shape, dtype)] * 3)


def test_jax_arrays_in_shards_are_read_and_those_of_two_devices_are_no_batch():
    run_alone(
        """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from crosscheck import assert_batch_invariant, assert_bits_equal
x = np.arange(8, dtype=np.float32).reshape(4, 2)
mesh = Mesh(np.array(jax.devices()), ("x",))
for spec in (P("x"), P(None, "x"), P()):
    sharded = jax.device_put(x, NamedSharding(mesh, spec))
    assert_bits_equal({"x": sharded}, {"x": x})
    try:
        assert_batch_invariant(lambda x: x, sharded)
    except ValueError as error:
        assert str(error) == "x lies on 2 devices; expected one: shard it inside the function", error
    else:
        raise AssertionError("no error")
""",
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
        JAX_PLATFORMS="cpu",
    )


def test_jax_arrays_with_shards_in_other_processes_are_refused_unless_each_has_all_of_it(monkeypatch):
    """Which JAX says of an array."""
    x = jnp.asarray(ONES)
    monkeypatch.setattr(type(x), "is_fully_addressable", False)
    assert_bits_equal([x], [ONES])
    monkeypatch.setattr(type(x), "is_fully_replicated", False)
    with pytest.raises(TypeError) as error:
        assert_bits_equal([x], [ONES])
    assert str(error.value) == (
        f"actual[0] is a JAX array with shards in other processes; {EXPECTED}compare the data of x.addressable_shards, "
        "or gather it with multihost_utils.process_allgather"
    )


# Words ----------------------------------------------------------------------------------------------------
def test_the_article_is_that_of_the_type():
    found = [a_kind(x) for x in (None, 1, 1.0, [], object(), "x", ONES)]
    assert found == ["None", "an int", "a float", "a list", "an object", "a str", "an array"]
    with pytest.raises(TypeError, match=r"^hidden is an int; expected a NumPy array, a torch tensor or a JAX array"):
        as_numpy(3, "hidden")
    with pytest.raises(TypeError, match=r"^array is None; expected a NumPy array"):
        to_bits(None)


def test_the_batch_is_refused_by_its_name():
    for hidden in (tensor().to("meta"), tensor().to_sparse(), torch.nested.nested_tensor([torch.ones(2)])):
        with pytest.raises(TypeError, match=r"^hidden is a .*; expected an array with values"):
            assert_batch_invariant(lambda hidden, weight: hidden, (hidden, tensor()))
