"""Backends with one planted fault each, which the judge must find, and name for what it is."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from crosscheck.backends import NumpyAdapter
from crosscheck.bits import to_bits
from crosscheck.registry import Backend


class Planted(NumpyAdapter):
    """The contract, spoiled by `spoil` in the subclass."""

    def implementation(self, op: str, inputs: Any = None, digits: int | None = None) -> str:
        return "planted"

    def run(self, op: str, inputs: dict[str, Any], digits: int | None, mode: str) -> Any:
        return self.spoil(super().run(op, inputs, digits, mode), inputs)

    def spoil(self, result: Any, inputs: dict[str, Any]) -> Any:
        return result


def flipped(result: Any) -> Any:
    """The lowest bit of every element turned."""
    return (to_bits(result) ^ 1).view(result.dtype)


# Wrong bits, but the same wrong bits in every batch --------------------------------------------------------
class FlipsBits(Planted):
    def spoil(self, result, inputs):
        return flipped(result)


class NegativeZero(Planted):
    def spoil(self, result, inputs):
        return np.where(result == 0, -np.zeros_like(result), result)


class OtherNan(Planted):
    def spoil(self, result, inputs):
        return np.where(np.isnan(result), to_bits(result) | 1, to_bits(result)).view(result.dtype)


class OtherDtype(Planted):
    def spoil(self, result, inputs):
        with np.errstate(invalid="ignore", over="ignore"):
            return result.astype(np.float16)


class OtherShape(Planted):
    def spoil(self, result, inputs):
        return result[None]


class ModifiesInputs(Planted):
    def spoil(self, result, inputs):
        if inputs["hidden"].flags.writeable:
            inputs["hidden"][...] = 0
        return result


# The contract's bits, until the call is transformed --------------------------------------------------------
class SpoilsTransform(Planted):
    """Right on the first call, spoiled on later ones where `recognises` says so."""

    def __init__(self, device: str, threads: int) -> None:
        self.first: dict[str, Any] = {}

    def spoil(self, result, inputs):
        if not self.first:
            self.first = {name: array.copy() for name, array in inputs.items()}
            return result
        rows = [row.tobytes() for row in inputs["hidden"]]
        return (
            flipped(result)
            if self.recognises(inputs, rows, [row.tobytes() for row in self.first["hidden"]])
            else result
        )

    def recognises(self, inputs: dict[str, Any], rows: list[bytes], first: list[bytes]) -> bool:
        raise NotImplementedError


class SpoilsPopulation(SpoilsTransform):
    def recognises(self, inputs, rows, first):
        return len(rows) == 1 < len(first)


class SpoilsPosition(SpoilsTransform):
    def recognises(self, inputs, rows, first):
        return rows != first and sorted(rows) == sorted(first)


class SpoilsNeighbours(SpoilsTransform):
    def recognises(self, inputs, rows, first):
        kept = [a == b for a, b in zip(rows, first, strict=False)]
        others = sorted(rows) != sorted(first) and len(set(rows)) == len(rows)
        return len(rows) == len(first) and any(kept) and others


class SpoilsPadding(SpoilsTransform):
    def recognises(self, inputs, rows, first):
        ends = inputs["hidden"][[0, -1]].astype(np.float32)
        return len(rows) > len(first) and bool((~np.isfinite(ends)).any(1).any() or (ends == 0).all(1).any())


class SpoilsChunking(SpoilsTransform):
    def recognises(self, inputs, rows, first):
        return len(rows) < len(first) and rows in (first[:2], first[1:])


class SpoilsLayout(SpoilsTransform):
    def recognises(self, inputs, rows, first):
        return not inputs["hidden"].flags.c_contiguous


class SpoilsRepeat(SpoilsTransform):
    def recognises(self, inputs, rows, first):
        hidden = inputs["hidden"]
        plain = hidden.flags.c_contiguous and hidden.ctypes.data % 16 == 0
        return plain and all(np.array_equal(to_bits(x), to_bits(self.first[name])) for name, x in inputs.items())


class NeedsTwoRows(Planted):
    """Right for one row, and wrong in the first row of more."""

    def spoil(self, result, inputs):
        if len(result) > 1:
            result[0] = flipped(result[0])
        return result


# Wrong for small inputs in another way than for large ones -------------------------------------------------
class BelowRows(NumpyAdapter):
    """Another adapter, whose results of fewer rows are spoiled."""

    def __init__(self, rows: int, spoiled: Callable[[Any], Any], adapter: NumpyAdapter) -> None:
        self.rows, self.spoiled, self.adapter = rows, spoiled, adapter

    def run(self, op, inputs, digits, mode):
        result = self.adapter.run(op, inputs, digits, mode)
        return self.spoiled(result) if len(result) < self.rows else result


class CrashesWhenSmall(Planted):
    def spoil(self, result, inputs):
        if len(result) < 3 and len(inputs["weight"]) < 9:
            print("too small", file=sys.stderr)
            sys.exit(5)
        return flipped(result)


class HangsWhenSmall(Planted):
    def spoil(self, result, inputs):
        if len(result) < 3 and len(inputs["weight"]) < 9:
            time.sleep(3600)
        return flipped(result)


# Wrong gradients, and right results ------------------------------------------------------------------------
class SpoilsGradients(Planted):
    def gradients(self, op, inputs, grad, digits, mode):
        return self.spoil_gradients(super().gradients(op, inputs, grad, digits, mode), inputs, grad)

    def spoil_gradients(self, found: dict[str, Any], inputs: dict[str, Any], grad: Any) -> dict[str, Any]:
        raise NotImplementedError


class FlipsOneGradientBit(SpoilsGradients):
    """The lowest bit of the last element of the weight's gradient."""

    def spoil_gradients(self, found, inputs, grad):
        bits = to_bits(found["weight"]).copy()
        bits[-1, -1] ^= 1
        return {**found, "weight": bits.view(found["weight"].dtype)}


