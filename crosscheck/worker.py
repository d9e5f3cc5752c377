"""A backend's own process: reads one JSON request a line from stdin and answers with JSON lines on stdout.

The first line names the adapter; the answer is {"hello": ...}, what runs here, or why nothing can. Each
further line is a case and a mode, answered by {"doing": ...} before each run and then by {"verdict": ...} or
{"raised": ...}; one with "record" by {"recorded": ...}, and what it gave is in the folder that it names; one with
"shrink" by {"found": ...} for smaller inputs in that folder, each time there are some, and then by {"shrunk": ...}; one
with "calls" by {"called": ...}, the dtype of the results in the file that it names. The process ends when stdin does,
so it never outlives the run that started it.
"""

import importlib
import itertools
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from crosscheck.backends import Adapter
from crosscheck.candidate_adapters import BY_NAME, Candidate
from crosscheck.cases import Case, Inputs
from crosscheck.failing import Failing, Retrial
from crosscheck.golden_answer import answer_call
from crosscheck.judge import Answer, Effort, Judged, judge
from crosscheck.judge_gradient import gradient_call
from crosscheck.order.calls import answer_calls
from crosscheck.process import store_array, stored_array
from crosscheck.real_input import RealCase
from crosscheck.shrink import shrink
from crosscheck.sources import Sources, installed_packages
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
    sources = Sources(named.partition(".")[0] for named in (setup["factory"], setup.get("target") or ""))
    adapter = _greet(setup, sources, say)
    while adapter is not None:
        _serve(adapter, setup["backend"], requests.get(), sources, say)


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


def _greet(setup: dict[str, Any], sources: Sources, say: Say) -> Adapter | None:
    """Make the adapter and say what it runs; None where it cannot run."""
    module, _, name = setup["factory"].partition(":")
    target = {"target": setup["target"]} if setup.get("target") else {}
    try:
        adapter: Adapter = getattr(importlib.import_module(module), name)(setup["device"], setup["threads"], **target)
        reason = adapter.available()
        if reason is None:
            say({"hello": {**_described(adapter, setup), "sources": sources.new(), "packages": installed_packages()}})
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


def _serve(adapter: Adapter, backend: str, request: dict[str, Any], sources: Sources, say: Say) -> None:
    if "record" in request or "shrink" in request:
        (_record if "record" in request else _shrink)(adapter, request, say)
        return
    if "calls" in request:
        _calls(adapter, request, say)
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
        say({"raised": in_one_line(error), "sources": sources.new()})
    else:
        say({"verdict": verdict.to_json(), "sources": sources.new()})


def _record(adapter: Adapter, request: dict[str, Any], say: Say) -> None:
    """Store what one call gives in the folder that the request names; nothing is judged."""
    try:
        answer = answer_call(
            adapter,
            _case(request["case"]),
            request["mode"],
            Path(request["record"]),
            request["gradients"],
            announce=lambda doing: say({"doing": doing}),
        )
    except Exception as error:  # the process boundary
        say({"raised": in_one_line(error)})
    else:
        say(answer)


def _calls(adapter: Adapter, request: dict[str, Any], say: Say) -> None:
    """Store the results of many calls in the file that the request names; nothing is judged."""
    try:
        answer = answer_calls(adapter, request, announce=lambda doing: say({"doing": doing}))
    except Exception as error:  # the process boundary
        say({"raised": in_one_line(error)})
    else:
        say(answer)


def _shrink(adapter: Adapter, request: dict[str, Any], say: Say) -> None:
    """Shrink the inputs of a case that fails. Two files of an argument take turns, so that one of them is whole."""
    asked, case = request["shrink"], _case(request["case"])
    failing = Failing(**{**asked["failing"], "index": tuple(asked["failing"]["index"])})
    takes = list(adapter.takes) if isinstance(adapter, Candidate) else list(BY_NAME)
    turn = itertools.cycle("ab")

    def found(inputs: Inputs) -> None:
        which = next(turn)
        paths = {name: Path(asked["folder"], f"{name}-{which}.npy") for name in inputs}
        files = {name: (str(path), store_array(path, inputs[name])) for name, path in paths.items()}
        say({"found": {"inputs": files, "takes": takes}})

    try:
        inputs = case.inputs()
        _, calls = shrink(
            gradient_call(case.op, inputs, case.seed) if failing.gradients else inputs,
            Retrial(adapter, case.op, case.digits, request["mode"], case.seed, failing).fails,
            index=failing.index, seconds=asked["seconds"], heard=lambda doing: say({"doing": doing}), found=found,
        )  # fmt: skip
    except Exception as error:  # the process boundary
        say({"raised": in_one_line(error)})
    else:
        say({"shrunk": {"calls": calls}})


def _case(fields: dict[str, Any]) -> Judged:
    return Case.from_json(fields) if fields["kind"] == "case" else RealCase.from_json(fields)


def _expected(files: dict[str, Any]) -> Answer:
    """What the contract gives."""
    gradients = {name: stored_array(*file) for name, file in files["gradients"].items()}
    return Answer(stored_array(*files["result"]), gradients)


if __name__ == "__main__":
    main()
