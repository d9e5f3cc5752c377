"""The worker's side of `crosscheck/order/process.py`: calls of an LM head, many at a time."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from crosscheck.backends import Adapter
from crosscheck.process import store_array, stored_array

__all__ = ["answer_calls"]

QUIET = 0.05  # an answer to each of thousands of calls takes longer than the calls


def answer_calls(adapter: Adapter, request: dict[str, Any], announce: Callable[[str], None]) -> dict[str, Any]:
    """Make the calls of a request and store their results [C, ...] in the file that it names.

    Arguments:
        request: {"calls": {op, mode, rows, vocab, hidden, weight}, "store": path}. hidden [C, 1 or rows, K] and weight
            [C or 1, 1 or vocab, K] are each a file and a dtype; an axis of 1 stands for equal rows.
        announce: told before a call, but not more often than each QUIET seconds.
    """
    asked = request["calls"]
    hidden, weight = stored_array(*asked["hidden"]), stored_array(*asked["weight"])
    results = []
    announced = -math.inf
    for k in range(len(hidden)):
        if time.monotonic() - announced > QUIET:
            announced = time.monotonic()
            announce(f"call {k}")
        inputs = {
            "hidden": np.broadcast_to(hidden[k], (asked["rows"], hidden.shape[-1])),
            "weight": np.broadcast_to(weight[k if len(weight) > 1 else 0], (asked["vocab"], weight.shape[-1])),
        }
        arguments = {name: adapter.from_numpy(array) for name, array in inputs.items()}
        results.append(adapter.to_numpy(adapter.run(asked["op"], arguments, None, asked["mode"])))
    return {"called": store_array(request["store"], np.stack(results))}
