"""How far logits are from the exact answer, in units in the last place (ULPs) of the output's dtype.

The exact answer of a sampled (row, vocab) entry is the sum of the products of the stored values plus the bias:
each product of two float32 values is exact in float64, and `math.fsum` adds them without error. As everywhere
in the contract, a magnitude below 2^-126 counts as 0. Entries that the contract makes non-finite are skipped.

ULPs of a logit near zero are tiny, so where a sum cancels the ULP error of any method is large; the error
relative to the largest logit of the row is the number to compare methods by. The scale of a logit is what it would be
if the signs of its products were random, the root of the sum of their squares, or itself where that is larger: errors
in ULPs of the scale can be bounded, whatever cancels. The scale of a log-probability is its row's largest logit.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.cases import Inputs
from crosscheck.histogram import ERRORS, histogram

__all__ = ["Accuracy", "measure", "ulp"]

Array = NDArray[Any]

SAMPLES = 64
TINY = 2.0**-126
_FORMATS = {"bfloat16": (8, -126, 127), "float16": (11, -14, 15), "float32": (24, -126, 127)}


@dataclass(frozen=True)
class Accuracy:
    """Errors over the sampled entries: in ULPs, relative to the row's largest |logit|, and in ULPs of the scale.

    `histogram` has how many there are in each bin of `crosscheck.histogram.ERRORS`: "ulp", in ULPs of the logit, and
    "scaled", of its scale.
    """

    max_ulp: float
    mean_ulp: float
    max_relative: float
    samples: int
    max_scaled_ulp: float = 0.0
    histogram: dict[str, list[int]] = field(default_factory=dict)


def ulp(value: float, dtype: str) -> float:
    """The distance of neighbouring numbers of a dtype at the magnitude of value.

    Example:
        >>> ulp(1.0, "bfloat16") == 2.0**-7
        True
    """
    precision, smallest, _ = _FORMATS[dtype]
    exponent = math.frexp(value)[1] - 1 if value else smallest
    return math.ldexp(1.0, max(exponent, smallest) - precision + 1)


def measure(result: Array, inputs: Inputs, seed: int) -> Accuracy | None:
    """The accuracy of [..., V] logits of the LM head, or of log-probabilities [...], on inputs.

    None where every sampled entry is non-finite.
    """
    dtype = result.dtype.name
    if dtype not in _FORMATS or not result.size:
        return None
    sampled = _logprobs if "target_ids" in inputs else _logits
    found = sampled(result, inputs, np.random.default_rng([seed, 2]), dtype)
    if not found:
        return None
    errors, relative, scaled = ([float(x) for x in column] for column in zip(*found, strict=True))
    counts = {"ulp": histogram(errors, ERRORS), "scaled": histogram(scaled, ERRORS)}
    return Accuracy(max(errors), sum(errors) / len(errors), max(relative), len(errors), max(scaled), counts)


Errors = list[tuple[float, float, float]]  # in ULPs, relative, and in ULPs of the scale


def _error(value: Any, exact: float, largest: float, scale: float, dtype: str) -> tuple[float, float, float]:
    error = abs(float(value) - exact)
    error = math.inf if math.isnan(error) else error
    relative = error / max(largest, abs(exact), math.ulp(0))
    return error / ulp(exact, dtype), relative, error / ulp(max(abs(exact), scale), dtype)


def _logits(result: Array, inputs: Inputs, rng: np.random.Generator, dtype: str) -> Errors:
    out = result.reshape(-1, result.shape[-1])
    hidden = inputs["hidden"].reshape(len(out), -1)
    weight, bias = inputs["weight"], inputs.get("bias")
    chosen = rng.choice(out.size, min(SAMPLES, out.size), replace=False)
    found = []
    for n, v in zip(*np.unravel_index(chosen, out.shape), strict=True):
        products = _products(hidden[n], weight[v], None if bias is None else bias[v])
        if products is not None and abs(exact := _exact(products)) < _overflow(dtype):
            found.append(_error(out[n, v], exact, _largest(out[n]), math.hypot(*products), dtype))
    return found


def _products(row: Array, column: Array, bias: Any) -> list[float] | None:
    """The products of a logit, exactly, and its bias; None where one is not finite."""
    parts = [_flushed(x) for x in (row, column, np.zeros(1) if bias is None else bias[None])]
    if not all(np.isfinite(part).all() for part in parts):
        return None
    return [*(parts[0] * parts[1]).tolist(), float(parts[2][0])]


def _exact(products: list[float]) -> float:
    """The logit, rounded once to float64."""
    exact = math.fsum(products)
    return exact if abs(exact) >= TINY else 0.0


def _flushed(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    return np.where(np.abs(wide) < TINY, 0.0, wide)


def _overflow(dtype: str) -> float:
    """The magnitude from which a value rounds to infinity."""
    precision, _, largest = _FORMATS[dtype]
    return math.ldexp(2.0 - 2.0**-precision, largest)


def _largest(row: Array) -> float:
    with np.errstate(invalid="ignore"):
        finite = np.abs(row.astype(np.float64))
    return float(finite[np.isfinite(finite)].max(initial=0.0))


def _logprobs(result: Array, inputs: Inputs, rng: np.random.Generator, dtype: str) -> Errors:
    """In float64, whose rounding is far below a unit in the last place of float32. The scale is the largest logit's.

    Half a unit of a log-probability near 0 is less than logits of any precision can tell, so the scale is 1/2 at least.
    """
    targets = inputs["target_ids"].reshape(-1)
    chosen = rng.choice(result.size, min(SAMPLES, result.size), replace=False)
    found = []
    for value, row, target in zip(
        result.reshape(-1)[chosen], _wide_logits(inputs, chosen), targets[chosen], strict=True
    ):
        top = int(row.argmax())
        if not np.isfinite(row[[top, int(target)]]).all():  # argmax finds a NaN
            continue
        distances = row[top] - row
        rest = np.exp(-np.delete(distances, top)).sum()
        exact, largest = -float(distances[int(target)] + np.log1p(rest)), _largest(row)
        found.append(_error(value, exact, largest, max(largest, 0.5), dtype))
    return found


def _wide_logits(inputs: Inputs, chosen: Array) -> Array:
    """The logits of some rows, float64 [rows, V]."""
    if "logits" in inputs:
        return _flushed(inputs["logits"].reshape(-1, inputs["logits"].shape[-1])[chosen])
    hidden = inputs["hidden"].reshape(inputs["target_ids"].size, inputs["hidden"].shape[-1])[chosen]
    with np.errstate(invalid="ignore"):
        logits: Array = _flushed(hidden) @ _flushed(inputs["weight"]).T
        return logits if "bias" not in inputs else logits + _flushed(inputs["bias"])
