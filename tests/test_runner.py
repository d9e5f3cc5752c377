"""Each backend in a process of its own: whatever happens there becomes a verdict, and the run goes on."""

import json
import os
import threading
import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest

from crosscheck.cases import Case, default_suite
from crosscheck.lanes import Hand, Lane
from crosscheck.process import WorkerDied, WorkerProcess, WorkerTimedOut
from crosscheck.registry import BACKENDS, FEW, Backend
from crosscheck.runner import LIVES, BackendMissing, Run, _processes, describe, run
from crosscheck.verdict import Verdict

SMALL = [Case("lm_head", "bf16", (3,), 16, 9, digits) for digits in (2, 3, 4)]


def run_one(fault: type[planted.Planted], cases=SMALL[:1], timeout: float = 60) -> list[Verdict]:
    return run(cases, [planted.backend(fault)], timeout=timeout).verdicts


def test_an_exception_is_a_verdict_in_one_sentence():
    (verdict,) = run_one(planted.Raises)
    assert (verdict.status, verdict.message) == ("raised", "ValueError: planted, in: the call itself")
    assert verdict.failed and not verdict.checks


def test_an_exit_is_a_verdict_with_its_status_and_last_words():
    (verdict,) = run_one(planted.Exits)
    assert verdict.status == "crashed"
    assert verdict.message == (
        "its process exited with status 3 (last words: last words of the planted exit), in: the call itself"
    )


def test_a_signal_is_a_verdict_that_names_it():
    (verdict,) = run_one(planted.IsKilled)
    assert verdict.status == "crashed"
    assert verdict.message == "its process was ended by SIGKILL, in: the call itself"


def test_a_hang_is_a_verdict_after_the_time_limit():
    started = time.monotonic()
    (verdict,) = run_one(planted.Hangs, timeout=1)
    assert (verdict.status, verdict.message) == ("timed out", "no answer within 1 s, in: the call itself")
    assert time.monotonic() - started < 30


def test_the_time_limit_is_for_one_call_and_not_for_all_of_a_case():
    (verdict,) = run_one(planted.Dawdles, timeout=2)
    assert verdict.status == "judged" and verdict.seconds > 2


