"""What the shards of a weight agree on and what they sum: integers, always.

Sharding changes who sums integers, nothing else: docs/sharding.md. Code inside `jax.shard_map`, of arrays as one device
sees them. The twin is rlk_torch/sharded.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rlk_jax.alignment import Aligned
from rlk_jax.checks import check_floats
from rlk_jax.devices import varying_axes
from rlk_jax.differentiable import Term, gradient_only
from rlk_jax.floats import bits_of


def shard_range(vocab: int, shards: int, index: int) -> tuple[int, int]:
    """The rows of a vocab that one shard holds: equal parts, the last ones shorter or empty.

    Arguments:
        vocab: rows of the whole weight.
        shards: the number of shards.
        index: of the shard, 0 <= index < shards.

    Returns:
        (start, end): rows start to end - 1. A shard has ceil(vocab / shards) rows, where there are as many left:
        the parts of `torch.chunk`. In JAX the others have padding behind them, see `pad_vocab`.

    Raises:
        TypeError: an argument that is no integer.
        ValueError: a vocab below 0, no shard, or an index outside.

    Example:
        >>> [shard_range(10, 4, index) for index in range(4)]
        [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    vocab, shards, index = as_vocab(vocab), _integer("shards", shards), _integer("index", index)
    if shards < 1:
        raise ValueError(f"shards is {shards}; expected 1 or more")
    if not 0 <= index < shards:
        raise ValueError(f"index is {index}; expected 0 <= index < {shards}, the shards")
    rows = -(-vocab // shards)
    return min(index * rows, vocab), min((index + 1) * rows, vocab)


def pad_vocab(weight: Array | np.ndarray | Aligned, shards: int) -> Array | np.ndarray | Aligned:
    """A weight whose vocab can be cut into equal shards: rows of zeros behind it.

    Arguments:
        weight: [V, ...], an embedding table, the weight of an LM head, `align(weight, digits)` or a bias, of
            bfloat16, float16 or float32.
        shards: the number of shards.

    Returns:
        [ceil(V / shards) * shards, ...], bit for bit, NumPy where the weight is NumPy. Its gradient, in reverse mode,
        is that of the rows of the weight.

    Raises:
        TypeError: another dtype, or shards that are no integer.
        ValueError: no shard, or a weight without dimensions.

    Example:
        >>> pad_vocab(jnp.array([1.0, 2.0, 3.0]), 2).tolist()
        [1.0, 2.0, 3.0, 0.0]
    """
    if _integer("shards", shards) < 1:
        raise ValueError(f"shards is {shards}; expected 1 or more")
    if isinstance(weight, Aligned):
        more = -weight.shape[0] % shards
        planes, exponent, nonfinite = _behind(weight.planes, more, 1), weight.exponent, weight.nonfinite
        return Aligned(planes, _behind(exponent, more, 0), _behind(nonfinite, more, 0), weight.length)
    check_floats("weight", weight, "[V, ...]")
    if weight.ndim == 0:
        raise ValueError("weight has shape (); expected [V, ...]: add the vocab dimension")
    more = -weight.shape[0] % shards
    if not more:
        return weight
    if isinstance(weight, np.ndarray):
        return np.pad(weight, [(0, more)] + [(0, 0)] * (weight.ndim - 1))
    return _padded(weight, more)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _padded(weight: Array, more: int) -> Array:
    return lax.bitcast_convert_type(_behind(bits_of(weight), more, 0), weight.dtype)


def _padded_forward(weight: Array, more: int) -> tuple[Array, None]:
    return _padded(weight, more), None


def _padded_backward(more: int, _: None, grad: Array) -> tuple[Array]:
    return (lax.bitcast_convert_type(bits_of(grad)[:-more], grad.dtype),)


_padded.defvjp(_padded_forward, _padded_backward)


def _behind(x: Array, more: int, axis: int) -> Array:
    return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)])


