"""Operators by name, with the name of what really runs.

The twin is rlk_jax/dispatch.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlk_torch.alignment import Aligned
from rlk_torch.devices import as_device, has_triton
from rlk_torch.embedding import default_implementation as default_gather
from rlk_torch.embedding import run_embedding
from rlk_torch.lm_head import default_digits, run_lm_head
from rlk_torch.products import default_implementation as default_products

_IMPLEMENTATIONS = {"embedding": ("gather", "triton"), "lm_head": ("int8", "float64", "triton")}


@dataclass(frozen=True, repr=False)
class Operator:
    """An operator on one device by one implementation.

    `forward` (also the call itself) and `forward_fp32` take the arguments of the function of the
    operator's name and of its `_fp32` form, on this device only. `served_by(weight, digits=3)` names the
    implementation that takes a call with this weight, where none was asked for by name.
    """

    name: str
    device: str
    implementation: str
    forward: Callable[..., Tensor]
    forward_fp32: Callable[..., Tensor]
    served_by: Callable[..., str]

    def __repr__(self) -> str:
        return f"Operator({self.name!r}, device={self.device!r}, implementation={self.implementation!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.forward(*args, **kwargs)


def get_op(name: str, device: str | torch.device | None = None, implementation: str | None = None) -> Operator:
    """An operator with a named device and implementation.

    Arguments:
        name: "embedding" or "lm_head".
        device: "cpu", "cuda" (any GPU), "cuda:N" or a `torch.device`, whichever is current; None means the CPU.
        implementation: "gather" or "triton" for embedding; "int8", "float64" or "triton" for lm_head; None
            means the one that the plain function takes on this device.

    Returns:
        `Operator`, whose `implementation` names what runs, and `served_by(weight)` what runs for a weight of
        unusual sizes.

    Raises:
        ValueError: an unknown name, device or implementation, or one that cannot be served here, with the
            reason. Nothing is replaced by something else.

    Example:
        >>> get_op("lm_head", implementation="float64").implementation
        'float64'
    """
    if name not in _IMPLEMENTATIONS:
        raise ValueError(f"no operator {name!r}; expected one of {_listed(_IMPLEMENTATIONS)}")
    chosen, asked = as_device("cpu" if device is None else device), implementation or ""
    if implementation is None:
        implementation = default_gather(chosen) if name == "embedding" else default_products(chosen)
    if implementation not in _IMPLEMENTATIONS[name]:
        known = _listed(_IMPLEMENTATIONS[name])
        raise ValueError(f"no implementation {implementation!r} of {name}; expected one of {known}")
    if implementation == "int8" and chosen.type != "cpu":
        raise ValueError(f"implementation 'int8' of lm_head runs on the CPU and device is {chosen}; use 'float64'")
    if implementation == "triton" and not has_triton(chosen):
        raise ValueError(
            f"implementation 'triton' of {name} needs a CUDA device of compute capability 8 or newer with Triton "
            f"installed and device is {chosen}; use {_IMPLEMENTATIONS[name][0]!r}"
        )
    functions = _embedding_functions if name == "embedding" else _lm_head_functions
    forward, forward_fp32 = functions(chosen, asked)

    def served_by(weight: Tensor | Aligned, digits: int = 3) -> str:
        if asked or name == "embedding":
            return str(implementation)
        return default_products(chosen, digits, weight.shape[1])

    return Operator(name, str(chosen), implementation, forward, forward_fp32, served_by)


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names)


def _check_on(device: torch.device, weight: Any) -> None:
    got = getattr(weight, "device", device)
    if got.type != device.type or (device.index is not None and got.index != device.index):
        raise ValueError(f"weight is on {got} and the operator on {device}; move weight, or get_op for {got}")


def _embedding_functions(
    device: torch.device, implementation: str
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def forward(token_ids: Any, weight: Tensor, *, check_ids: bool = True, padding_idx: int | None = None) -> Tensor:
        _check_on(device, weight)
        return run_embedding(token_ids, weight, check_ids, padding_idx, False, implementation)

    def forward_fp32(
        token_ids: Any, weight: Tensor, *, check_ids: bool = True, padding_idx: int | None = None
    ) -> Tensor:
        _check_on(device, weight)
        return run_embedding(token_ids, weight, check_ids, padding_idx, True, implementation)

    return forward, forward_fp32


def _lm_head_functions(
    device: torch.device, implementation: str
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def forward(
        hidden: Tensor, weight: Tensor | Aligned, bias: Tensor | None = None, *, digits: int | None = None
    ) -> Tensor:
        _check_on(device, weight)
        digits = default_digits(hidden) if digits is None else digits
        dtype = getattr(hidden, "dtype", torch.float32)
        return run_lm_head(hidden, weight, bias, digits, dtype, implementation)

    def forward_fp32(
        hidden: Tensor, weight: Tensor | Aligned, bias: Tensor | None = None, *, digits: int = 4
    ) -> Tensor:
        _check_on(device, weight)
        return run_lm_head(hidden, weight, bias, digits, torch.float32, implementation)

    return forward, forward_fp32
