"""Embedding tables as pytrees: where the rows stay, and what they are multiplied by.

docs/tables.md says what is rounded. The twin is rlk_torch/tables.py.
"""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from rlk_jax.checks import FLOAT_DTYPES, as_padding_idx, as_scale, check_floats
from rlk_jax.devices import as_device
from rlk_jax.embedding import default_implementation, run_embedding
from rlk_jax.host_rows import host_rows
from rlk_jax.host_rows import mechanism as host_mechanism
from rlk_jax.quantized import QuantizedTable
from rlk_jax.quantized_rows import host_quantized_rows, quantized_rows

_OPTIONS = ("residency", "device", "scale", "padding_idx", "dtype")


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingTable:
    """A table whose rows token ids name: `table(token_ids)` and `table.fp32(token_ids)`. A pytree.

    Arguments:
        weight: [V, H] bfloat16, float16 or float32, or a `QuantizedTable`. It is a leaf; in host memory it is no leaf
            but a constant.
        residency: "device": the table stays where the weight is. "host": it stays in host memory, costs no device
            memory, and its rows appear on `device`.
        device: of the rows of a table in host memory; None means JAX's default device at each call.
        scale: a number that every row is multiplied by in float32, for example Gemma's square root of the hidden size;
            None leaves the bits of the rows as they are.
        padding_idx: an id whose row gets no gradient, or None.
        dtype: of the rows of a `QuantizedTable`, by default bfloat16; None for any other weight, whose rows have its
            dtype.

    `table(token_ids, check_ids=True)` gives [..., H]: `embedding` of the weight, times the scale if there is one, each
    product rounded once to float32 (below 2^-126 it is +0) and once to the dtype. `table.fp32` leaves out the last
    rounding. The gradient of the weight is that of `embedding`, of upstream gradients times the scale.

    Raises:
        TypeError: a weight, scale, padding_idx or dtype of another type.
        ValueError: a weight that is not [V, H], an unknown residency or device, a scale that is not finite or below
            2^-126, a padding_idx outside the table.

    Example:
        >>> table = EmbeddingTable(jnp.array([[1.0, 2.0], [3.0, 4.0]]), scale=0.5)
        >>> table([1, 0]).tolist()
        [[1.5, 2.0], [0.5, 1.0]]
    """

    weight: Array | np.ndarray | QuantizedTable
    _: KW_ONLY
    residency: str = "device"
    device: str | jax.Device | None = None
    scale: float | None = None
    padding_idx: int | None = None
    dtype: DTypeLike | None = None
    # The leaf of a table in host memory, without elements: through it a gradient finds what is to be refused.
    _origin: Any = field(init=False, default_factory=lambda: np.zeros(0, np.float32))

    def __post_init__(self) -> None:
        quantized = isinstance(self.weight, QuantizedTable)
        if not quantized:
            check_floats("weight", self.weight, "[V, H]", 2)
        check_residency(self.residency, self.device)
        if self.weight.shape[0] > 2**31 - 1:
            raise ValueError(f"weight has {self.weight.shape[0]} rows; expected fewer than 2^31: shard the table")
        in_memory = _on_the_host if self.residency == "host" else _on_a_device
        _set(
            self,
            weight=jax.tree.map(in_memory, self.weight),
            device=None if self.device is None else as_device(self.device),
            scale=as_scale(self.scale),
            padding_idx=as_padding_idx(self.padding_idx, self.weight.shape[0]),
            dtype=as_result_dtype(self.dtype, quantized),
        )

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        options = [getattr(self, name) for name in _OPTIONS]
        if self.residency == "host":
            return ((jax.tree_util.GetAttrKey("_origin"), self._origin),), (*options, _Constant(self.weight))
        return ((jax.tree_util.GetAttrKey("weight"), self.weight),), (*options, None)

    @classmethod
    def tree_unflatten(cls, known: tuple[Any, ...], leaves: Any) -> "EmbeddingTable":
        """Of anything, without checks: JAX keeps more than arrays in trees."""
        table: EmbeddingTable = object.__new__(cls)
        (leaf,), (*options, constant) = leaves, known
        _set(table, **dict(zip(_OPTIONS, options, strict=True)), weight=constant.x if constant else leaf, _origin=leaf)
        return table

    @property
    def shape(self) -> tuple[int, int]:
        """[V, H], the shape of the table."""
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def mechanism(self) -> str:
        """What really gathers rows, in a few words."""
        if self.residency == "host":
            return host_mechanism(self.device)
        plain = isinstance(self.weight, QuantizedTable) or self.scale is not None
        kernel = "gather" if plain else default_implementation(self.weight)
        return "a Pallas kernel on the device" if kernel == "pallas" else "XLA's gather on the device"

    def __call__(self, token_ids: Any, *, check_ids: bool = True) -> Array:
        """[...] ids of any integer dtype -> [..., H] in the table's dtype."""
        return self._rows(token_ids, check_ids, widen=False)

    def fp32(self, token_ids: Any, *, check_ids: bool = True) -> Array:
        """[...] ids of any integer dtype -> [..., H] in float32."""
        return self._rows(token_ids, check_ids, widen=True)

    def _rows(self, token_ids: Any, check_ids: bool, widen: bool) -> Array:
        host = (self.device, check_ids)
        if isinstance(self.weight, QuantizedTable):
            dtype = jnp.float32 if widen or self.dtype is None else self.dtype
            if self.residency == "host":
                return host_quantized_rows(token_ids, self.weight, *host, dtype, self.scale, self._origin)
            return quantized_rows(token_ids, self.weight, check_ids, dtype, self.scale)
        if self.residency == "host":
            return host_rows(token_ids, np.asarray(self.weight), *host, widen, self.scale, self._origin)
        return run_embedding(token_ids, self.weight, check_ids, self.padding_idx, widen, scale=self.scale)

    def __repr__(self) -> str:
        options = {"scale": self.scale, "padding_idx": self.padding_idx, "device": self.device, "dtype": self.dtype}
        named = "".join(f", {name}={value}" for name, value in options.items() if value is not None)
        return f"EmbeddingTable({self.shape[0]}, {self.shape[1]}, residency={self.residency!r}{named})"


