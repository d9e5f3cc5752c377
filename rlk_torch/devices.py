"""What a device can run.

The twin is rlk_jax/devices.py.
"""

from functools import cache
from importlib.util import find_spec

import torch


def as_device(device: str | torch.device) -> torch.device:
    """A device that is there, with an index where one was given."""
    name = str(device)
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"no device {name!r}; expected 'cpu', 'cuda' or 'cuda:N'") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"no device {name!r}; expected 'cpu', 'cuda' or 'cuda:N'")
    found = 1 if chosen.type == "cpu" else torch.cuda.device_count()
    if (chosen.index or 0) >= found:
        raise ValueError(f"device {name!r} is not available: torch sees {found} {chosen.type.upper()} devices")
    return torch.device("cpu") if chosen.type == "cpu" else chosen


@cache
def has_triton(device: torch.device) -> bool:
    """Triton is installed and the card multiplies bytes in its matrix units (compute capability 8 and newer)."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8


@cache
def has_tensor_copies(device: torch.device) -> bool:
    """The card copies tiles by tensor descriptors in hardware (Hopper and newer)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
