"""Embedding tables as modules: where the rows stay, and what they are multiplied by.

docs/tables.md says what is rounded. The twin is rlk_jax/tables.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlk_torch.checks import FLOAT_DTYPES, as_padding_idx, as_scale, check_floats, dtype_name
from rlk_torch.devices import as_device, has_triton
from rlk_torch.embedding import run_embedding
from rlk_torch.host_rows import host_rows, pinned
from rlk_torch.host_rows import mechanism as host_mechanism
from rlk_torch.quantized import QuantizedTable
from rlk_torch.quantized_rows import quantized_rows


class EmbeddingTable(nn.Module):
    """A table whose rows token ids name: `table(token_ids)` and `table.fp32(token_ids)`.

    Arguments:
        weight: [V, H] bfloat16, float16 or float32, or a `QuantizedTable`. A tensor becomes a parameter; in host memory
            it is a buffer, and a constant.
        residency: "device": the table stays where the weight is. "host": it stays in host memory, costs no device
            memory, and its rows appear on `device`.
        device: of the rows of a table in host memory; None means torch's default device now.
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
        >>> table = EmbeddingTable(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), scale=0.5)
        >>> table([1, 0]).tolist()
        [[1.5, 2.0], [0.5, 1.0]]
    """

    weight: Tensor | QuantizedTable

    def __init__(
        self,
        weight: Tensor | QuantizedTable,
        *,
        residency: str = "device",
        device: str | torch.device | None = None,
        scale: float | None = None,
        padding_idx: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        quantized = isinstance(weight, QuantizedTable)
        if not quantized:
            check_floats("weight", weight, "[V, H]", 2)
        check_residency(residency, device)
        self.residency, self.scale = residency, as_scale(scale)
        self.padding_idx = as_padding_idx(padding_idx, weight.shape[0])
        self.dtype = as_result_dtype(dtype, quantized)
        self.device = _with_index(device) if residency == "host" else None
        if residency == "host":
            weight = _in_host_memory(weight, self.device)
        if isinstance(weight, QuantizedTable):
            self.weight = weight
        elif residency == "host":
            self.register_buffer("weight", weight)
        else:
            self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)

    @property
    def shape(self) -> tuple[int, int]:
        """[V, H], the shape of the table."""
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def mechanism(self) -> str:
        """What really gathers rows, in a few words."""
        parts = [self.weight.values, self.weight.scale] if isinstance(self.weight, QuantizedTable) else [self.weight]
        if self.device is not None:
            return host_mechanism(self.device, *parts)
        return f"{'a Triton kernel' if has_triton(parts[0].device) else 'a gather'} on {parts[0].device}"

    def forward(self, token_ids: Any, *, check_ids: bool = True) -> Tensor:
        """[...] ids of any integer dtype -> [..., H] in the table's dtype."""
        return self._rows(token_ids, check_ids, widen=False)

    def fp32(self, token_ids: Any, *, check_ids: bool = True) -> Tensor:
        """[...] ids of any integer dtype -> [..., H] in float32."""
        return self._rows(token_ids, check_ids, widen=True)

    def _rows(self, token_ids: Any, check_ids: bool, widen: bool) -> Tensor:
        if isinstance(self.weight, QuantizedTable):
            dtype = torch.float32 if widen or self.dtype is None else self.dtype
            device = self.device or self.weight.device
            return quantized_rows(token_ids, self.weight, device, check_ids, dtype, self.scale)
        if self.device is not None:
            return host_rows(token_ids, self.weight, self.device, check_ids, widen, self.scale)
        return run_embedding(token_ids, self.weight, check_ids, self.padding_idx, widen, scale=self.scale)

    def extra_repr(self) -> str:
        options = {"scale": self.scale, "padding_idx": self.padding_idx, "device": self.device, "dtype": self.dtype}
        named = "".join(f", {name}={value}" for name, value in options.items() if value is not None)
        return f"{self.shape[0]}, {self.shape[1]}, residency={self.residency!r}{named}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "EmbeddingTable":
        """A table in host memory stays there, and as it is, wherever its model goes."""
        return self if self.residency == "host" else super()._apply(fn, recurse)


def check_residency(residency: Any, device: Any) -> None:
    """Where a table stays, and the device of its rows."""
    if residency not in ("device", "host"):
        raise ValueError(f"residency is {residency!r}; expected 'device' or 'host'")
    if residency == "device" and device is not None:
        raise ValueError(
            f"device is {device} and residency 'device'; expected a device for a table in host memory alone: move the "
            "weight itself"
        )


def as_result_dtype(dtype: Any, quantized: bool) -> torch.dtype | None:
    """The dtype of the rows of a quantized table; None for another, whose rows have its own."""
    if not quantized:
        if dtype is not None:
            raise ValueError("dtype is for a QuantizedTable; expected None: the rows have the weight's dtype")
        return None
    chosen: Any = torch.bfloat16 if dtype is None else dtype
    if chosen not in FLOAT_DTYPES:
        name = dtype_name(torch.empty(0, dtype=chosen)) if isinstance(chosen, torch.dtype) else repr(chosen)
        raise TypeError(f"dtype is {name}; expected bfloat16, float16 or float32")
    return chosen


def _with_index(device: str | torch.device | None) -> torch.device:
    chosen = torch.get_default_device() if device is None else as_device(device)
    return torch.device("cuda", torch.cuda.current_device()) if str(chosen) == "cuda" else chosen


def _in_host_memory(weight: Tensor | QuantizedTable, device: Any) -> Tensor | QuantizedTable:
    if isinstance(weight, QuantizedTable):
        return QuantizedTable(pinned(weight.values, device), pinned(weight.scale, device))
    return pinned(weight, device)
