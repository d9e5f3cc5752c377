"""Tables of int8 values with one scale a row: kept as they are, dequantized with exactly one rounding.

docs/tables.md says what that is. The twin is rlk_torch/quantized.py.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from rlk_jax.checks import check_floats, dtype_name
from rlk_jax.devices import device_of
from rlk_jax.floats import INFINITY, SMALLEST_NORMAL, bits_of, magnitude, narrowed, power_of_two_times
from rlk_jax.refusal import without_gradient

NO_GRADIENT = "the gradient of a quantized table is not offered, it is a constant: train the weight itself"
_BLOCK = 2**18  # elements quantized at a time
_TINY = 2.0**-126


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False, repr=False)
class QuantizedTable:
    """A table of int8 values, each row with a scale: row v is values[v] * scale[v]. A pytree.

    Arguments:
        values: int8 [V, H].
        scale: float32 [V], or int8 [V], the exponents of powers of two.

    `EmbeddingTable`, `lm_head` and `align` take it as a weight. As a weight of an LM head it is the matrix
    `dequantized()`: products rounded once to float32, those below 2^-126 are +0. It is a constant: its gradient is
    refused.

    Raises:
        TypeError: another dtype.
        ValueError: shapes that do not meet, values and scale on two devices.

    Example:
        >>> table = QuantizedTable(jnp.array([[127, -1]], jnp.int8), jnp.array([-3], jnp.int8))
        >>> table.dequantized().tolist()
        [[15.875, -0.125]]
    """

    values: Array | np.ndarray
    scale: Array | np.ndarray

    def __post_init__(self) -> None:
        check_quantized(self.values, self.scale)

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], None]:
        return tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in ("values", "scale")), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: Any) -> "QuantizedTable":
        """Of anything, without checks: JAX keeps more than arrays in trees."""
        return unchecked(*parts)

    @property
    def shape(self) -> tuple[int, int]:
        """[V, H], the shape of the matrix."""
        return self.values.shape[0], self.values.shape[1]

    @property
    def device(self) -> Any:
        """Where the values are."""
        return "cpu" if isinstance(self.values, np.ndarray) else self.values.device

    def __repr__(self) -> str:
        return f"QuantizedTable(shape={self.shape}, scale={dtype_name(self.scale)}, device={self.device})"

    def rows(self, start: Array | int, count: int) -> "QuantizedTable":
        """Some rows, from a start that may be traced."""
        return unchecked(*(lax.dynamic_slice_in_dim(jnp.asarray(x), start, count) for x in (self.values, self.scale)))

    def dequantized(self, dtype: DTypeLike | None = None) -> Array:
        """The matrix [V, H] in a float type, float32 unless named, each element rounded once."""
        return _dequantized(*constant(self.values, self.scale), jnp.dtype(jnp.float32 if dtype is None else dtype))


def unchecked(values: Any, scale: Any) -> QuantizedTable:
    """A table of parts that were checked, or that are no arrays."""
    table: QuantizedTable = object.__new__(QuantizedTable)
    object.__setattr__(table, "values", values)
    object.__setattr__(table, "scale", scale)
    return table


def check_quantized(values: Any, scale: Any) -> None:
    """The parts of a quantized table."""
    for name, x, shape in (("values", values, "[V, H]"), ("scale", scale, "[V]")):
        if not isinstance(x, Array | np.ndarray):
            raise TypeError(
                f"{name} is of type {type(x).__name__}; expected an array of shape {shape}: convert it first"
            )
    if values.dtype != jnp.int8:
        raise TypeError(f"values has dtype {dtype_name(values)}; expected int8: quantize(weight) makes them")
    if scale.dtype not in (jnp.float32, jnp.int8):
        raise TypeError(
            f"scale has dtype {dtype_name(scale)}; expected float32, or int8, the exponents of powers of two"
        )
    if values.ndim != 2:
        raise ValueError(f"values has shape {tuple(values.shape)}; expected [V, H]: reshape it first")
    if scale.shape != values.shape[:1]:
        raise ValueError(f"scale has shape {tuple(scale.shape)}; expected {(len(values),)}, one a row of values")
    got, other = device_of(values), device_of(scale)
    if got is not None and other is not None and got != other:
        raise ValueError(f"scale is on {other}, values on {got}; expected one device: move one of them")


def quantize(weight: Array | np.ndarray, scale: str = "power_of_two") -> QuantizedTable:
    """A table of int8 values for a weight, symmetric, one scale a row.

    Arguments:
        weight: [V, H] bfloat16, float16 or float32, finite. Magnitudes below 2^-126 count as 0. It is read on the host:
            not for traced code.
        scale: "power_of_two": the least 2^k, k >= -128, with the row's largest magnitude within 127 * 2^k. "float32":
            the largest magnitude / 127, rounded to float32; where that lies below 2^-126, the row becomes zeros.

    Returns:
        `QuantizedTable`: each value is the exact quotient of element and scale, rounded to an integer, ties to even.
        It is a constant, which no gradient passes.

    Raises:
        TypeError: another dtype, or a traced weight.
        ValueError: a weight that is not [V, H] or not finite, an unknown scale.

    Example:
        >>> quantize(jnp.array([[1.0, -0.3]])).values.tolist()
        [[64, -19]]
    """
    check_floats("weight", weight, "[V, H]", 2)
    if isinstance(weight, jax.core.Tracer):
        raise TypeError("weight is traced; expected an array that can be read: quantize it outside of jax.jit")
    if scale not in ("power_of_two", "float32"):
        raise ValueError(f"scale is {scale!r}; expected 'power_of_two' or 'float32'")
    array = np.asarray(weight)
    values = np.empty(array.shape, np.int8)
    made = np.empty(len(array), np.int8 if scale == "power_of_two" else np.float32)
    step = max(1, _BLOCK // max(1, array.shape[1]))
    for start in range(0, len(array), step):
        rows = slice(start, start + step)
        with np.errstate(invalid="ignore"):
            wide = array[rows].astype(np.float32)
        size = wide.view(np.int32) & 0x7FFFFFFF
        if (size >= INFINITY).any():
            row = start + int((size >= INFINITY).any(1).argmax())
            raise ValueError(f"weight is not finite in row {row}; expected finite numbers")
        # Float64 quotients of numbers of 24 bits lie on no tie that the exact ones do not lie on.
        exact = np.where(size < SMALLEST_NORMAL, 0, wide.astype(np.float64))
        made[rows], divisor = _scales(np.abs(exact).max(1, initial=0), scale)
        values[rows] = np.rint(exact / divisor[:, None])
    device = device_of(weight)
    return QuantizedTable(*(jax.device_put(x, device) for x in (values, made)))


def _scales(largest: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The scales of rows from their largest magnitudes, as they are kept and as divisors, float64."""
    if kind == "power_of_two":
        significand, exponent = np.frexp(largest)
        exponent = np.where(largest == 0, 0, np.maximum(exponent - 7 + (significand > 127 / 128), -128))
        return exponent, np.ldexp(1.0, exponent)
    zero = largest / 127 < _TINY
    factor = np.where(zero, 0, largest / 127).astype(np.float32)  # rounded twice, on no tie: 127 x has more bits than x
    return factor, np.where(zero, np.inf, factor.astype(np.float64))