class _Constant:
    """Something in a pytree that is no leaf: the same where it is the same object."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Constant) and self.x is other.x

    def __hash__(self) -> int:
        return id(self.x)


def check_residency(residency: Any, device: Any) -> None:
    """Where a table stays, and the device of its rows."""
    if residency not in ("device", "host"):
        raise ValueError(f"residency is {residency!r}; expected 'device' or 'host'")
    if residency == "device" and device is not None:
        raise ValueError(
            f"device is {device} and residency 'device'; expected a device for a table in host memory alone: move the "
            "weight itself"
        )


def as_result_dtype(dtype: Any, quantized: bool) -> Any:
    """The dtype of the rows of a quantized table; None for another, whose rows have its own."""
    if not quantized:
        if dtype is not None:
            raise ValueError("dtype is for a QuantizedTable; expected None: the rows have the weight's dtype")
        return None
    chosen = jnp.dtype(jnp.bfloat16 if dtype is None else dtype)
    if chosen not in FLOAT_DTYPES:
        raise TypeError(f"dtype is {chosen.name}; expected bfloat16, float16 or float32")
    return chosen


def _on_the_host(x: Array | np.ndarray) -> np.ndarray:
    if isinstance(x, jax.core.Tracer):
        raise TypeError("weight is traced; expected an array in host memory: make the table outside of jax.jit")
    return np.asarray(x)


def _on_a_device(x: Array | np.ndarray) -> Array:
    return jnp.array(x) if isinstance(x, np.ndarray) else x


def _set(x: Any, **attributes: Any) -> None:
    for name, value in attributes.items():
        object.__setattr__(x, name, value)
