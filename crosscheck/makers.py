"""Arrays of the framework and the device of an array that is given, for `crosscheck.subjects`."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.backends import NumpyAdapter
from crosscheck.torch_adapter import TorchAdapter

__all__ = ["OnJaxDevice", "maker_of"]

Array = NDArray[Any]


class OnJaxDevice:
    def __init__(self, x: Any, name: str) -> None:
        if len(x.devices()) > 1:
            raise ValueError(f"{name} lies on {len(x.devices())} devices; expected one: shard it inside the function")
        (self.device,) = x.devices()

    def from_numpy(self, array: Array) -> Any:
        return sys.modules["jax"].device_put(array.copy(), self.device)

    def place(self, array: Array, layout: str) -> Any:
        return self.from_numpy(array)


def maker_of(x: Any, name: str) -> Any:
    """What makes arrays of the framework and device of x, by `from_numpy` and `place`."""
    if isinstance(x, np.ndarray | np.generic):
        return NumpyAdapter("cpu", 1)
    torch = sys.modules.get("torch")
    in_torch = torch is not None and isinstance(x, torch.Tensor)
    return TorchAdapter(str(x.device), 1) if in_torch else OnJaxDevice(x, name)
