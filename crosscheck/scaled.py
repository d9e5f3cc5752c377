"""Rows of a table times a number, as EmbeddingTable(..., scale=...) gives them, in NumPy: the judge of that option.

docs/tables.md says what it is. A product is rounded once to float32 as if the exponent had no lower limit, then a
magnitude below 2^-126 becomes +0; in the table's dtype that number is rounded once more, by IEEE.
"""

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from crosscheck import contract
from crosscheck.rounding import Array, floats, narrow, product

__all__ = ["embedding", "embedding_fp32", "embedding_grad", "times"]


def times(x: ArrayLike, scale: float) -> Array:
    """x of any float type times float32(scale), float32; every zero is +0, every NaN the quiet one."""
    with np.errstate(invalid="ignore", over="ignore"):
        return narrow(product(floats("x", x).astype(np.float64), np.float64(np.float32(scale))), np.float32)


def embedding_fp32(token_ids: ArrayLike, weight: ArrayLike, scale: float, *, check_ids: bool = True) -> Array:
    """[...] int, [V, H] -> [..., H] float32."""
    return times(contract.embedding(token_ids, weight, check_ids=check_ids), scale)


def embedding(token_ids: ArrayLike, weight: ArrayLike, scale: float, *, check_ids: bool = True) -> Array:
    """[...] int, [V, H] -> [..., H] in the table's dtype."""
    return narrow(embedding_fp32(token_ids, weight, scale, check_ids=check_ids), floats("weight", weight).dtype)


def embedding_grad(
    token_ids: ArrayLike, grad_rows: ArrayLike, vocab: int, weight_dtype: DTypeLike, scale: float
) -> Array:
    """Gradient of the table [V, H]: the contract's sum, of upstream gradients that were scaled first."""
    return contract.embedding_grad(token_ids, times(grad_rows, scale), vocab, weight_dtype)
