"""Times of peers that take turns, so that whatever else the machine does falls on all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PAUSE = 0.01  # seconds between peers: by then the idle threads of one library no longer spin on the next one's cores
WARM_UPS = 2


@dataclass(frozen=True)
class Timing:
    """The median time of a peer, and the median over the rounds of its ratio to the baseline of the same round."""

    seconds: float
    ratio: float


def take_turns(
    baseline: Callable[[], object], peers: Mapping[str, Callable[[], object]], rounds: int
) -> tuple[float, dict[str, Timing]]:
    """The baseline's median seconds, and a `Timing` for each peer.

    Each round times the baseline, then every peer, then the baseline again; the round's baseline is the mean of
    its two times. An untimed call goes before each timed one: what is measured is the steady state.
    """
    for call in (baseline, *peers.values()):
        for _ in range(WARM_UPS):
            call()
    base: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        before = _timed(baseline)
        for name, call in peers.items():
            times[name].append(_timed(call))
        base.append((before + _timed(baseline)) / 2)
    return statistics.median(base), {
        name: Timing(statistics.median(every), statistics.median(t / b for t, b in zip(every, base, strict=True)))
        for name, every in times.items()
    }


def _timed(call: Callable[[], object]) -> float:
    time.sleep(PAUSE)
    call()  # the caches and the allocator are then as this peer leaves them, not as the one before it did
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