def factors(scale: Array) -> Array:
    """Scales as float32: a power of two from 2^-128 on is one."""
    if scale.dtype == jnp.float32:
        return scale
    exponent = scale.astype(jnp.int32)
    bits = jnp.where(exponent < -126, jnp.int32(1) << jnp.clip(149 + exponent, 0, 30), (exponent + 127) << 23)
    return lax.bitcast_convert_type(bits, jnp.float32)


def _as_they_are(values: Array, scale: Array) -> tuple[Array, Array]:
    return values, scale


_refused = without_gradient(_as_they_are, NO_GRADIENT)


def constant(values: Array | np.ndarray, scale: Array | np.ndarray) -> tuple[Array, Array]:
    """The parts of a table, whose gradient is refused."""
    parts: tuple[Array, Array] = _refused(jnp.asarray(values), jnp.asarray(scale))
    return parts


@partial(jax.jit, static_argnums=2)
def _dequantized(values: Array, scale: Array, dtype: Any) -> Array:
    return rounded(values, factors(scale)[:, None], dtype)


def rounded(values: Array, factor: Array, dtype: DTypeLike) -> Array:
    """The one rounding of values * factor, float32 that broadcast against them.

    The integer product has at most 31 bits. For a 16-bit type 8 of them only set a sticky last bit, which lies under
    every tie of that type; the rest is exact.
    """
    dtype = jnp.dtype(dtype)
    size = magnitude(factor)
    subnormal = size < SMALLEST_NORMAL
    normal = jnp.where(subnormal, lax.bitcast_convert_type(size.astype(jnp.float32), jnp.int32), size)
    significand = jnp.where(size == 0, 0, (normal & 0x7FFFFF) | SMALLEST_NORMAL)
    significand = jnp.where(lax.bitcast_convert_type(factor, jnp.int32) < 0, -significand, significand)
    exponent = (normal >> 23) - 150 - 149 * subnormal.astype(jnp.int32)
    word = values.astype(jnp.int32) * significand
    if dtype != jnp.float32:
        word = (word >> 8) | ((word & 255) != 0).astype(jnp.int32)
        exponent = exponent + 8
    r = word.astype(jnp.float32)
    if dtype == jnp.bfloat16:
        bits = bits_of(r)
        r = lax.bitcast_convert_type((bits + 0x7FFF + ((bits >> 16) & 1)) & jnp.uint32(0xFFFF0000), jnp.float32)
    r = power_of_two_times(r, exponent)
    out = narrowed(jnp.where(size >= INFINITY, jnp.float32(jnp.nan), r), dtype)
    if dtype != jnp.float16:
        return out
    bits = bits_of(out)
    return lax.bitcast_convert_type(jnp.where(bits == 0x8000, jnp.uint16(0), bits), dtype)  # every zero is +0
