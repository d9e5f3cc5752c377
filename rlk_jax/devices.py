"""What a device can run.

The twin is rlk_torch/devices.py.
"""

from typing import Any

import jax


def device_of(x: Any) -> jax.Device | None:
    """The one device that x is bound to; None for traced, sharded, NumPy and freely movable arrays."""
    if isinstance(x, jax.core.Tracer) or not getattr(x, "committed", False):
        return None
    devices = x.devices()
    return next(iter(devices)) if len(devices) == 1 else None


def has_pallas(device: jax.Device | None = None) -> bool:
    """The device (None: the default one) runs Mosaic GPU kernels: compute capability 9 (Hopper) and newer."""
    device = device or jax.devices()[0]
    return device.platform == "gpu" and float(getattr(device, "compute_capability", "0")) >= 9


def on_gpu() -> bool:
    """The default backend is a GPU: block sizes follow it, bits do not."""
    return jax.default_backend() == "gpu"
