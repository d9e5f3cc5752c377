"""The LM head as a pytree: its own weight, or that of an embedding table.

The twin is rlk_torch/modules.py.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rlk_jax.alignment import Aligned, align
from rlk_jax.checks import check_digits, check_floats
from rlk_jax.lm_head import lm_head, lm_head_fp32
from rlk_jax.quantized import QuantizedTable
from rlk_jax.tables import EmbeddingTable


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False, repr=False)
class LMHead:
    """An LM head with its weight: `head(hidden)` and `head.fp32(hidden)`. A pytree.

    Arguments:
        weight: [V, K] bfloat16, float16 or float32, a `QuantizedTable`, `align(weight, digits)`, or an `EmbeddingTable`
            on a device, whose weight the head then shares, without the table's scale.
        bias: [V] of any of these types, or None.
        digits: of both paths; None means those of an `Aligned`, else what `lm_head` and `lm_head_fp32` take.

    The functions are `lm_head` and `lm_head_fp32`, gradients included. A head and its table are two leaves of a tree,
    with two gradients; make a tied head of the table where the loss is computed, and they are added, in floating point.
    An `Aligned` is a constant: align again after the weight has changed.

    Raises:
        TypeError: a weight or bias of another dtype, digits that are no integer.
        ValueError: shapes that do not meet, other digits than those of an `Aligned`, a table in host memory.

    Example:
        >>> head = LMHead(jnp.array([[1.0, 0.5], [0.0, -1.0]]))
        >>> head(jnp.array([1.0, 2.0])).tolist()
        [2.0, -2.0]
    """

    weight: Any
    bias: Array | np.ndarray | None = None
    _: KW_ONLY
    digits: int | None = None

    def __post_init__(self) -> None:
        own = own_weight(self.weight)
        check_bias(self.bias, own.shape[0])
        weight, bias = jax.tree.map(lambda x: jnp.array(x) if isinstance(x, np.ndarray) else x, (own, self.bias))
        _set(self, weight, bias, digits_of(own, self.digits), isinstance(self.weight, EmbeddingTable))

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        key = jax.tree_util.GetAttrKey
        return ((key("weight"), self.weight), (key("bias"), self.bias)), (self.digits, self.tied)

    @classmethod
    def tree_unflatten(cls, known: tuple[Any, ...], parts: Any) -> "LMHead":
        """Of anything, without checks: JAX keeps more than arrays in trees."""
        head: LMHead = object.__new__(cls)
        (weight, bias), (digits, tied) = parts, known
        _set(head, weight, bias, digits, tied)
        return head

    @property
    def tied(self) -> bool:
        """The weight is that of an embedding table."""
        return bool(getattr(self, "_tied"))  # noqa: B009

    @property
    def shape(self) -> tuple[int, int]:
        """[V, K], the shape of the weight."""
        return self.weight.shape[0], self.weight.shape[1]

    def __call__(self, hidden: Array | np.ndarray) -> Array:
        """[..., K] -> logits [..., V] in hidden's dtype."""
        return lm_head(hidden, self.weight, self.bias, digits=self.digits)

    def fp32(self, hidden: Array | np.ndarray) -> Array:
        """[..., K] -> logits [..., V] in float32."""
        return lm_head_fp32(hidden, self.weight, self.bias, digits=4 if self.digits is None else self.digits)

    def aligned(self, digits: int | None = None) -> "LMHead":
        """A head on this weight aligned once, for many calls, with the same bias.

        digits: None means the head's own, else 4 for a float32 weight and 3 for any other. The weight is a constant
        there: its gradient is refused, and a change of it is not followed.
        """
        return LMHead(align_once(self.weight, self.digits if digits is None else digits), self.bias)

    def __repr__(self) -> str:
        kind = ", aligned" if isinstance(self.weight, Aligned) else ""
        return f"LMHead({self.shape[0]}, {self.shape[1]}, digits={self.digits}, tied={self.tied}{kind})"


def _set(head: LMHead, weight: Any, bias: Any, digits: int | None, tied: bool) -> None:
    for name, value in {"weight": weight, "bias": bias, "digits": digits, "_tied": tied}.items():
        object.__setattr__(head, name, value)


def own_weight(weight: Any) -> Any:
    """The weight of a head, from what it is made of."""
    if isinstance(weight, EmbeddingTable):
        if weight.residency == "host":
            raise ValueError(
                "weight is a table in host memory; expected one on a device: an LM head reads all rows in each call"
            )
        return weight.weight
    if not isinstance(weight, QuantizedTable | Aligned):
        check_floats("weight", weight, "[V, K]", 2)
    return weight


def digits_of(weight: Any, digits: int | None) -> int | None:
    """The digits of a head, None where each call takes its default."""
    if digits is not None:
        check_digits(digits)
    if not isinstance(weight, Aligned):
        return digits
    if digits not in (None, weight.digits):
        raise ValueError(
            f"weight is aligned with {weight.digits} digits and the head uses {digits}; expected one number: "
            f"align(weight, {digits}), or digits={weight.digits}"
        )
    return weight.digits


def check_bias(bias: Any, vocab: int) -> None:
    if bias is None:
        return
    check_floats("bias", bias, "[V]", 1)
    if bias.shape[0] != vocab:
        raise ValueError(f"bias has shape {tuple(bias.shape)}; expected {(vocab,)}, one value a row of weight")


def align_once(weight: Any, digits: int | None) -> Aligned:
    """The weight of a head, aligned; one that is aligned already, as it is."""
    if isinstance(weight, Aligned):
        digits_of(weight, digits)
        return weight
    return align(weight, (4 if getattr(weight, "dtype", None) == jnp.float32 else 3) if digits is None else digits)
