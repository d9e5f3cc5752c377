"""The LM head as a module: its own weight, or that of an embedding table.

The twin is rlk_jax/modules.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlk_torch.alignment import Aligned, align
from rlk_torch.checks import check_digits, check_floats
from rlk_torch.lm_head import lm_head, lm_head_fp32
from rlk_torch.quantized import QuantizedTable
from rlk_torch.tables import EmbeddingTable

_PLANES = ("planes", "exponent", "nonfinite")


class LMHead(nn.Module):
    """An LM head with its weight: `head(hidden)` and `head.fp32(hidden)`.

    Arguments:
        weight: [V, K] bfloat16, float16 or float32, a `QuantizedTable`, `align(weight, digits)`, or an `EmbeddingTable`
            on a device, whose weight the head then shares, without the table's scale.
        bias: [V] of any of these types, or None.
        digits: of both paths; None means those of an `Aligned`, else what `lm_head` and `lm_head_fp32` take.

    The functions are `lm_head` and `lm_head_fp32`, gradients included. The gradients of a tied weight's two uses are
    added in floating point. Tensors become parameters; a tied weight is the table's own. An `Aligned` is a constant,
    and not part of the state: align again after the weight was loaded.

    Raises:
        TypeError: a weight or bias of another dtype, digits that are no integer.
        ValueError: shapes that do not meet, other digits than those of an `Aligned`, a table in host memory.

    Example:
        >>> head = LMHead(torch.tensor([[1.0, 0.5], [0.0, -1.0]]))
        >>> head(torch.tensor([1.0, 2.0])).tolist()
        [2.0, -2.0]
    """

    weight: Tensor | QuantizedTable | Aligned
    bias: Tensor | None

    def __init__(
        self,
        weight: Tensor | QuantizedTable | Aligned | EmbeddingTable,
        bias: Tensor | None = None,
        *,
        digits: int | None = None,
    ) -> None:
        super().__init__()
        self._tied = isinstance(weight, EmbeddingTable)
        own = own_weight(weight)
        self.digits = digits_of(own, digits)
        check_bias(bias, own.shape[0])
        self.weight = own if isinstance(own, nn.Parameter | QuantizedTable | Aligned) else nn.Parameter(own)
        self.register_parameter("bias", bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias))

    @property
    def tied(self) -> bool:
        """The weight is that of an embedding table."""
        return self._tied

    @property
    def shape(self) -> tuple[int, int]:
        """[V, K], the shape of the weight."""
        return self.weight.shape[0], self.weight.shape[1]

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., K] -> logits [..., V] in hidden's dtype."""
        return lm_head(hidden, self.weight, self.bias, digits=self.digits)

    def fp32(self, hidden: Tensor) -> Tensor:
        """[..., K] -> logits [..., V] in float32."""
        return lm_head_fp32(hidden, self.weight, self.bias, digits=4 if self.digits is None else self.digits)

    def aligned(self, digits: int | None = None) -> "LMHead":
        """A head on this weight aligned once, for many calls, with the same bias.

        digits: None means the head's own, else 4 for a float32 weight and 3 for any other. The weight is a constant
        there: its gradient is refused, and a change of it is not followed.
        """
        return LMHead(align_once(self.weight, self.digits if digits is None else digits), self.bias)

    def extra_repr(self) -> str:
        kind = ", aligned" if isinstance(self.weight, Aligned) else ""
        return f"{self.shape[0]}, {self.shape[1]}, digits={self.digits}, tied={self.tied}{kind}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "LMHead":
        """An `Aligned` moves with its head."""
        super()._apply(fn, recurse)
        if isinstance(self.weight, Aligned):
            planes, exponent, nonfinite = (fn(getattr(self.weight, name)) for name in _PLANES)
            self.weight = Aligned(planes, exponent, nonfinite, self.weight.length, self.weight.origin)
        return self


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
    return align(weight, (4 if getattr(weight, "dtype", None) == torch.float32 else 3) if digits is None else digits)
