"""Operators by name, with the name of what really runs.

The twin is rlk_torch/dispatch.py.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rlk_jax.alignment import Aligned
from rlk_jax.checks import FLOAT_DTYPES
from rlk_jax.devices import as_device, default_device, device_of, has_pallas
from rlk_jax.embedding import run_embedding, why_not
from rlk_jax.lm_head import default_digits, run_lm_head

_IMPLEMENTATIONS = {"embedding": ("gather", "pallas"), "lm_head": ("int8",)}


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
    forward: Callable[..., Array]
    forward_fp32: Callable[..., Array]
    served_by: Callable[..., str]

    def __repr__(self) -> str:
        return f"Operator({self.name!r}, device={self.device!r}, implementation={self.implementation!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Array:
        return self.forward(*args, **kwargs)


def get_op(name: str, device: str | jax.Device | None = None, implementation: str | None = None) -> Operator:
    """An operator with a named device and implementation.

    Arguments:
        name: "embedding" or "lm_head".
        device: "cpu" or "cuda" (the first one), "cpu:N", "cuda:N" or a `jax.Device`, whichever is the default;
            None means the CPU.
        implementation: "gather" or "pallas" for embedding; "int8" for lm_head; None means the one that the
            plain function takes on this device.

    Returns:
        `Operator`, whose `implementation` names what runs, and `served_by(weight)` what runs for a weight of
        unusual sizes.

    Raises:
        ValueError: an unknown name, device or implementation, or one that cannot be served here, with the
            reason. Nothing is replaced by something else.

    Example:
        >>> get_op("lm_head").implementation
        'int8'
    """
    if name not in _IMPLEMENTATIONS:
        raise ValueError(f"no operator {name!r}; expected one of {_listed(_IMPLEMENTATIONS)}")
    chosen, asked = as_device("cpu" if device is None else device), implementation or ""
    pallas = name == "embedding" and has_pallas(chosen)
    if implementation is None:
        implementation = "pallas" if pallas else _IMPLEMENTATIONS[name][0]
    if implementation not in _IMPLEMENTATIONS[name]:
        known = _listed(_IMPLEMENTATIONS[name])
        raise ValueError(f"no implementation {implementation!r} of {name}; expected one of {known}")
    if implementation == "pallas" and not pallas:
        raise ValueError(
            f"implementation 'pallas' of {name} needs a CUDA device of compute capability 9 or newer and device "
            f"is {chosen.platform}; use {_IMPLEMENTATIONS[name][0]!r}"
        )
    functions = _embedding_functions if name == "embedding" else _lm_head_functions
    forward, forward_fp32 = functions(chosen, asked)

    def served_by(weight: Array | Aligned, digits: int = 3) -> str:
        refused = implementation == "pallas" and not asked and why_not(weight)
        return "gather" if refused else str(implementation)

    return Operator(name, str(device or "cpu"), implementation, forward, forward_fp32, served_by)


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names)


def _on(device: jax.Device, **arguments: Any) -> tuple[Any, ...]:
    """The arguments on the operator's device; NumPy arrays and unbound JAX arrays are moved there."""
    for name, x in arguments.items():
        for leaf in jax.tree.leaves(x):
            got = _bound_to(leaf)
            if got and got != {device}:
                where = ", ".join(sorted(map(str, got)))
                if name == "weight":
                    raise ValueError(
                        f"weight is on {where} and the operator on {device}; move weight, or get_op for {where}"
                    )
                raise ValueError(f"{name} is on {where}, weight on {device}; expected one device: move one of them")

    def move(x: Any) -> Any:
        known = isinstance(x, Array) or (isinstance(x, np.ndarray) and x.dtype in FLOAT_DTYPES)  # float64 is refused
        free = known and not isinstance(x, jax.core.Tracer) and device_of(x) is None
        return jax.device_put(x, device) if free else x

    return tuple(jax.tree.map(move, x) for x in arguments.values())


def _bound_to(x: Any) -> set[jax.Device]:
    """The devices that an array is bound to."""
    return set() if isinstance(x, jax.core.Tracer) or not getattr(x, "committed", False) else x.devices()


def _at_home(device: jax.Device) -> AbstractContextManager[None]:
    """What asks for the default device gets the operator's. Where it is that already, nothing compiles anew."""
    return nullcontext() if default_device() == device else jax.default_device(device)


def _embedding_functions(device: jax.Device, implementation: str) -> tuple[Callable[..., Array], Callable[..., Array]]:
    def forward(token_ids: Any, weight: Array, *, check_ids: bool = True, padding_idx: int | None = None) -> Array:
        (weight, *_) = _on(device, weight=weight, token_ids=token_ids if isinstance(token_ids, Array) else None)
        with _at_home(device):
            return run_embedding(token_ids, weight, check_ids, padding_idx, False, implementation)

    def forward_fp32(token_ids: Any, weight: Array, *, check_ids: bool = True, padding_idx: int | None = None) -> Array:
        (weight, *_) = _on(device, weight=weight, token_ids=token_ids if isinstance(token_ids, Array) else None)
        with _at_home(device):
            return run_embedding(token_ids, weight, check_ids, padding_idx, True, implementation)

    return forward, forward_fp32


def _lm_head_functions(device: jax.Device, implementation: str) -> tuple[Callable[..., Array], Callable[..., Array]]:
    def forward(
        hidden: Array, weight: Array | Aligned, bias: Array | None = None, *, digits: int | None = None
    ) -> Array:
        weight, hidden, bias = _on(device, weight=weight, hidden=hidden, bias=bias)
        digits = default_digits(hidden) if digits is None else digits
        with _at_home(device):
            return run_lm_head(hidden, weight, bias, digits, getattr(hidden, "dtype", jnp.float32))

    def forward_fp32(hidden: Array, weight: Array | Aligned, bias: Array | None = None, *, digits: int = 4) -> Array:
        weight, hidden, bias = _on(device, weight=weight, hidden=hidden, bias=bias)
        with _at_home(device):
            return run_lm_head(hidden, weight, bias, digits, jnp.float32)

    return forward, forward_fp32
