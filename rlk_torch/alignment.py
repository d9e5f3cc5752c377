"""Rows as integers: digit planes, exponents and non-finite flags, made once and reused.

Section 1 of docs/contract.md. The twin is rlk_jax/alignment.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlk_torch.checks import check_digits, check_floats
from rlk_torch.devices import has_triton
from rlk_torch.floats import INFINITY, SMALLEST_NORMAL, bits_of, magnitude, power_of_two
from rlk_torch.quantized import QuantizedTable
from rlk_torch.refusal import without_gradient

Vectors = tuple[Tensor, Tensor]  # exponents and non-finite flags
PLANE_MULTIPLE = 64  # planes are padded with zero digits to this width: int8 matrix units want it
_BLOCK = 2**18  # elements aligned at a time, so that temporaries stay in the cache


@dataclass(frozen=True, eq=False, repr=False)
class Aligned:
    """The rows of a matrix [R, L] as integers q, with x = q * 2^(exponent - window).

    q = planes[0] + 128 planes[1] + ... ; every digit is in [-64, 63] but the top one, in [-64, 64].
    An `Aligned` is a constant: the gradient of what it was made from is refused.
    """

    planes: Tensor  # int8 [digits, R, L padded to a multiple of 64]
    exponent: Tensor  # int32 [R]
    nonfinite: Tensor  # bool [R]
    length: int  # L
    origin: Tensor | None = None  # without elements: through it autograd finds what is to be refused

    @property
    def digits(self) -> int:
        """Base-128 digits of an element."""
        return self.planes.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """[R, L], the shape of the matrix."""
        return self.planes.shape[1], self.length

    @property
    def device(self) -> torch.device:
        """Where the planes are."""
        return self.planes.device

    def __deepcopy__(self, memo: Any) -> "Aligned":
        """The origin is no tensor to copy: it only leads back to what the rows were made from."""
        return Aligned(self.planes.clone(), self.exponent.clone(), self.nonfinite.clone(), self.length, self.origin)

    def __repr__(self) -> str:
        return f"Aligned(shape={self.shape}, digits={self.digits}, device={self.device})"

    def rows(self, start: int, count: int) -> "Aligned":
        """A view of some rows."""
        part = slice(start, start + count)
        return Aligned(self.planes[:, part], self.exponent[part], self.nonfinite[part], self.length, self.origin)


def align(x: Tensor | QuantizedTable, digits: int) -> Aligned:
    """Align the rows of a weight once, for many calls.

    Arguments:
        x: [R, L] bfloat16, float16 or float32, any strides, or a `QuantizedTable`.
        digits: 2, 3 or 4 base-128 digits; the window is 7 digits - 1 bits below the largest element's.

    Returns:
        `Aligned`, int8 planes [digits, R, L padded] on x's device. The one rounding is that of each
        element to the window, ties to even; magnitudes below 2^-126 count as 0.

    Raises:
        TypeError: another dtype, or digits that are no integer.
        ValueError: x that is not [R, L], or digits outside 2, 3, 4.
        NotImplementedError: a gradient of x is asked for.

    Example:
        >>> align(torch.tensor([[1.0, -0.5]]), 2).planes[:, 0, :2].tolist()
        [[0, 0], [32, -16]]
    """
    if isinstance(x, QuantizedTable):
        from rlk_torch.quantized_alignment import align_quantized  # made of what is below

        return align_quantized(x, digits)
    check_floats("x", x, "[R, L]", 2)
    planes, exponent, nonfinite, origin = _constant(x, check_digits(digits))
    return Aligned(planes, exponent, nonfinite, x.shape[1], origin)


def padded(length: int) -> int:
    """The width of a plane."""
    return max(1, -(-length // PLANE_MULTIPLE)) * PLANE_MULTIPLE


@torch.library.custom_op("rlk_torch::align", mutates_args=())
def _align(x: Tensor, digits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    make = x.new_empty if has_triton(x.device) else x.new_zeros  # the kernel writes every element
    planes = make((digits, x.shape[0], padded(x.shape[1])), dtype=torch.int8)
    exponent = x.new_zeros(x.shape[:1], dtype=torch.int32)
    nonfinite = x.new_zeros(x.shape[:1], dtype=torch.bool)
    if has_triton(x.device):
        from rlk_torch.alignment_triton import align_triton

        align_triton(x, planes, exponent, nonfinite)
    elif x.shape[1]:
        step = max(1, _BLOCK // x.shape[1])
        for start in range(0, x.shape[0], step):
            part = slice(start, start + step)
            exponent[part], nonfinite[part] = exponents(largest(x[part], 1))
            q = integers(x[part], exponent[part, None], nonfinite[part, None], digits)
            write_digits(q, planes[:, part, : x.shape[1]])
    return planes, exponent, nonfinite, x.new_empty(0)


@_align.register_fake
def _(x: Tensor, digits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    planes = x.new_empty((digits, x.shape[0], padded(x.shape[1])), dtype=torch.int8)
    exponent = x.new_empty(x.shape[:1], dtype=torch.int32)
    return planes, exponent, x.new_empty(x.shape[:1], dtype=torch.bool), x.new_empty(0)


@_align.register_vmap
def _(info: Any, in_dims: Any, x: Tensor, digits: int) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    """A batch of matrices is more rows."""
    x = x.movedim(in_dims[0], 0)
    planes, exponent, nonfinite, origin = _align(x.reshape(x.shape[0] * x.shape[1], x.shape[2]), digits)
    parts = (planes.unflatten(1, x.shape[:2]), exponent.view(x.shape[:2]), nonfinite.view(x.shape[:2]))
    return (*parts, origin), (1, 0, 0, None)


_constant = without_gradient(
    _align,
    "the gradient of an Aligned is not offered, it is a constant: pass the weight itself, or align(x.detach(), digits)",
)


def largest(x: Tensor, dim: int) -> Tensor:
    """The magnitude bits of the largest element along dim, which is not empty; NaN counts as larger than infinity."""
    if x.dtype == torch.float32:
        return magnitude(x).amax(dim)
    return magnitude((bits_of(x) & 0x7FFF).amax(dim).view(x.dtype).float())


def exponents(top: Tensor) -> Vectors:
    """e of section 1, int32, and non-finite flags, from the magnitude bits of the largest element of each vector."""
    nonfinite = top >= INFINITY
    zero = (top < SMALLEST_NORMAL) | nonfinite
    return ((top >> 23) - 126).masked_fill(zero, 0), nonfinite


def integers(x: Tensor, exponent: Tensor, nonfinite: Tensor, digits: int) -> Tensor:
    """q int32 of x; exponent and flags broadcast against it: [R, 1] where rows are the vectors, [C] where columns are.

    The members of a non-finite vector become 0.
    """
    wide = x.float()
    window = 7 * digits - 1
    # Elements that count as 0 would round to 0 by themselves unless the vector is tiny or not finite.
    if x.device.type != "cpu" or bool((nonfinite | (exponent < window - 124)).any()):
        wide = wide.masked_fill((magnitude(wide) < SMALLEST_NORMAL) | nonfinite, 0)
    # 2^(window - exponent) can pass the float32 range, its two halves cannot.
    half = (window - exponent) >> 1
    scaled = wide * power_of_two(half)
    scaled.mul_(power_of_two(window - exponent - half)).round_()
    return scaled.to(torch.int32)


def planes_at(x: Tensor, vectors: Callable[[slice], Vectors], digits: int, width: int | None = None) -> Tensor:
    """Digits of x at exponents that come from elsewhere, made in blocks of rows: int8 [digits, *x.shape].

    vectors: what broadcasts against some of the rows. width: of the planes, where it is more than x's.
    """
    rows, length = x.shape
    planes = torch.empty((digits, rows, width or length), dtype=torch.int8, device=x.device)
    planes[:, :, length:] = 0
    step = max(1, _BLOCK // max(1, length))
    for start in range(0, rows, step):
        at = slice(start, start + step)
        write_digits(integers(x[at], *vectors(at), digits), planes[:, at, :length])
    return planes


def exact_values(x: Aligned) -> Tensor:
    """The matrix that the planes stand for, float32 [R, L]; a row that is not finite as NaN."""
    planes = x.planes[:, :, : x.length]
    q = planes[-1].int()
    for plane in reversed(planes[:-1]):
        q = (q << 7) + plane
    shift = x.exponent - (7 * x.digits - 1)
    half = shift >> 1  # 2^shift can lie below the float32 range, its two halves do not
    values = q.float() * power_of_two(half)[:, None] * power_of_two(shift - half)[:, None]
    return values.masked_fill_(x.nonfinite[:, None], float("nan"))


def write_digits(q: Tensor, planes: Tensor) -> None:
    """Split q, which is used up, into digits in [-64, 63], the top digit keeping what is left, up to 64."""
    for i in range(planes.shape[0] - 1):
        q += 64
        planes[i].copy_((q & 127).sub_(64))
        q >>= 7
    planes[-1].copy_(q)
