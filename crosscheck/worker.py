"""A backend's own process: reads one JSON request a line from stdin and answers with JSON lines on stdout.

The first line names the adapter; the answer is {"hello": ...}, what runs here, or why nothing can. Each
further line is a case and a mode, answered by {"doing": ...} before each run and then by {"verdict": ...} or
{"raised": ...}; one with "record" by {"recorded": ...}, and its result is in the file that it names. The process ends
when stdin does, so it never outlives the run that started it.
"""

import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from crosscheck.backends import Adapter
from crosscheck.cases import Case
from crosscheck.judge import Answer, Effort, Judged, judge
from crosscheck.process import store_array, stored_array
from crosscheck.real_input import RealCase
from crosscheck.verdict import in_one_line

__all__ = ["main"]

Say = Callable[[dict[str, Any]], None]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    answers = _private_stdout()
    requests = _requests()

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    setup = requests.get()
    adapter = _greet(setup, say)
    while adapter is not None:
        _serve(adapter, setup["backend"], requests.get(), say)


def _private_stdout() -> TextIO:
    """A file of this process's own to answer on; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _requests() -> "queue.SimpleQueue[dict[str, Any]]":
    received: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            received.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return received


def _greet(setup: dict[str, Any], say: Say) -> Adapter | None:
    """Make the adapter and say what it runs; None where it cannot run."""
    module, _, name = setup["factory"].partition(":")
    target = {"target": setup["target"]} if setup.get("target") else {}
    try:
        adapter: Adapter = getattr(importlib.import_module(module), name)(setup["device"], setup["threads"], **target)
        reason = adapter.available()
        if reason is None:
            say({"hello": _described(adapter, setup)})
            return adapter
    except Exception as error:  # the process boundary
        reason = f"it cannot start: {in_one_line(error)}"
    say({"hello": {"reason": reason}})
    return None


def _described(adapter: Adapter, setup: dict[str, Any]) -> dict[str, Any]:
    return {
        "reason": None,
        "device": adapter.device_name(),
        "versions": adapter.versions(),
        "threads": setup["threads"],
        "implementations": {op: adapter.implementation(op) for op in ("embedding", "lm_head")},
        "layouts": adapter.layouts,
    }


def _serve(adapter: Adapter, backend: str, request: dict[str, Any], say: Say) -> None:
    if "record" in request:
        _record(adapter, request, say)
        return
    try:
        verdict = judge(
            adapter,
            backend,
            _case(request["case"]),
            request["mode"],
            _expected(request["expected"]),
            effort=Effort(**request["effort"]),
            announce=lambda doing: say({"doing": doing}),
        )
    except Exception as error:  # the process boundary
        say({"raised": in_one_line(error)})
    else:
        say({"verdict": verdict.to_json()})


def _record(adapter: Adapter, request: dict[str, Any], say: Say) -> None:
    """Store what one call gives in the file that the request names; nothing is judged."""
    try:
        case = _case(request["case"])
        arguments = {name: adapter.from_numpy(array) for name, array in case.inputs().items()}
        result = adapter.to_numpy(adapter.run(case.op, arguments, case.digits, request["mode"]))
        dtype = store_array(request["record"], result)
        implementation = adapter.implementation(case.op, arguments, case.digits)
    except Exception as error:  # the process boundary
        say({"raised": in_one_line(error)})
    else:
        say({"recorded": {"dtype": dtype, "implementation": implementation}})


def _case(fields: dict[str, Any]) -> Judged:
    return Case.from_json(fields) if fields["kind"] == "case" else RealCase.from_json(fields)


def _expected(files: dict[str, Any]) -> Answer:
    """What the contract gives."""
    gradients = {name: stored_array(*file) for name, file in files["gradients"].items()}
    return Answer(stored_array(*files["result"]), gradients)


if __name__ == "__main__":
    main()