def test_after_a_crash_the_next_case_gets_a_fresh_process(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_FILE", str(tmp_path / "left"))
    verdicts = run_one(planted.CrashesOnce, SMALL)
    assert [verdict.status for verdict in verdicts] == ["crashed", "judged", "judged"]
    assert [verdict.failed for verdict in verdicts] == [True, False, False]


def test_a_backend_that_always_dies_is_left_alone_in_the_end():
    cases = [Case("lm_head", "bf16", (3,), 16, vocab, 2) for vocab in range(1, LIVES + 3)]
    verdicts = run_one(planted.IsKilled, cases)
    assert [verdict.status for verdict in verdicts] == ["crashed"] * LIVES + ["not run"] * 2
    assert all(verdict.failed for verdict in verdicts)


def test_what_a_backend_prints_does_not_disturb_its_answers():
    (verdict,) = run_one(planted.Prints)
    assert not verdict.failed


def test_one_bad_backend_does_not_spoil_another():
    names = (planted.Planted, planted.Raises, planted.Exits, planted.FlipsBits)
    found = run(SMALL, [planted.backend(fault) for fault in names], timeout=60)
    failed = {verdict.backend for verdict in found.verdicts if verdict.failed}
    assert failed == {"Raises", "Exits", "FlipsBits"}
    assert [verdict.case for verdict in found.verdicts[:4]] == [SMALL[0].id] * 4
    assert [verdict.backend for verdict in found.verdicts[:4]] == [fault.__name__ for fault in names]


def test_every_mode_has_its_verdicts_in_order():
    backend = planted.backend(planted.Planted, "eager", "other")
    verdicts = run(SMALL, [backend], timeout=60).verdicts
    assert [(v.case, v.mode) for v in verdicts] == [(c.id, mode) for c in SMALL for mode in ("eager", "other")]


def test_a_missing_backend_stops_the_run_before_anything_is_judged():
    backends = [planted.backend(fault) for fault in (planted.Planted, planted.Unavailable, planted.FailsToStart)]
    with pytest.raises(BackendMissing) as missing:
        run(SMALL, backends, timeout=60)
    assert missing.value.reasons == {
        "Unavailable": "planted: not here",
        "FailsToStart": "it cannot start: RuntimeError: planted: cannot start",
    }
    assert "Unavailable is not available: planted: not here" in str(missing.value)


def test_a_factory_that_does_not_exist_is_a_missing_backend():
    backend = Backend("nowhere", "no_such_module:Adapter", "cpu", ("eager",))
    with pytest.raises(BackendMissing, match="ModuleNotFoundError: No module named 'no_such_module'"):
        run(SMALL, [backend], timeout=60)


def test_a_contract_that_raises_is_a_verdict_of_that_case(monkeypatch):
    def broken(case):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("crosscheck.answers.expected_answer", broken)
    (verdict,) = run_one(planted.Planted)
    assert (verdict.status, verdict.message) == ("raised", "the contract itself raised ZeroDivisionError: planted")


def test_progress_hears_of_every_verdict():
    heard: list[tuple[str, str]] = []
    run(SMALL, [planted.backend(planted.Planted)], timeout=60, progress=lambda *what: heard.append(what))
    assert heard[0] == ("Planted", f"{SMALL[0].id} eager: the call itself")
    assert ("Planted", f"{SMALL[1].id} eager: third run") in heard
    assert heard.count(("Planted", "")) == len(SMALL)


def test_an_interrupt_ends_the_processes_and_keeps_the_verdicts_so_far(monkeypatch):
    received: list[Any] = []
    started: list[Hand] = []
    greet = Hand.greet

    def remembered(hand):
        started.append(hand)
        return greet(hand)

    monkeypatch.setattr(Hand, "greet", remembered)

    def receive(crew, timeout=None):
        if len(received) == 2:  # the greeting and the first verdict
            raise KeyboardInterrupt
        received.append(crew.events.get())
        return received[-1]

    monkeypatch.setattr("crosscheck.runner._Crew._next", receive)
    found = run(SMALL, [planted.backend(planted.Planted)], timeout=60)
    assert not found.complete
    assert [verdict.case for verdict in found.verdicts] == [SMALL[0].id]
    assert [hand.process for hand in started] == [None]


# Several processes of a lane, and one process for all ------------------------------------------------------
def told(found: Run) -> list[dict[str, Any]]:
    """What a run says, less the time that it took."""
    return [{**verdict.to_json(), "seconds": 0} for verdict in found.verdicts]


def test_no_verdict_depends_on_the_number_of_processes():
    backends = [planted.backend(planted.Planted, "eager", "other"), planted.backend(planted.FlipsBits)]
    usual, one, many = (run(SMALL, backends, timeout=60, jobs=jobs) for jobs in (None, 1, 7))
    assert told(one) == told(usual) == told(many)
    assert one.environments == usual.environments == many.environments
    assert [(v.case, v.backend, v.mode) for v in one.verdicts[:3]] == [
        (SMALL[0].id, "Planted", "eager"), (SMALL[0].id, "Planted", "other"), (SMALL[0].id, "FlipsBits", "eager"),
    ]  # fmt: skip


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_backend_that_always_dies_is_left_alone_after_the_same_case(jobs):
    cases = [Case("lm_head", "bf16", (3,), 16, vocab, 2) for vocab in range(1, LIVES + 4)]
    verdicts = run(cases, [planted.backend(planted.IsKilled)], timeout=60, jobs=jobs).verdicts
    assert [verdict.status for verdict in verdicts] == ["crashed"] * LIVES + ["not run"] * 3


def calls_of(path: Path) -> list[tuple[int, float, float]]:
    """The process, begin and end of each call that planted.Notes made, in the order of their begins."""
    return sorted((tuple(json.loads(line)) for line in path.read_text().splitlines()), key=lambda call: call[1])


def test_one_job_is_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_FILE", str(tmp_path / "calls"))
    backends = [planted.backend(planted.Notes, "eager", "other"), replace(planted.backend(planted.Notes), name="more")]
    found = run(SMALL[:2], backends, timeout=60, jobs=1)
    assert len(found.verdicts) == 6 and not any(verdict.failed for verdict in found.verdicts)
    calls = calls_of(tmp_path / "calls")
    assert len({pid for pid, _, _ in calls}) == 3
    assert all(end <= begin for (_, _, end), (_, begin, _) in pairwise(calls))


def test_more_jobs_than_lanes_share_out_the_cases_of_a_lane(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_FILE", str(tmp_path / "calls"))
    monkeypatch.setenv("PLANTED_MEETING", "3")  # each process waits in its first call until there are so many
    found = run(SMALL, [planted.backend(planted.Notes)], timeout=60, jobs=3)
    assert [verdict.case for verdict in found.verdicts] == [case.id for case in SMALL]
    assert len({pid for pid, _, _ in calls_of(tmp_path / "calls")}) == 3


@pytest.mark.parametrize(
    ("jobs", "gpu_jobs", "counts"),
    [(1, 1, [1, 1, 1, 1]), (4, 1, [1, 1, 1, 1]), (6, 1, [1, 2, 2, 1]), (9, 2, [2, 3, 2, 2]), (99, 1, [5, 5, 5, 1])],
)
def test_processes_go_to_lanes_that_compile_first_and_to_a_gpu_as_asked(jobs, gpu_jobs, counts):
    modes = ("eager", "compile")
    places = [("cpu", modes[0]), ("cpu", modes[1]), ("cpu", modes[1]), ("cuda", modes[0])]
    lanes = [Lane(Backend("b", "m:A", device, modes, modes[1:]), mode, 1, cases=5) for device, mode in places]
    assert _processes(lanes, jobs, gpu_jobs) == counts


def test_what_was_made_is_saved_while_the_run_goes_on(monkeypatch):
    monkeypatch.setattr("crosscheck.runner.PAUSE", 0.0)
    saved: list[Run] = []
    found = run(SMALL, [planted.backend(planted.Planted)], timeout=60, save=saved.append)
    assert [len(part.verdicts) for part in saved] == [1, 2, 3]
    assert {part.outcome for part in saved} == {"interrupted"} and found.outcome == "equal"
    assert saved[-1].verdicts == found.verdicts


# The process -----------------------------------------------------------------------------------------------
def test_a_process_can_be_killed_while_it_is_asked(tmp_path):
    np.save(tmp_path / "expected.npy", np.zeros(1, np.uint16))
    expected = {"result": (str(tmp_path / "expected.npy"), "bfloat16"), "gradients": {}}
    with closing(WorkerProcess(planted.backend(planted.Hangs), 1)) as process:
        assert process.hello()["reason"] is None
        threading.Timer(0.5, process.kill).start()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            process.ask({"case": SMALL[0].to_json(), "mode": "eager", "effort": {}, "expected": expected}, 60)


def test_a_dead_process_says_so_when_it_is_asked_again():
    with closing(WorkerProcess(planted.backend(planted.Planted), 1)) as process:
        process.kill()
        with pytest.raises(WorkerDied):
            process.hello()


def test_a_slow_process_times_out():
    slow = planted.backend(planted.Planted)
    with closing(WorkerProcess(slow, 1)) as process, pytest.raises(WorkerTimedOut, match=r"no answer within 0\.001 s"):
        process.ask({"factory": "time:sleep", "device": "cpu", "threads": 1}, 0.001)


def test_a_process_ends_with_the_run_that_started_it():
    with closing(WorkerProcess(planted.backend(planted.Planted), 1)) as process:
        assert process.hello()["reason"] is None
        stdin = process._process.stdin
        assert stdin is not None
        stdin.close()  # as when the parent has ended
        assert process._process.wait(10) == 0


# The known backends ----------------------------------------------------------------------------------------
def test_the_known_backends():
    assert list(BACKENDS) == ["numpy", "torch-cpu", "torch-cuda", "jax-cpu", "jax-gpu"]


def test_of_the_implementations_those_that_the_cases_run_are_told():
    heads = run([Case("lm_head_fp32", "fp32", (1,), 2, 3)], [planted.backend(planted.Planted)], timeout=60)
    assert heads.environments["Planted"]["implementations"] == {"lm_head": "planted"}
    both = run([*SMALL[:1], Case("embedding", "fp32", (1,), 2, 3)], [planted.backend(planted.Planted)], timeout=60)
    assert set(both.environments["Planted"]["implementations"]) == {"embedding", "lm_head"}


def test_settings_reach_the_process_of_the_backend_only(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    said = describe([BACKENDS["jax-cpu"], BACKENDS["numpy"]])
    assert said["jax-cpu"]["reason"] is None
    assert said["jax-cpu"]["device"] == "cpu"
    assert set(said["jax-cpu"]["versions"]) == {"jax", "jaxlib"}
    assert os.environ["JAX_PLATFORMS"] == "tpu"


@pytest.mark.parametrize("name", ["numpy", "torch-cpu", "jax-cpu"])
def test_a_backend_of_this_project_passes_every_check(name):
    wanted = ("embedding_fp32-bf16-N2x3-H4096-V33-int32", "lm_head-fp16-N3-K100-V33-d4-bias_bf16")
    cases = [case for case in default_suite() if case.id in wanted]
    assert len(cases) == len(wanted) and all(case.thorough for case in cases)
    found = run(cases, [BACKENDS[name]], timeout=120)
    assert len(found.verdicts) == len(cases) * len(BACKENDS[name].modes)
    for verdict in found.verdicts:
        assert not verdict.failed, (verdict.message, verdict.to_json()["checks"])
        assert {check.state for check in verdict.checks.values()} == {"pass"}


def test_every_mode_takes_all_gradients_where_there_are_few_cases():
    cases = [Case("lm_head", "bf16", (1,), 2, vocab, 2) for vocab in range(1, FEW + 2)]
    backend = planted.backend(planted.Planted, "eager", "other")
    compiled = replace(backend, compiling=backend.modes)
    few, more = (run(some, [compiled], timeout=60).verdicts for some in (cases[:FEW], cases))
    assert {verdict.checks["grad"].state for verdict in few} == {"pass"}
    assert {verdict.checks["grad"].state for verdict in more} == {"pass", "not applicable"}
