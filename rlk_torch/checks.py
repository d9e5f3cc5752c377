"""Argument checks shared by the operators: what was got, what was expected, what to do.

The twin is rlk_jax/checks.py, which raises the same errors with the same words.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_INTEGERS = (
    torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64,
)  # fmt: skip


def dtype_name(x: Any) -> str:
    """`bfloat16` for torch.bfloat16: the name both packages print."""
    return str(x.dtype).removeprefix("torch.")


def check_floats(name: str, x: Any, shape: str, ndim: int | None = None) -> None:
    """x is an array of a supported float type, with ndim dimensions where that is given."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; expected an array of shape {shape}: convert it first")
    if x.dtype not in FLOAT_DTYPES:
        raise TypeError(f"{name} has dtype {dtype_name(x)}; expected bfloat16, float16 or float32: convert it first")
    if ndim is not None and x.ndim != ndim:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {shape}: reshape it first")


def check_digits(digits: Any) -> int:
    if isinstance(digits, bool) or not isinstance(digits, int):
        raise TypeError(f"digits is a {type(digits).__name__}; expected the integer 2, 3 or 4")
    if digits not in (2, 3, 4):
        raise ValueError(f"digits is {digits}; expected 2 (coarse), 3 (the default) or 4 (ground truth)")
    return digits


def check_lm_head(hidden: Any, weight_shape: tuple[int, int], bias: Any) -> None:
    """Shapes and dtypes of an LM head call against the weight's [V, K]."""
    check_floats("hidden", hidden, "[..., K]")
    if hidden.ndim == 0:
        raise ValueError("hidden has shape (); expected [..., K]: add the hidden dimension")
    vocab, width = weight_shape
    if hidden.shape[-1] != width:
        raise ValueError(
            f"hidden has shape {tuple(hidden.shape)} and weight {(vocab, width)}; expected [..., K] and [V, K] "
            "with one K: transpose or slice one of them"
        )
    if bias is not None:
        check_floats("bias", bias, "[V]", 1)
        if bias.shape[0] != vocab:
            raise ValueError(f"bias has shape {tuple(bias.shape)}; expected {(vocab,)}, one value a row of weight")


def check_same_device(device: torch.device, **others: Tensor | None) -> None:
    for name, x in others.items():
        if x is not None and x.device != device:
            raise ValueError(f"{name} is on {x.device}, weight on {device}; expected one device: move one of them")


def as_token_ids(token_ids: Any, device: torch.device) -> Tensor:
    """Ids of any integer dtype as a tensor; Python and NumPy integers are moved to the table's device."""
    if not isinstance(token_ids, Tensor):
        token_ids = _from_numbers(token_ids).to(device)
    if token_ids.dtype not in _INTEGERS:
        raise TypeError(_not_integers(dtype_name(token_ids)))
    check_same_device(device, token_ids=token_ids)
    return token_ids


def _from_numbers(x: Any) -> Tensor:
    if torch.compiler.is_compiling():  # the compiler knows NumPy arrays as tensors, and has no dtype for them
        tensor = torch.as_tensor(x)
        return tensor if tensor.numel() or isinstance(x, np.ndarray) else tensor.long()
    array = np.asarray(x)
    if array.size == 0 and not isinstance(x, np.ndarray):
        array = array.astype(np.int64)  # NumPy calls an empty list float64
    if array.dtype.kind not in "iu":
        raise TypeError(_not_integers(array.dtype.name))
    # torch takes neither read-only memory, nor another byte order, nor the second C type of 64 bits.
    native = np.empty(array.shape, array.dtype.name)
    native[...] = array
    return torch.from_numpy(native)


def _not_integers(dtype: str) -> str:
    return f"token_ids has dtype {dtype}; expected an integer dtype: convert the ids, or use them as a mask instead"


def as_int64(token_ids: Tensor) -> Tensor:
    """Widened, never narrowed: a uint64 id of 2^63 and more becomes a negative number, which no table has."""
    return token_ids.view(torch.int64) if token_ids.dtype == torch.uint64 else token_ids.to(torch.int64)


def raise_bad_id(token_ids: Tensor, vocab: int, bad: Tensor) -> None:
    """IndexError that names the first bad id, its position and the vocab."""
    position = tuple(int(i) for i in bad.nonzero()[0])
    raise IndexError(
        f"token_ids{list(position) if position else ''} is {token_ids[position].item()}; expected "
        f"0 <= id < {vocab}, the vocab: check the tokenizer against the table, or mask padding ids first"
    )
