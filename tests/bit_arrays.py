"""Arrays of any bits, and every memory layout that must not matter, for the tests of the comparer."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def random_bits(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    """Any bits at all, so NaN payloads, subnormals and infinities among them."""
    draw = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return draw.view(dtype).reshape(shape)


LAYOUTS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "big-endian": lambda x: x.byteswap().view(x.dtype.newbyteorder(">")),
}