def as_vocab(vocab: Any) -> int:
    """The rows of the whole weight, a Python integer."""
    if isinstance(vocab, bool) or not isinstance(vocab, int | np.integer):
        kind = "traced" if isinstance(vocab, jax.core.Tracer) else f"of type {type(vocab).__name__}"
        raise TypeError(f"vocab is {kind}; expected an integer, the rows of the whole weight")
    if vocab < 0:
        raise ValueError(f"vocab is {vocab}; expected 0 or more")
    return int(vocab)


def _integer(name: str, x: Any) -> int:
    if isinstance(x, bool) or not isinstance(x, int | np.integer):
        raise TypeError(f"{name} is of type {type(x).__name__}; expected an integer")
    return int(x)


@dataclass(frozen=True)
class Shards:
    """The devices along some mesh axes, each with a part of what is summed.

    Arguments:
        axes: the mesh axes; none where nothing is sharded.
        size: the number of devices along them.
        vocab: rows of the whole weight where the vocab is what is sharded, else 0.
    """

    axes: tuple[str, ...] = ()
    size: int = 1
    vocab: int = 0

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.axes)

    @property
    def rows(self) -> int:
        """Rows of the weight that each device has, padding among them."""
        return -(-self.vocab // self.size)

    def first(self) -> Array:
        """The first row of this device, int32."""
        if not self.axes:
            return jnp.int32(0)
        return lax.axis_index(self.axes).astype(jnp.int32) * self.rows

    def most(self, top: Array) -> Array:
        """The largest over the devices, of the bits of magnitudes."""
        return lax.pmax(top, self.axes) if self.axes else top

    def total(self, groups: list[Array]) -> list[Array]:
        """The sum over the devices of numbers in carried groups of 7 bits, carried.

        The groups travel several to a word, so many that sums of this many words, and carries on top, cannot
        overflow; the last one, of which the rows of the whole leave room for all sums, travels alone.
        """
        if not self.axes:
            return groups
        each = min(4, (31 - (self.size - 1).bit_length()) // 7)
        parts = [groups[i : min(i + each, len(groups) - 1)] for i in range(0, len(groups) - 1, each)]
        words = [sum((x << 7 * i for i, x in enumerate(part)), jnp.int32(0)) for part in parts]
        *words, top = lax.psum([*words, groups[-1]], self.axes)
        out, carry = [], jnp.int32(0)
        for word, part in zip(words, parts, strict=True):
            word = word + carry
            out += [(word >> 7 * i) & 127 for i in range(len(part))]
            carry = word >> 7 * len(part)
        return [*out, top + carry]

    def kept(self, x: Array, start: Array | int, axis: int) -> Array:
        """Integers that lie along the vocab from row `start` of this device on, 0 where the row is padding."""
        if self.vocab % self.size == 0:
            return x
        return jnp.where(self._real(x, start, axis), x, 0)

    def kept_bits(self, x: Array, axis: int, other: int = 0) -> Array:
        """All rows of this device along an axis, with the bits `other` where the row is padding. By masks: `gather`."""
        if self.vocab % self.size == 0:
            return x
        bits = bits_of(x)
        mask = -self._real(x, 0, axis).astype(bits.dtype)
        return lax.bitcast_convert_type((bits & mask) | (jnp.array(other, bits.dtype) & ~mask), x.dtype)

    def _real(self, x: Array, start: Array | int, axis: int) -> Array:
        rows = self.first() + start + jnp.arange(x.shape[axis], dtype=jnp.int32)
        return (rows < self.vocab).reshape([-1 if i == axis else 1 for i in range(x.ndim)])

    def whole(self, x: Array) -> Array:
        """The columns [N, rows] of all devices, [N, V], on each of them."""
        if not self.axes:
            return x
        bits = lax.all_gather(bits_of(x), self.axes, axis=1, tiled=True, to="invarying")
        return lax.bitcast_convert_type(bits[:, : self.vocab], x.dtype)

    def own(self, x: Array) -> Array:
        """The columns [N, rows] of this device, of [N, V]; 0 where the row is padding."""
        if not self.axes:
            return x
        bits = _behind(bits_of(x), self.rows * self.size - self.vocab, 1)
        return lax.bitcast_convert_type(lax.dynamic_slice_in_dim(bits, self.first(), self.rows, axis=1), x.dtype)

    def check_shared(self, **arguments: Any) -> None:
        """What all devices share is the same on each, as far as JAX can tell."""
        for name, x in arguments.items():
            if x is not None and (found := sorted(varying_axes(x) & self.names)):
                raise ValueError(
                    f"{name} varies along mesh axis {_listed(found)}; expected the same on every shard: leave the axis "
                    'out of its PartitionSpec, or gather it with jax.lax.all_gather(..., to="invarying")'
                )

    def check_apart(self, **arguments: Any) -> None:
        """What is sharded differs from device to device, as far as JAX can tell."""
        for name, x in arguments.items():
            for leaf in jax.tree.leaves(x):
                if missing := sorted(self.names - varying_axes(leaf)):
                    raise ValueError(
                        f"{name} is the same along mesh axis {_listed(missing)}; expected the shard of each device: "
                        "name the axis in its PartitionSpec"
                    )

    def check_rows(self, rows: int, name: str = "weight", unit: str = "rows") -> None:
        if rows != self.rows:
            whole = f"pad_vocab(weight, {self.size})" if name == "weight" else f"{self.rows * self.size} {unit}"
            raise ValueError(
                f"{name} has {rows} {unit}; expected {self.rows}, a shard of vocab {self.vocab} over {self.size}: pass "
                f"{whole} through the PartitionSpec of jax.shard_map"
            )


ALONE = Shards()


def shards_along(axis_name: Any, vocab: Any = 0) -> Shards:
    """The shards along a mesh axis of the `jax.shard_map` around the call, or along several."""
    axes = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    if not axes or not all(isinstance(axis, str) for axis in axes):
        raise TypeError(f"axis_name is {axis_name!r}; expected the name of a mesh axis, or a tuple of names")
    if (vocab := as_vocab(vocab)) > 2**31 - 1:
        raise ValueError(f"vocab is {vocab}; expected fewer than 2^31 rows")
    try:
        sizes = [lax.axis_size(axis) for axis in axes]
    except NameError:
        raise ValueError(
            f"axis_name is {axis_name!r}; expected an axis of the mesh of a jax.shard_map around the call"
        ) from None
    tracked = varying_axes(lax.axis_index(axes))
    if lost := [axis for axis, size in zip(axes, sizes, strict=True) if size > 1 and axis not in tracked]:
        raise ValueError(
            f"mesh axis {_listed(lost)} is not tracked; expected jax.shard_map in its default mode, check_vma=True: "
            "without it JAX would add up the gradients of what the shards share"
        )
    return Shards(tuple(axis for axis in axes if axis in tracked), int(np.prod(sizes)), vocab)


def without_vmap(function: Callable[..., Any], operator: str) -> Callable[..., Any]:
    """A function whose `jax.vmap` is refused."""
    single = jax.custom_batching.custom_vmap(function)

    @single.def_vmap
    def refuse(*_: Any) -> Any:
        raise NotImplementedError(f"vmap over {operator} is not offered: pass more rows in one call")

    return single


def local(term: Term, operator: str, shards: frozenset[str], apart: bool, **changes: Any) -> Term:
    """A term of an operator that is sharded along mesh axes and never batched; changes are of fields of `Term`."""
    transpose = changes.pop("transpose", term.transpose)

    def transposed(cotangent: Array, own: Any, *operands: Array) -> Array:
        def gradient(cotangent: Array, *operands: Array) -> Array:
            return transpose(cotangent, own, *operands)

        return gradient_only(without_vmap(gradient, operator), operator)(cotangent, *operands)

    return replace(term, operator=operator, transpose=transposed, shards=shards, apart=apart, **changes)


def one_column(hidden: Array) -> Array:
    """Of [N, K], what tells N. Not empty: jax (0.10.2 to 0.11.2) cannot always pass empty arrays through shard_map."""
    return lax.slice_in_dim(hidden, 0, min(1, hidden.shape[1]), axis=1)


def _listed(axes: Any) -> str:
    return ", ".join(repr(axis) for axis in axes)
