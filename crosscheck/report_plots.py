"""The figures of the HTML report: a heat map as a small PNG, bars of a histogram, two bit patterns digit by digit."""

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

__all__ = ["Bar", "bars", "bit_fields", "heat_map"]

# The ink of the heat map, on paper of any colour: its opacity says how many of a bin's elements differ.
INK = (205, 84, 35)
LEVELS, FAINTEST = 15, 3  # of opacity; one element among many must be seen
_FIELDS = {"bfloat16": (1, 8, 7), "float16": (1, 5, 10), "float32": (1, 8, 23), "float64": (1, 11, 52)}


# Heat map --------------------------------------------------------------------------------------------------
def heat_map(grid: Sequence[Sequence[int]], shape: Sequence[int]) -> str:
    """A PNG as a data URI, a pixel for each bin of a `crosscheck.spread.Spread`; transparent where nothing differs."""
    high, wide = len(grid), len(grid[0])
    rows, columns = _sizes(high, shape[0]), _sizes(wide, shape[1])
    levels = [
        [_level(count / (rows[i] * columns[j])) for j, count in enumerate(counts)] for i, counts in enumerate(grid)
    ]
    return "data:image/png;base64," + base64.b64encode(_png(levels)).decode("ascii")


def _sizes(bins: int, length: int) -> list[int]:
    """How many of `length` places each bin has, where place i is in bin i * bins // length."""
    edges = [-(-i * length // bins) for i in range(bins + 1)]
    return [end - start for start, end in pairwise(edges)]


def _level(share: float) -> int:
    """0 for none, LEVELS for all."""
    return FAINTEST + round((LEVELS - FAINTEST) * share) if share else 0


def _png(levels: Sequence[Sequence[int]]) -> bytes:
    """Four bits a pixel, each a level of opacity of the one ink."""
    palette = bytes(INK) * (LEVELS + 1)
    opacity = bytes(round(255 * level / LEVELS) for level in range(LEVELS + 1))
    lines = []
    for line in levels:
        even = [*line, 0] if len(line) % 2 else line
        lines.append(bytes([0, *(a << 4 | b for a, b in zip(even[::2], even[1::2], strict=True))]))
    header = struct.pack(">IIBBBBB", len(levels[0]), len(levels), 4, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"tRNS", opacity), (b"IDAT", zlib.compress(b"".join(lines), 9)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in (*chunks, (b"IEND", b"")))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


# Histogram -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bar:
    """One bin: its label, and for each histogram its count and its share of the largest count."""

    label: str
    counts: tuple[int, ...]
    shares: tuple[float, ...]


def bars(bounds: Sequence[float], *histograms: Sequence[int], whole: bool = False, nan: int | None = None) -> list[Bar]:
    """The bins from the first to the last that is not empty in all histograms.

    Arguments:
        whole: the values are whole numbers.
        nan: of one histogram, what has no place on its axis, as a bar of its own.

    Example:
        >>> [(bar.label, *bar.counts) for bar in bars((0, 0.5, 1, 2, float("inf")), [0, 3, 0, 1, 0])]
        [('≤ ½', 3), ('≤ 1', 0), ('≤ 2', 1)]
    """
    filled = [i for i in range(len(bounds)) if any(counts[i] for counts in histograms)]
    largest = [max([*counts, nan or 0, 1]) for counts in histograms]
    rows = []
    for i in range(filled[0], filled[-1] + 1) if filled else ():
        rows.append((_label(bounds, i, whole), tuple(counts[i] for counts in histograms)))
    if nan:
        rows.append(("NaN", (nan,)))
    return [Bar(label, counts, tuple(n / of for n, of in zip(counts, largest, strict=True))) for label, counts in rows]


def _label(bounds: Sequence[float], i: int, whole: bool) -> str:
    """By the bound that a bin is below or, of whole numbers, by its first and last."""
    bound, before = float(bounds[i]), float(bounds[i - 1]) if i else -1.0
    if math.isinf(bound):
        return f"> {_number(before)}"
    if not whole or bound - before == 1:
        return _number(bound) if whole or not bound else f"≤ {_number(bound)}"
    return f"{_number(before + 1)} – {_number(bound)}"


def _number(value: float) -> str:
    fractions = {0.5: "½", 0.25: "¼", 0.125: "⅛", 0.0625: "1/16"}
    return fractions.get(value, f"{value:.0f}")


# Bits ------------------------------------------------------------------------------------------------------
def bit_fields(actual: str, expected: str, dtype: str) -> tuple[list[list[tuple[str, bool]]], ...]:
    """Two patterns in hex as binary digits: for each, its fields; for each field, runs of digits that differ or not.

    Example:
        >>> bit_fields("0x3C01", "0x3C00", "float16")[0]
        [[('0', False)], [('01111', False)], [('000000000', False), ('1', True)]]
    """
    width = 4 * (len(actual) - 2)
    digits = [np.binary_repr(int(pattern, 16), width) for pattern in (actual, expected)]
    differs = [a != b for a, b in zip(*digits, strict=True)]
    return tuple(list(_fields(text, differs, _FIELDS.get(dtype, (width,)))) for text in digits)


def _fields(text: str, differs: Sequence[bool], widths: Sequence[int]) -> Iterator[list[tuple[str, bool]]]:
    start = 0
    for width in widths:
        runs = groupby(range(start, start + width), key=lambda i: differs[i])
        yield [("".join(text[i] for i in places), differ) for differ, places in runs]
        start += width
