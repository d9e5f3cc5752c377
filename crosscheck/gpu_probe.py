"""Whether there is a CUDA device, asked of the driver in a process of its own: no framework, and no state in this."""

import ctypes
import subprocess
import sys

__all__ = ["missing_gpu"]

LIMIT = 120.0  # seconds; a driver that starts several GPUs takes some


def missing_gpu() -> str | None:
    """None where the driver has a CUDA device, else why not, in words. CUDA_VISIBLE_DEVICES counts."""
    try:
        done = subprocess.run([sys.executable, "-I", __file__], capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"no CUDA device: the NVIDIA driver does not answer within {LIMIT:g} s"
    if done.returncode == 0:
        return None
    words = done.stderr.strip().splitlines()
    return f"no CUDA device: {words[-1] if words else f'the question ended with status {done.returncode}'}"


def _ask() -> str | None:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return f"there is no NVIDIA driver ({name})"
    count = ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return f"the NVIDIA driver has none to use (CUDA error {code})"
    return None if count.value else "the NVIDIA driver has none to use"


if __name__ == "__main__":
    sys.exit(_ask())
