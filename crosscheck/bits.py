"""Bits of arrays: unsigned views, digests, and the comparison that every verdict rests on.

Two arrays are equal when dtype, shape and bits as unsigned integers are (section 8 of docs/contract.md). The
value comparisons of NumPy and of the frameworks pass +0 against -0 or float32 against bfloat16, and fail NaN
against the same NaN, so none of them is used. Byte order is storage: big-endian arrays have the bits of their
native copies. `crosscheck.arrays` has what is read as an array.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crosscheck.arrays import as_numpy, is_array

__all__ = [
    "BitsDiffer", "Difference", "as_numpy", "assert_bits_equal", "compare", "digest", "digest_of_parts", "is_array",
    "to_bits", "ulp_distances",
]  # fmt: skip

Array = NDArray[Any]
_FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}


# Bits --------------------------------------------------------------------------------------------------
def to_bits(x: Any, name: str = "array") -> Array:
    """The bits of x as unsigned integers of its width and shape, in native byte order.

    A view where x is a native NumPy array, strides included; `as_numpy` says what is accepted.

    Example:
        >>> hex(to_bits(np.float32(-0.0)))
        '0x80000000'
    """
    array = as_numpy(x, name)
    stored = np.dtype(f"u{array.dtype.itemsize}").newbyteorder(array.dtype.byteorder)
    return array.view(stored).astype(stored.newbyteorder("="), copy=False)


def digest(x: Any) -> str:
    """SHA-256 in hex over dtype name, shape and little-endian bits in row-major order.

    Equal arrays have equal digests, whatever the framework, strides or byte order.

    Example:
        >>> digest(np.zeros(3, np.float32)) == digest(np.zeros(6, np.float32)[::2])
        True
    """
    array = as_numpy(x)
    return digest_of_parts(array.dtype.name, array.shape, [array])


def digest_of_parts(dtype: str, shape: Iterable[int], parts: Iterable[Array]) -> str:
    """`digest` of an array that comes in parts, in row-major order: none that is too large for memory need be whole.

    Example:
        >>> x = np.arange(6, dtype=np.int32).reshape(3, 2)
        >>> digest_of_parts("int32", (3, 2), [x[:2], x[2:]]) == digest(x)
        True
    """
    sha = hashlib.sha256(f"{dtype}{list(shape)}".encode())
    for part in parts:
        bits = to_bits(part)
        sha.update(np.ascontiguousarray(bits, dtype=bits.dtype.newbyteorder("<")).data)
    return sha.hexdigest()


# Comparison --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Difference:
    """How two arrays differ, and where first in row-major order.

    For the kinds "dtype" and "shape" no elements are compared: count is total and the other fields are None.
    """

    kind: Literal["dtype", "shape", "bits"]
    actual_dtype: str
    expected_dtype: str
    actual_shape: tuple[int, ...]
    expected_shape: tuple[int, ...]
    count: int  # elements that differ
    total: int  # elements of actual
    index: tuple[int, ...] | None = None
    actual: float | int | bool | None = None
    expected: float | int | bool | None = None
    actual_bits: str | None = None  # hex, as wide as the dtype: 0x7FC00000
    expected_bits: str | None = None
    ulp: int | None = None  # representable values from expected to actual; None where either is NaN
    max_ulp: int | None = None  # the largest over all differing pairs that have one

    def describe(self) -> str:
        """One sentence with everything that the record knows."""
        if self.kind == "dtype":
            return f"dtype is {self.actual_dtype}; expected {self.expected_dtype}"
        if self.kind == "shape":
            return f"shape is {self.actual_shape}; expected {self.expected_shape}, {self.actual_dtype}"
        return (
            f"{self.count} of {self.total} elements of {self.actual_dtype} {self.actual_shape} differ; first at "
            f"{list(self.index or ())}: actual {self._shown(self.actual)} ({self.actual_bits}), expected "
            f"{self._shown(self.expected)} ({self.expected_bits}), {self._distance()}"
        )

    def _distance(self) -> str:
        first = "NaN has no ULP distance" if self.ulp is None else f"{self.ulp} ULP apart"
        return f"{first}, at most {self.max_ulp}" if self.count > 1 and self.max_ulp is not None else first

    def _shown(self, value: float | int | bool | None) -> str:
        """The shortest digits that name the value in its own dtype."""
        with np.errstate(invalid="ignore"):  # a signalling NaN is narrowed
            return str(np.dtype(self.actual_dtype).type(value))


def compare(actual: Any, expected: Any) -> Difference | None:
    """None where dtype, shape and every bit agree, else the record of the difference.

    Arguments:
        actual, expected: what `as_numpy` accepts, each from any framework.

    Raises:
        TypeError: an input that `as_numpy` refuses.

    Example:
        >>> compare(np.float32([1, 0]), np.float32([1, -0.0])).describe()
        '1 of 2 elements of float32 (2,) differ; first at [1]: actual 0.0 (0x00000000), expected -0.0 (0x80000000), 0 ULP apart'
    """  # noqa: E501 (one sentence, one line)
    got, want = as_numpy(actual, "actual"), as_numpy(expected, "expected")
    dtypes = got.dtype.name, want.dtype.name
    if dtypes[0] != dtypes[1]:
        return Difference("dtype", *dtypes, got.shape, want.shape, got.size, got.size)
    if got.shape != want.shape:
        return Difference("shape", *dtypes, got.shape, want.shape, got.size, got.size)
    got_bits, want_bits = to_bits(got), to_bits(want)
    differs = np.asarray(got_bits != want_bits)
    count = int(np.count_nonzero(differs))
    if count == 0:
        return None
    index = tuple(int(i) for i in np.unravel_index(int(differs.argmax()), got.shape))
    return Difference(
        "bits", *dtypes, got.shape, want.shape, count, got.size, index,
        _value(got, index), _value(want, index), _hex(got_bits, index), _hex(want_bits, index),
        _max_ulp(got_bits[index].reshape(1), want_bits[index].reshape(1), dtypes[0]),
        _max_ulp(got_bits[differs], want_bits[differs], dtypes[0]),
    )  # fmt: skip


def _hex(bits: Array, index: tuple[int, ...]) -> str:
    return f"0x{int(bits[index]):0{2 * bits.itemsize}X}"


def _value(array: Array, index: tuple[int, ...]) -> float | int | bool:
    value = array[index]
    if array.dtype.kind in "biu":
        return bool(value) if array.dtype.kind == "b" else int(value)
    with np.errstate(invalid="ignore"):  # a signalling NaN is widened
        return float(value)


def _max_ulp(a: Array, b: Array, dtype: str) -> int | None:
    """The largest ULP distance of the pairs [N] without NaN; None where there is no such pair."""
    block = 2**18  # temporaries stay in the cache
    blocks = (ulp_distances(a[i : i + block], b[i : i + block], dtype) for i in range(0, len(a), block))
    return max((int(distances.max()) for distances in blocks if distances.size), default=None)


def ulp_distances(a: Array, b: Array, dtype: str) -> Array:
    """The ULP distances of the pairs [N] of bit patterns without NaN, unsigned, [at most N]."""
    top = 1 << (8 * a.itemsize - 1)
    if dtype in _FRACTION_BITS:
        infinity = (top - 1) >> _FRACTION_BITS[dtype] << _FRACTION_BITS[dtype]
        numbers = ((a & (top - 1)) <= infinity) & ((b & (top - 1)) <= infinity)
        a, b = (_ordered_float(x[numbers], top) for x in (a, b))
    elif dtype.startswith("int"):
        a, b = a ^ a.dtype.type(top), b ^ b.dtype.type(top)
    return np.maximum(a, b) - np.minimum(a, b)


def _ordered_float(bits: Array, top: int) -> Array:
    """Sign and magnitude to an unsigned integer line: neighbours differ by 1, and +0 and -0 are one point."""
    magnitude = bits & (top - 1)
    return np.where(bits >= top, top - magnitude, top + magnitude).astype(bits.dtype)


class BitsDiffer(AssertionError):
    """Raised by `assert_bits_equal`; `difference` is the record. Of trees it may be None: `crosscheck.trees`."""

    def __init__(self, difference: Difference | None, context: str = "", text: str = "") -> None:
        text = text if difference is None or text else difference.describe()
        super().__init__(f"{context}: {text}" if context else text)
        self.difference, self.context = difference, context

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.difference, self.context)


def assert_bits_equal(actual: Any, expected: Any, *, context: str = "") -> None:
    """Raise `BitsDiffer` unless dtype, shape and every bit agree, of two arrays or of two trees of arrays.

    Arguments:
        actual, expected: what `as_numpy` accepts, each from any framework, or trees of it: dicts, lists, tuples, named
            tuples, dataclasses and JAX's pytrees, with None, bool, int, float and str among their leaves.
        context: opens the message: the case, the framework, the device.

    Raises:
        BitsDiffer: they differ; the text gives dtype, shape, count, first index, both values, both bit patterns
            and the ULP distance. Of trees it is a `TreesDiffer`, whose text gives that for the first leaves that
            differ, with their paths, and where the structures do.
        TypeError: an input that `as_numpy` refuses.

    Example:
        >>> assert_bits_equal(np.float32([np.nan]), np.float32([np.nan]), context="the same NaN")
        >>> assert_bits_equal({"w": np.ones(2), "steps": 3}, {"w": np.ones(2), "steps": 3})
    """
    from crosscheck import trees  # which rests on this file

    __tracebackhide__ = True
    if trees.is_tree(actual) or trees.is_tree(expected):
        found = trees.compare_trees(actual, expected)
        if found is not None:
            raise trees.TreesDiffer(found, context)
        return
    difference = compare(actual, expected)
    if difference is not None:
        raise BitsDiffer(difference, context)
