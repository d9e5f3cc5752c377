"""What a device can run.

The twin is rlk_jax/devices.py.
"""

from functools import cache
from importlib.util import find_spec

import torch


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
