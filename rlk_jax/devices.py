"""What a device can run.

The twin is rlk_torch/devices.py.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


def device_of(x: Any) -> jax.Device | None:
    """The one device that x is bound to; None for traced, sharded, NumPy and freely movable arrays."""
    if isinstance(x, jax.core.Tracer) or not getattr(x, "committed", False):
        return None
    devices = x.devices()
    return next(iter(devices)) if len(devices) == 1 else None


def as_device(device: str | jax.Device) -> jax.Device:
    """A device that is there, by itself or by its name."""
    if isinstance(device, jax.Device):
        return device
    platform, _, index = str(device).partition(":")
    if platform not in ("cpu", "cuda") or not (index or "0").isdecimal():
        raise ValueError(f"no device {str(device)!r}; expected 'cpu', 'cuda' or 'cuda:N'")
    try:
        found = jax.devices(platform)
    except RuntimeError:
        found = []
    if int(index or 0) >= len(found):
        raise ValueError(f"device {device!r} is not available: jax sees {len(found)} {platform.upper()} devices")
    return found[int(index or 0)]


def default_device() -> jax.Device:
    """The device of `jax.default_device`, else the first one."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is None:
        return jax.devices()[0]
    return jax.devices(chosen)[0] if isinstance(chosen, str) else chosen


def has_pallas(device: jax.Device | None = None) -> bool:
    """The device (None: the default one) runs Mosaic GPU kernels: compute capability 9 (Hopper) and newer."""
    device = device or default_device()
    return device.platform == "gpu" and float(getattr(device, "compute_capability", "0")) >= 9


def on_gpu() -> bool:
    """The default device is a GPU: block sizes follow it, bits do not."""
    return default_device().platform == "gpu"


def varying_axes(x: Any) -> frozenset[str]:
    """Mesh axes of `jax.shard_map` along which an array, or what stands for one, varies."""
    kind = x if isinstance(x, jax.ShapeDtypeStruct | jax.core.ShapedArray) else jax.typeof(x)
    kind = getattr(kind, "manual_axis_type", None)
    return frozenset() if kind is None else frozenset(kind.varying)


def varying(x: Array, axes: frozenset[str]) -> Array:
    """x, which all devices share, as one that varies along mesh axes: its gradient is then the sum over them."""
    more = axes - varying_axes(x)
    return lax.pcast(x, tuple(sorted(more)), to="varying") if more else x


def repeated(count: int, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """`lax.fori_loop`, whose carry varies from the start along the mesh axes that the body makes it vary along."""
    if jax.sharding.get_abstract_mesh().manual_axes:
        for _ in range(2):  # what varies may pass from one part of the carry to another
            after = jax.eval_shape(body, jnp.int32(0), carry)
            carry = jax.tree.map(lambda x, y: varying(x, varying_axes(y)), carry, after)
    return lax.fori_loop(0, count, body, carry)
