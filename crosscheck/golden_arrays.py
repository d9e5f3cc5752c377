"""Arrays of goldens: kept whole, or, where they are large, as a digest for each block of rows and some rows.

The rows of an array are those of its last axis, with all leading axes as one; a vector has rows of one element.
What a block is depends on the number of rows alone, so any two goldens of one shape have the same blocks.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crosscheck.bits import Difference, compare, digest, digest_of_parts, to_bits
from crosscheck.verdict import counted

__all__ = ["Blocks", "Whole", "as_stored", "block_rows", "difference", "rows_and_width"]

Array = NDArray[Any]
MOST_BLOCKS = 2048  # of 32 bytes each
CHUNK = 2**24  # bytes that are read, digested or compared at once
NAMED = 8  # runs of differing rows that a sentence names


def rows_and_width(shape: tuple[int, ...]) -> tuple[int, int]:
    """The array seen as [rows, width]."""
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (math.prod(shape), 1)


def block_rows(shape: tuple[int, ...]) -> int:
    """Rows in a block: one, where that gives no more than MOST_BLOCKS blocks."""
    return max(1, -(-rows_and_width(shape)[0] // MOST_BLOCKS))


@dataclass(frozen=True)
class Whole:
    """An array with all its elements, read in parts.

    Arguments:
        read: (start, stop) -> the rows [start:stop] of the array seen as [rows, width].
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int, int], Array]

    @staticmethod
    def of(array: Array) -> "Whole":
        rows = array.reshape(rows_and_width(array.shape))
        return Whole(array.dtype.name, array.shape, lambda start, stop: rows[start:stop])

    def parts(self) -> Iterator[tuple[int, Array]]:
        """The rows in parts of whole blocks, each with the number of its first row."""
        rows, width = rows_and_width(self.shape)
        block = block_rows(self.shape)
        row_bytes = max(1, width * np.dtype(self.dtype).itemsize)
        step = max(1, CHUNK // (row_bytes * block)) * block
        for start in range(0, rows, step):
            yield start, self.read(start, min(rows, start + step))

    @cached_property
    def sha256(self) -> str:
        return digest_of_parts(self.dtype, self.shape, (part for _, part in self.parts()))

    def block_digests(self) -> NDArray[np.uint8]:
        """SHA-256 of each block, uint8 [blocks, 32]."""
        block = block_rows(self.shape)
        digests = [
            digest(part[start : start + block]) for _, part in self.parts() for start in range(0, len(part), block)
        ]
        return np.frombuffer(bytes.fromhex("".join(digests)), np.uint8).reshape(-1, 32)

    def array(self) -> Array:
        return self.read(0, rows_and_width(self.shape)[0]).reshape(self.shape)

    def rows(self, indices: Iterable[int]) -> list[Array]:
        return [self.read(index, index + 1) for index in indices]

    def blocks(self, sample_rows: int) -> "Blocks":
        """What a golden keeps of it where it is large: the sampled rows are evenly spread, both ends among them."""
        rows = rows_and_width(self.shape)[0]
        indices = tuple(int(i) for i in np.unique(np.linspace(0, rows - 1, min(rows, sample_rows)).round()))
        sampled = np.concatenate(self.rows(indices))
        return Blocks(self.dtype, self.shape, self.sha256, self.block_digests(), indices, sampled)


@dataclass(frozen=True)
class Blocks:
    """An array of which digests of its blocks are kept, and some rows.

    Arguments:
        sha256: of the whole array.
        digests: uint8 [blocks, 32].
        indices: of the sampled rows, ascending.
        sampled: those rows, [len(indices), width].
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    digests: NDArray[np.uint8]
    indices: tuple[int, ...]
    sampled: Array

    def block_digests(self) -> NDArray[np.uint8]:
        return self.digests

    def contradiction(self) -> int | None:
        """The first sampled row that is a block of its own and has not the digest of that block."""
        if block_rows(self.shape) == 1:
            for index, row in zip(self.indices, self.sampled, strict=True):
                if digest(row[None]) != self.digests[index].tobytes().hex():
                    return index
        return None


# Comparison --------------------------------------------------------------------------------------------
def difference(actual: Whole | Blocks, expected: Whole | Blocks) -> str | None:
    """None where dtype, shape and every bit agree, else one sentence on what differs, and where first."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        kind: Literal["dtype", "shape"] = "dtype" if actual.dtype != expected.dtype else "shape"
        dtypes, size = (actual.dtype, expected.dtype), math.prod(actual.shape)
        return Difference(kind, *dtypes, actual.shape, expected.shape, size, size).describe()
    if actual.sha256 == expected.sha256:
        return None
    if isinstance(actual, Whole) and isinstance(expected, Whole):
        found = _of_wholes(actual, expected)
        return None if found is None else found.describe()
    return _of_blocks(actual, expected)


def _of_wholes(actual: Whole, expected: Whole) -> Difference | None:
    """`compare`, part by part, as one record."""
    total: Difference | None = None
    for (start, got), (_, want) in zip(actual.parts(), expected.parts(), strict=True):
        found = compare(got, want)
        if found is None:
            continue
        if total is None:
            total = _placed(found, start, actual.shape)
        else:
            largest = max((ulp for ulp in (total.max_ulp, found.max_ulp) if ulp is not None), default=None)
            total = replace(total, count=total.count + found.count, max_ulp=largest)
    return total


def _placed(found: Difference, start: int, shape: tuple[int, ...]) -> Difference:
    """A difference in rows [start:] as one of the array they are rows of."""
    assert found.index is not None
    row, column = found.index
    flat = (start + row) * rows_and_width(shape)[1] + column
    index = tuple(int(i) for i in np.unravel_index(flat, shape))
    return replace(found, index=index, actual_shape=shape, expected_shape=shape, total=math.prod(shape))


def _of_blocks(actual: Whole | Blocks, expected: Whole | Blocks) -> str:
    differs = np.flatnonzero((actual.block_digests() != expected.block_digests()).any(axis=1))
    rows, block = rows_and_width(actual.shape)[0], block_rows(actual.shape)
    if not len(differs):
        return f"the digests of {actual.dtype} {actual.shape} differ, and those of its blocks do not"
    named = _named(differs, block, rows)
    every = counted(-(-rows // block), "block") + f" of {block} rows" if block > 1 else counted(rows, "row")
    each = f"{len(differs)} of {every}"
    return f"{each} of {actual.dtype} {actual.shape} differ: {named}; {_in_a_sampled_row(actual, expected)}"


def _named(blocks: Array, block: int, rows: int) -> str:
    """The rows of blocks, neighbours as one run: "rows 0-7, 12"."""
    runs = np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1)
    ends = [(int(run[0]) * block, min(rows, (int(run[-1]) + 1) * block) - 1) for run in runs]
    names = [f"{first}" if first == last else f"{first}-{last}" for first, last in ends[:NAMED]]
    one = len(ends) == 1 and ends[0][0] == ends[0][1]
    return ("row " if one else "rows ") + ", ".join(names) + (", ..." if len(ends) > NAMED else "")


def _in_a_sampled_row(actual: Whole | Blocks, expected: Whole | Blocks) -> str:
    """The first difference in the rows that both sides have."""
    kept = [set(side.indices) for side in (actual, expected) if isinstance(side, Blocks)]
    shared = sorted(set.intersection(*kept))
    for index, got, want in zip(shared, _rows(actual, shared), _rows(expected, shared), strict=True):
        found = compare(got, want)
        if found is not None:
            where = _placed(found, index, actual.shape).index
            return f"in row {index}, a sampled one, {replace(found, index=where).describe()}"
    return "none of them is a sampled row, so their bits are not here: keep whole arrays to see them"


def _rows(side: Whole | Blocks, indices: list[int]) -> list[Array]:
    if isinstance(side, Whole):
        return side.rows(indices)
    return [side.sampled[side.indices.index(index)][None] for index in indices]


def as_stored(array: Array) -> Array:
    """The same bits in native byte order and row-major memory, which is what safetensors takes."""
    return np.ascontiguousarray(to_bits(array)).view(array.dtype.newbyteorder("=")).reshape(array.shape)
