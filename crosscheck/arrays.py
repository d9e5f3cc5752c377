"""What is read as an array: NumPy arrays, torch tensors and JAX arrays, and why some of them cannot be.

A framework is touched only where the caller has already imported it. An array without values of its own, such as a meta
tensor or a traced JAX array, is refused in a sentence that names its kind and what to compare instead.
"""

import sys
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["a_kind", "as_numpy", "described_array", "has_values", "is_array"]

Array = NDArray[Any]
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_COMPARED = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64"]
    + [f"{kind}{width}" for kind in ("int", "uint") for width in (8, 16, 32, 64)]
)


def as_numpy(x: Any, name: str = "array") -> Array:
    """A NumPy array, torch tensor or JAX array as a NumPy array of the same dtype, shape and bits.

    Arguments:
        x: bool, integer of 8 to 64 bits, bfloat16, float16, float32 or float64, any shape, strides and device; a JAX
            array also in shards, where this process has all of them.
        name: what the errors call x.

    Raises:
        TypeError: Python numbers and lists (they have no dtype of their own), float8, complex, object, structured,
            masked and untyped `|V2` arrays: how their bits are meant would be a guess. Arrays that have no values of
            their own here: traced, deleted and meta ones; nested, sparse and quantized tensors, PRNG keys.

    Example:
        >>> as_numpy(np.float32(1.5)).shape
        ()
    """
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; expected a plain one: fill it, or compare data and mask apart")
    if isinstance(x, np.ndarray | np.generic):
        array = np.asarray(x)
    elif _is("torch", "Tensor", x):
        array = _torch_to_numpy(x, name)
    elif _is("jax", "Array", x):
        array = _jax_to_numpy(x, name)
    else:
        raise TypeError(
            f"{name} is {a_kind(x)}; expected a NumPy array, a torch tensor or a JAX array: give it a dtype with "
            "np.asarray(x, dtype)"
        )
    _check_dtype(array.dtype, name)
    return array


def is_array(x: Any) -> bool:
    """Whether x is of a type that `as_numpy` reads; its dtype and its kind are not looked at."""
    return isinstance(x, np.ndarray | np.generic) or _is("torch", "Tensor", x) or _is("jax", "Array", x)


def has_values(x: Any) -> bool:
    """Whether x is none of the arrays without values of their own that `as_numpy` refuses."""
    return _without_values(x) is None


def _is(module: str, type_name: str, x: Any) -> bool:
    """Whether x is of a framework's type, without importing the framework."""
    imported = sys.modules.get(module)
    return imported is not None and isinstance(x, getattr(imported, type_name))


# Words -------------------------------------------------------------------------------------------------
def a_kind(x: Any) -> str:
    """What x is, for a sentence: the name of its type with an article.

    Example:
        >>> a_kind(1), a_kind([]), a_kind(None)
        ('an int', 'a list', 'None')
    """
    return "None" if x is None else "an array" if is_array(x) else _of_type(x)


def _of_type(x: Any) -> str:
    name = type(x).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def described_array(x: Any) -> str:
    """An array that may be one that cannot be read, for a sentence: an array, float32 (2, 3)."""
    kind = _without_values(x)
    return f"an array, {str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" if kind is None else kind[0]


# Frameworks --------------------------------------------------------------------------------------------
def _without_values(x: Any) -> tuple[str, str] | None:
    """Of an array that NumPy cannot take: its kind, and what to do about it."""
    if _is("torch", "Tensor", x):
        return _torch_kind(x)
    return _jax_kind(x) if _is("jax", "Array", x) else None


def _torch_kind(x: Any) -> tuple[str, str] | None:
    torch = sys.modules["torch"]
    if isinstance(x, torch.nn.parameter.UninitializedTensorMixin):
        return f"{_of_type(x)}, which has no values yet", "call its module once first"
    if x.is_meta:
        return "a meta tensor, which has no values", "make it on a device that holds them"
    if x.is_nested:
        return "a nested tensor", "compare its parts, x.unbind()"
    if x.layout is not torch.strided:
        layout = str(x.layout).removeprefix("torch.")
        return f"a tensor of layout {layout}", "compare x.to_dense(), or its indices and its values"
    if x.is_quantized:
        return f"a quantized tensor, {str(x.dtype).removeprefix('torch.')}", (
            "compare x.int_repr(), the scales and the zero points"
        )
    return None


def _jax_kind(x: Any) -> tuple[str, str] | None:
    jax = sys.modules["jax"]
    if isinstance(x, jax.core.Tracer):
        return "a traced JAX array, which has no values yet", (
            "compare what the transformed function returns, outside of jax.jit, vmap and grad"
        )
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return f"a JAX array of PRNG keys, {x.dtype}", "compare jax.random.key_data(x)"
    if x.is_deleted():
        return "a JAX array that was deleted or donated", "compare a copy that was made before, jnp.copy(x)"
    if not x.is_fully_addressable and not x.is_fully_replicated:
        return "a JAX array with shards in other processes", (
            "compare the data of x.addressable_shards, or gather it with multihost_utils.process_allgather"
        )
    return None


def _refusal(name: str, kind: str, remedy: str) -> TypeError:
    return TypeError(f"{name} is {kind}; expected an array with values that NumPy can take: {remedy}")


def _torch_to_numpy(x: Any, name: str) -> Array:
    torch = sys.modules["torch"]
    if (kind := _torch_kind(x)) is not None:
        raise _refusal(name, *kind)
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in _COMPARED:
        raise TypeError(_not_compared(name, dtype))
    try:
        host = x.detach().resolve_neg().cpu()
        if dtype == "bfloat16":  # Tensor.numpy() knows no bfloat16
            return np.asarray(host.view(torch.int16).numpy()).view(_BFLOAT16)
        return np.asarray(host.numpy())
    except RuntimeError as error:  # a subclass, or a tensor that a transform of torch.func has wrapped
        remedy = (
            "compare x.full_tensor()"
            if hasattr(x, "full_tensor")
            else "compare a plain tensor, outside of torch.func, torch.compile and FakeTensorMode"
        )
        said = str(error).strip().splitlines()[0].rstrip(".")
        raise _refusal(name, f"{_of_type(x)} that cannot be read here ({said})", remedy) from error


def _jax_to_numpy(x: Any, name: str) -> Array:
    if (kind := _jax_kind(x)) is not None:
        raise _refusal(name, *kind)
    return np.asarray(x)


# Dtypes ------------------------------------------------------------------------------------------------
def _check_dtype(dtype: np.dtype[Any], name: str) -> None:
    if dtype.names == ("float0",) and dtype.itemsize == 0:
        raise TypeError(f"{name} has dtype float0, JAX's gradient of an integer, which has no values: leave it out")
    if dtype.type is np.void:
        raise TypeError(
            f"{name} has dtype {dtype.str}, bytes without a type: view it as what it is first, for example "
            "x.view(ml_dtypes.bfloat16)"
        )
    if dtype.name not in _COMPARED:
        raise TypeError(_not_compared(name, dtype.name))


def _not_compared(name: str, dtype: str) -> str:
    what = (
        "compare its real and its imaginary part"
        if dtype.startswith("complex")
        else "compare its bits as unsigned integers if that is what you mean"
    )
    return f"{name} has dtype {dtype}; expected bool, an integer, bfloat16, float16, float32 or float64: {what}"
