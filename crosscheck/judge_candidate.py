"""What is judged of a candidate alone: bad ids, in how few rows it depends on the batch, and which values differ."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.bench import Bench
from crosscheck.bits import compare, to_bits
from crosscheck.calls import Call
from crosscheck.invariance import Trial, trials
from crosscheck.operators import as_rows
from crosscheck.rounding import FLOATS, quiet_nan
from crosscheck.shards import NAMES
from crosscheck.verdict import Check

__all__ = ["BAD_ID", "BATCH", "VOCAB", "fewest", "nature", "of_nan_alone", "smallest_batch", "try_bad_ids"]

Array = NDArray[Any]
BAD_ID = "the last id is"
BATCH = ("population", "position", "neighbours", "padding", "chunking")
# Trials of those columns that change the vocab around a row, or divide it, and not the batch.
VOCAB = (
    "vocab shuffled", "vocab reversed", "every second weight row replaced by NaN",
    "table rows that no id names replaced by NaN", "ids added that cannot occur", *NAMES,
)  # fmt: skip


def nature(result: Array, expected: Array) -> str:
    """What kind of values alone differ, in words; nothing where it is any, or a dtype or a shape."""
    if result.dtype != expected.dtype or result.shape != expected.shape or result.dtype.kind in "biu":
        return ""
    differs = np.asarray(to_bits(result) != to_bits(expected))
    with np.errstate(invalid="ignore"):  # a signalling NaN is widened
        got, want = result[differs].astype(np.float64), expected[differs].astype(np.float64)
    nans, zeros = np.isnan(got) & np.isnan(want), (got == 0) & (want == 0)
    if not got.size or not (nans | zeros).all():
        return ""
    kinds = [what for what, there in (("NaN patterns", nans), ("signs of zeros", zeros)) if there.any()]
    return " and ".join(kinds)


def of_nan_alone(difference: Mapping[str, Any] | None) -> bool:
    """Whether NaN became another NaN and nothing else is known to have changed; also where a call raised."""
    if difference is None:
        return True
    first = [difference["actual"], difference["expected"]]
    return difference["max_ulp"] is None and all(isinstance(x, float) and math.isnan(x) for x in first)


def try_bad_ids(bench: Bench, result: Array, check: Check, announce: Callable[[str], None], *, compared: bool) -> None:
    """The last id is not in the vocab: an error, or a row of quiet NaN, and never another row.

    compared: the result itself was; else that a bad id is refused is no sign of the contract's bits.
    """
    call = Call(bench.inputs)
    if call.ids is None:
        return
    ids = call.rows.arrays[call.ids]
    for bad in (call.vocab, -1):
        name, limits = f"{BAD_ID} {bad}", np.iinfo(ids.dtype)
        if getattr(bench.adapter, "device", "") == "cuda":
            check.leave_out(name, "on a GPU an error of a kernel ends the process for all further calls")
        elif not len(call.rows) or not limits.min <= bad <= limits.max:
            check.leave_out(name, "the case has no ids, or none that is so")
        elif result.dtype not in FLOATS:
            check.leave_out(name, f"the result is {result.dtype}")
        else:
            announce(name)
            expected = as_rows(result, bench.inputs).copy()
            expected[-1] = quiet_nan(expected.dtype).view(expected.dtype)
            try:
                found = as_rows(bench.run(bench.arguments(call.with_bad_id(bad))), bench.inputs)
            except Exception:  # a refusal is what a bad id is to get
                difference = None
            else:
                difference = compare(found, expected)
            if difference is not None or compared:
                check.enter(name, difference)
            else:
                check.leave_out(name, "it is answered rightly, and the result itself was not compared")


def smallest_batch(bench: Bench, checks: Mapping[str, Check]) -> dict[str, Any] | None:
    """The first transform of the batch that broke the candidate, and the fewest first rows of the case that show it."""
    broke = next(_broken(checks), None)
    if broke is None:
        return None
    call = Call(bench.inputs)
    return {"transform": broke, "rows": fewest(len(call.rows), lambda rows: _shows(bench, call, broke, rows))}


def fewest(count: int, shows: Callable[[int], bool]) -> int:
    """The fewest of `count` rows that show something, which all of them do.

    Sizes are doubled until one shows it, then bisected: of sizes that come and go, one is found.
    """
    low, high = 0, 1
    while high < count and not shows(high):
        low, high = high, 2 * high
    high = min(high, count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def _broken(checks: Mapping[str, Check]) -> Iterator[str]:
    for column in BATCH:
        for failure in checks[column].failed:
            if failure.trial not in VOCAB and not of_nan_alone(failure.difference):
                yield failure.trial


def _shows(bench: Bench, call: Call, transform: str, rows: int) -> bool:
    fewer = call.with_rows(call.rows[:rows])
    for attempt in trials(fewer, bench.case.seed):
        if isinstance(attempt, Trial) and attempt.name == transform:
            try:
                base = as_rows(bench.run(bench.arguments(fewer)), fewer)
                difference = bench.difference(attempt, base)
                return difference is not None and not of_nan_alone(asdict(difference))
            except Exception:  # it has no answer for this size, so this size shows nothing
                return False
    return False