class GradientsOfTheBatch(SpoilsGradients):
    """A batch of another size than the first has other gradients of its first row, and of nothing else."""

    first = 0

    def spoil_gradients(self, found, inputs, grad):
        self.first = self.first or len(grad)
        return found if len(grad) == self.first else {**found, "hidden": flipped(found["hidden"])}


class RaisesOnGradients(SpoilsGradients):
    def spoil_gradients(self, found, inputs, grad):
        raise NotImplementedError("planted: no gradients")


class RaisesOnGradientLayouts(SpoilsGradients):
    def spoil_gradients(self, found, inputs, grad):
        if not grad.flags.c_contiguous:
            raise RuntimeError("planted")
        return found


class OmitsAGradient(SpoilsGradients):
    def spoil_gradients(self, found, inputs, grad):
        return {"hidden": found["hidden"]}


class OtherGradientDtype(SpoilsGradients):
    def spoil_gradients(self, found, inputs, grad):
        return {**found, "weight": found["weight"].astype(np.float32)}


class ModifiesTheUpstreamGradient(SpoilsGradients):
    def spoil_gradients(self, found, inputs, grad):
        if grad.flags.writeable:
            grad[...] = 0
        return found


# No answer -------------------------------------------------------------------------------------------------
class Raises(Planted):
    def spoil(self, result, inputs):
        raise ValueError("planted\nsecond line")


class RaisesOnPadding(SpoilsPadding):
    def recognises(self, inputs, rows, first):
        if super().recognises(inputs, rows, first):
            raise RuntimeError("planted")
        return False


class Exits(Planted):
    def spoil(self, result, inputs):
        print("last words of the planted exit", file=sys.stderr)
        sys.exit(3)


class IsKilled(Planted):
    def spoil(self, result, inputs):
        os.kill(os.getpid(), signal.SIGKILL)


class CrashesOnce(Planted):
    """In the first process only: the file that it leaves tells the second."""

    def spoil(self, result, inputs):
        left = Path(os.environ["PLANTED_FILE"])
        if not left.exists():
            left.write_text("crashed")
            os._exit(4)
        return result


class Hangs(Planted):
    def spoil(self, result, inputs):
        if "PLANTED_FILE" in os.environ:
            Path(os.environ["PLANTED_FILE"]).write_text(str(os.getpid()))
        time.sleep(3600)


class Waits(Planted):
    """For a file to be there, except in bfloat16."""

    def spoil(self, result, inputs):
        while result.dtype.name != "bfloat16" and not Path(os.environ["PLANTED_FILE"]).exists():
            time.sleep(0.01)
        return result


class Dawdles(Planted):
    """Slow, and a time limit for all of its calls together would end it."""

    def spoil(self, result, inputs):
        time.sleep(0.1)
        return result


class Notes(Planted):
    """Writes down each call: its process, begin and end."""

    def spoil(self, result, inputs):
        begin, path = time.monotonic(), Path(os.environ["PLANTED_FILE"])
        mine = path.with_name(f"here-{os.getpid()}")
        while "PLANTED_MEETING" in os.environ and not mine.exists():
            path.with_name(f"came-{os.getpid()}").touch()
            if len(list(path.parent.glob("came-*"))) >= int(os.environ["PLANTED_MEETING"]):
                mine.touch()
            time.sleep(0.01)
        with path.open("a") as file:
            file.write(f"{json.dumps([os.getpid(), begin, time.monotonic()])}\n")
        return result


class Prints(Planted):
    def spoil(self, result, inputs):
        print("noise on stdout")
        os.write(1, b"noise on file descriptor 1\n")
        return result


class Unavailable(Planted):
    def available(self):
        return "planted: not here"


class FailsToStart(Planted):
    def available(self):
        raise RuntimeError("planted: cannot start")


def backend(fault: type[NumpyAdapter], *modes: str) -> Backend:
    return Backend(fault.__name__, f"planted:{fault.__name__}", "cpu", modes or ("eager",))


FAULTS = (
    FlipsBits, NegativeZero, OtherNan, OtherDtype, OtherShape, ModifiesInputs, SpoilsPopulation, SpoilsPosition,
    SpoilsNeighbours, SpoilsPadding, SpoilsChunking, SpoilsLayout, SpoilsRepeat, Raises, RaisesOnPadding, Exits,
    IsKilled, FlipsOneGradientBit, GradientsOfTheBatch, RaisesOnGradients, RaisesOnGradientLayouts, OmitsAGradient,
    OtherGradientDtype, ModifiesTheUpstreamGradient, NeedsTwoRows, CrashesWhenSmall, HangsWhenSmall, CrashesOnce,
    Hangs, Waits, Notes, Prints, Unavailable, FailsToStart,
)  # fmt: skip
REGISTRY = {fault.__name__: backend(fault) for fault in (Planted, *FAULTS)}
