"""Argument checks shared by the operators: what was got, what was expected, what to do.

The twin is rlk_jax/checks.py, which raises the same errors with the same words.
"""

from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
INTEGER_DTYPES = (
    torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64,
)  # fmt: skip


def dtype_name(x: Any) -> str:
    """`bfloat16` for torch.bfloat16: the name both packages print."""
    return str(x.dtype).removeprefix("torch.")


def check_floats(name: str, x: Any, shape: str, ndim: int | None = None) -> None:
    """x is an array of a supported float type, with ndim dimensions where that is given."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is of type {type(x).__name__}; expected an array of shape {shape}: convert it first")
    if x.layout != torch.strided or x.is_nested:
        raise TypeError(f"{name} has layout {x.layout}; expected a dense array of shape {shape}: convert it first")
    if x.dtype not in FLOAT_DTYPES:
        raise TypeError(f"{name} has dtype {dtype_name(x)}; expected bfloat16, float16 or float32: convert it first")
    if ndim is not None and x.ndim != ndim:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {shape}: reshape it first")


def check_digits(digits: Any) -> int:
    if isinstance(digits, bool) or not isinstance(digits, int):
        raise TypeError(f"digits is of type {type(digits).__name__}; expected the integer 2, 3 or 4")
    if digits not in (2, 3, 4):
        raise ValueError(f"digits is {digits}; expected 2 (coarse), 3 or 4 (ground truth)")
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


def check_same_device(device: torch.device, beside: str = "weight", /, **others: Tensor | None) -> None:
    for name, x in others.items():
        if x is not None and x.device != device:
            raise ValueError(f"{name} is on {x.device}, {beside} on {device}; expected one device: move one of them")


def as_token_ids(
    token_ids: Any, device: torch.device, vocab: int, check_ids: bool, name: str = "token_ids", beside: str = "weight"
) -> Tensor:
    """Ids of any integer dtype as a tensor; Python and NumPy integers are moved to the table's device."""
    if not isinstance(token_ids, Tensor):
        if torch.compiler.is_compiling():  # the compiler knows NumPy arrays as tensors, and has no dtype for them
            tensor = torch.as_tensor(token_ids)
            token_ids = tensor if tensor.numel() or isinstance(token_ids, np.ndarray) else tensor.long()
        else:
            token_ids = _tensor(from_numbers(token_ids, vocab, check_ids, name))
        token_ids = token_ids.to(device)
    if token_ids.dtype not in INTEGER_DTYPES:
        raise TypeError(not_integers(dtype_name(token_ids), name))
    check_same_device(device, beside, **{name: token_ids})
    return token_ids


def as_scale(scale: Any) -> float | None:
    """What rows are multiplied by, a float32 number as a Python one, or None."""
    if scale is None:
        return None
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise TypeError(f"scale is of type {type(scale).__name__}; expected a number or None")
    with np.errstate(over="ignore"):
        rounded = float(np.float32(scale))
    if not 2.0**-126 <= abs(rounded) < np.inf:
        raise ValueError(f"scale is {scale}; expected a finite number of magnitude 2^-126 and more in float32, or None")
    return rounded


def as_padding_idx(padding_idx: Any, vocab: int) -> int | None:
    """The id of the padding row as a Python integer, or None."""
    if padding_idx is None:
        return None
    if isinstance(padding_idx, bool) or not isinstance(padding_idx, int | np.integer):
        raise TypeError(f"padding_idx is of type {type(padding_idx).__name__}; expected an integer or None")
    if not 0 <= padding_idx < vocab:
        raise ValueError(
            f"padding_idx is {padding_idx}; expected 0 <= padding_idx < {vocab}, the vocab: "
            "name the row that padding ids read, or use None"
        )
    return int(padding_idx)


def _tensor(array: np.ndarray) -> Tensor:
    """torch takes neither read-only memory, nor another byte order, nor the second C type of 64 bits."""
    native = np.empty(array.shape, array.dtype.name)
    native[...] = array
    return torch.from_numpy(native)


def from_numbers(x: Any, vocab: int, check_ids: bool, name: str = "token_ids") -> np.ndarray:
    """Ids in lists, NumPy arrays and scalars, as an array of some integer dtype."""
    if isinstance(x, np.ndarray | np.generic):
        array = np.asarray(x)
    else:
        try:
            array = np.asarray(x)
        except ValueError:
            raise ValueError(f"{name} is a ragged list; expected rows of one length: pad them first") from None
        if array.size == 0:
            return array.astype(np.int64)  # NumPy calls an empty list float64
        members = np.asarray(x, dtype=object)
        if any(isinstance(member, bool | np.bool_) for member in members.flat):
            raise TypeError(not_integers("bool", name))
        if array.dtype.kind not in "iu" and all(isinstance(member, int | np.integer) for member in members.flat):
            return _beyond_64_bits(members, vocab, check_ids, name)  # NumPy calls such a list float64 or object
    if array.dtype.kind not in "iu":
        raise TypeError(not_integers(array.dtype.name, name))
    return array


def _beyond_64_bits(members: np.ndarray, vocab: int, check_ids: bool, name: str) -> np.ndarray:
    good = np.array([0 <= int(member) < vocab for member in members.flat]).reshape(members.shape)
    if check_ids and not good.all():
        position = tuple(int(i) for i in np.argwhere(~good)[0])
        raise IndexError(bad_id(position, members[position], vocab, name))
    return np.where(good, members, -1).astype(np.int64)


def not_integers(dtype: str, name: str) -> str:
    return f"{name} has dtype {dtype}; expected an integer dtype: convert the ids, or use them as a mask instead"


def bad_id(position: tuple[int, ...], value: Any, vocab: int, name: str) -> str:
    return (
        f"{name}{list(position) if position else ''} is {value}; expected 0 <= id < {vocab}, the vocab: "
        "check the tokenizer against the table, or mask padding ids first"
    )


def as_int64(token_ids: Tensor) -> Tensor:
    """Widened, never narrowed: a uint64 id of 2^63 and more becomes a negative number, which no table has."""
    return token_ids.view(torch.int64) if token_ids.dtype == torch.uint64 else token_ids.to(torch.int64)


def raise_bad_id(token_ids: Tensor, vocab: int, bad: Tensor, name: str = "token_ids") -> None:
    """IndexError that names the first bad id, its position and the vocab."""
    position = tuple(int(i) for i in bad.nonzero()[0])
    raise IndexError(bad_id(position, token_ids[position].item(), vocab, name))


def check_parts(name: str, parts: Any) -> None:
    """An array, too, has a length, and could be taken for as many parts as it has rows."""
    if hasattr(parts, "shape"):
        raise TypeError(
            f"{name} is an array of shape {tuple(parts.shape)}; expected a list of arrays: pass [{name}] for one part"
        )


def outside(ids: Tensor, vocab: int) -> Tensor:
    """Which ids are not in the vocab."""
    return (ids < 0) | (ids >= vocab)
