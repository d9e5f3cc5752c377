"""A failure without a reproducer has a reason, a backend has a few reproducers at most, and a script is tried alone."""

from pathlib import Path

import planted
import pytest
from click.testing import CliRunner

from crosscheck.cases import Case
from crosscheck.cli import main
from crosscheck.judge import expected_answer, judge
from crosscheck.registry import BACKENDS, Backend
from crosscheck.reproducer import MOST_OF_A_BACKEND, _problem, _Shrinker, _unused, reproduce
from crosscheck.reproducer_report import Reproducer
from crosscheck.runner import Run
from crosscheck.verdict import Failure, Verdict

THREE = Case("lm_head", "bf16", (3,), 16, 9)


def verdict_of(backend: str, trial: str, check: str = "bits") -> Verdict:
    """A verdict with a failure that nothing has."""
    verdict = judge(planted.FlipsBits("cpu", 1), backend, THREE, "eager", expected_answer(THREE))
    (failure,) = verdict.checks["bits"].failed
    verdict.checks["bits"].failed.clear()
    verdict.checks[check].failed.append(Failure(trial, failure.text, failure.difference))
    return verdict


def reproduced(verdict: Verdict, backend: Backend, folder: Path) -> list[str]:
    reproduce(Run(verdicts=[verdict]), [THREE], [backend], folder, timeout=60, seconds=60)
    return [Reproducer(**said).sentence() for said in verdict.reproducers]


@pytest.mark.parametrize(
    ("ended", "reason"),
    [("", "in a process of its own it does not fail"), ("its process exited with status 3",) * 2],
)
def test_what_does_not_fail_again_has_no_reproducer_and_that_is_said(tmp_path, monkeypatch, ended, reason):
    monkeypatch.setattr(_Shrinker, "shrink", lambda *what: (None, ended))
    said = reproduced(verdict_of("torch-cpu", "rows reversed", "position"), BACKENDS["torch-cpu"], tmp_path / "repro")
    assert said == [f"depends on the batch: rows reversed: no reproducer: {reason}"]
    assert not (tmp_path / "repro").exists()


def test_what_is_no_function_of_torch_or_jax_has_no_reproducer(tmp_path):
    said = reproduced(verdict_of("FlipsBits", "the call itself"), planted.backend(planted.FlipsBits), tmp_path)
    assert said == [
        "other bits than the contract: no reproducer: FlipsBits is neither a candidate nor a backend of torch or JAX"
    ]


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("class BitsDiffer(AssertionError): pass\nraise BitsDiffer('mine')", ""),
        ("raise ValueError('BitsDiffer')", "its script ends with 1: ValueError: BitsDiffer"),
        ("pass", "its script ends with 0"),
        ("raise SystemExit(3)", "its script ends with 3"),
        ("while True: pass", "its script does not end within 1 s"),
    ],
)
def test_a_script_that_does_not_fail_as_it_should_is_told(tmp_path, monkeypatch, program, problem):
    monkeypatch.setattr("crosscheck.reproducer.START", 0.5)
    path = tmp_path / "reproduce.py"
    path.write_text(program)
    assert _problem(path, "BitsDiffer", 0.5) == (problem and f"alone in a process {problem}")


def test_a_backend_has_a_few_reproducers_at_most_and_one_of_a_kind(tmp_path, monkeypatch):
    monkeypatch.setattr("crosscheck.reproducer._FRAMEWORKS", {})
    verdict = verdict_of("Planted", "the call itself")
    for check in ("position", "padding", "layout", "repeat", "chunking"):
        verdict.checks[check].failed.append(Failure("t", "", verdict.checks["bits"].failed[0].difference))
    verdict.checks["repeat"].failed.append(Failure("raised", "raised ValueError: x", None))
    verdict.checks["grad"].failed.append(Failure("the call itself", "raised ValueError: x", None))
    verdict.checks["grad"].failed.append(Failure("t", "raised ValueError: x", None))
    verdict.checks["inputs"].failed.append(
        Failure("hidden after the call", "", verdict.checks["bits"].failed[0].difference)
    )
    reproduce(Run(verdicts=[verdict]), [THREE], [planted.backend(planted.Planted)], tmp_path, timeout=9, seconds=9)
    kinds = [said["kind"] for said in verdict.reproducers]
    assert len(kinds) == len(set(kinds)) and kinds[:3] == ["bits", "arguments", "batch"]
    beyond = f"no reproducer: a backend or candidate gets {MOST_OF_A_BACKEND} at most"
    assert [said["note"] == beyond for said in verdict.reproducers] == [False] * MOST_OF_A_BACKEND + [True]
    assert [said["more"] for said in verdict.reproducers] == [0, 0, 2, 0, 0, 0, 1]
    shown = Reproducer(**verdict.reproducers[2]).sentence()
    assert shown.endswith("; 2 more failures of this kind got no script")


def test_a_folder_that_is_not_empty_is_refused_before_any_work(tmp_path):
    (tmp_path / "reproduce.py").write_text("of an earlier run")
    words = ["run", "--backends", "Unavailable", "--reproducers", str(tmp_path)]
    result = CliRunner().invoke(main, words, obj=planted.REGISTRY)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"crosscheck: reproducers cannot be written to {tmp_path}: it is not empty, and scripts of an earlier run "
        "would be taken for those of this one; expected a new folder or an empty one\n"
    )
    (tmp_path / "reproduce.py").unlink()
    assert "Unavailable is not available" in CliRunner().invoke(main, words, obj=planted.REGISTRY).stderr


def test_two_reproducers_never_have_one_place(tmp_path):
    (tmp_path / "mine-grad-raises").mkdir()  # of "mine", and "mine-grad" has one that raises
    assert _unused(tmp_path, "mine-grad-raises") == tmp_path / "mine-grad-raises-2"
    assert _unused(tmp_path / "new", "mine-bits") == tmp_path / "new" / "mine-bits"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--reproducers", f"{__file__}/repro"],
            f"reproducers cannot be written to {__file__}/repro: {__file__} is no folder",
        ),
        (["--shrink-seconds", "9"], "--shrink-seconds means something with --reproducers only"),
        (
            ["--list", "--reproducers", "x"],
            "--list judges nothing, so there is nothing for --reproducers; expected one",
        ),
    ],
)
def test_what_cannot_be_written_or_would_be_ignored_is_2(arguments, message):
    result = CliRunner().invoke(main, ["run", "--backends", "FlipsBits", *arguments], obj=planted.REGISTRY)
    assert (result.exit_code, result.stdout) == (2, "") and message in result.stderr


def test_nothing_is_written_where_nothing_was_asked_for_or_nothing_fails(tmp_path):
    typed = ["run", "--filter", "lm_head-bf16-N3-K100-V33-d3-bias", "--backends"]
    for more in (["FlipsBits"], ["Planted", "--reproducers", str(tmp_path / "repro")]):
        result = CliRunner().invoke(main, [*typed, *more], obj=planted.REGISTRY)
        assert "Reproducers" not in result.stdout
    assert not any(tmp_path.iterdir())
