"""The plugin's backends answer from processes of their own, and what is not there is never passed or replaced."""

import os

import pytest
from plugin_runs import CASE, IMPORTS, PASSES, in_process, in_subprocess

from crosscheck import gpu_probe
from crosscheck.cases import default_suite
from crosscheck.pytest_backends import BackendFailed, CallableBackend
from crosscheck.registry import BACKENDS

ON_GPU = "import pytest\n@pytest.mark.crosscheck_gpu\ndef test_gpu():\n    raise RuntimeError('it ran')\n"


# Backends -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "mode"), [("torch-cpu", "eager"), ("jax-cpu", "jit")])
def test_a_backend_answers_from_a_process_of_its_own(pytester, name, mode):
    program = f"""
    {IMPORTS}
    @pytest.mark.crosscheck(filter="{CASE}")
    def test_head(crosscheck_case, crosscheck_backend):
        assert (crosscheck_backend.name, crosscheck_backend.device) == ("{name}", "cpu")
        assert_bits_equal(crosscheck_backend(crosscheck_case, "{mode}"), crosscheck_case.expected())
        with pytest.raises(ValueError, match=r"has no mode 'fast'; expected one of eager, "):
            crosscheck_backend(crosscheck_case, "fast")
    """
    in_process(pytester, program, "--crosscheck-backends", name).assert_outcomes(passed=1)


def test_a_backend_that_is_not_there_is_an_error_of_each_test_that_asks_for_it(pytester, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = in_subprocess(
        pytester, f"{PASSES}\n    def test_other(): pass", "--crosscheck-backends", "numpy,torch-cuda"
    )
    result.assert_outcomes(passed=4, errors=3)
    text = "torch-cuda is not available: torch * sees no CUDA device; --crosscheck-backends asks for it"
    result.stdout.fnmatch_lines([text] * 3)
    assert not any("During handling" in line for line in result.outlines)


def test_a_backend_that_ends_is_an_error_in_words_and_is_started_again():
    backend = CallableBackend(BACKENDS["numpy"], 1)
    case = next(case for case in default_suite() if case.id == CASE)
    try:
        backend.start()
        assert backend._process is not None
        backend._process.kill()
        with pytest.raises(BackendFailed, match=rf"numpy gave no answer to {CASE} \(eager\): its process was ended"):
            backend(case)
        assert backend(case).shape == (3, 33)
    finally:
        backend.close()


def test_workers_of_xdist_have_the_same_ids_and_backends_of_their_own(pytester):
    result = in_subprocess(pytester, PASSES, "-n", "2")
    result.assert_outcomes(passed=3)
    result.stdout.no_fnmatch_line("*ERROR*")


def test_backends_end_with_the_session(pytester):
    program = f"""
    {IMPORTS}
    from pathlib import Path
    @pytest.mark.crosscheck(filter="{CASE}")
    def test_head(crosscheck_case, crosscheck_backend):
        Path("pid").write_text(str(crosscheck_backend._process._process.pid))
    """
    in_process(pytester, program).assert_outcomes(passed=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((pytester.path / "pid").read_text()), 0)


# GPU ------------------------------------------------------------------------------------------------------
def test_without_a_gpu_the_marker_skips_with_the_reason_or_fails_where_one_is_required(pytester, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = in_process(pytester, ON_GPU, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED [[]1] test_without*.py:2: not run: no CUDA device: *NVIDIA driver*"])
    result = in_process(pytester, ON_GPU, "--crosscheck-require-gpu")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["no CUDA device: *, and --crosscheck-require-gpu asks for one"])


def test_with_a_gpu_the_marker_lets_the_test_run(pytester, monkeypatch):
    monkeypatch.setattr(gpu_probe, "missing_gpu", lambda: None)
    result = in_process(pytester, ON_GPU)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * RuntimeError: it ran"])


def test_the_driver_is_asked_in_a_process_of_its_own(monkeypatch, tmp_path):
    for program, reason in (
        ("", None),
        ("import sys; sys.exit('there is none')", "no CUDA device: there is none"),
        ("import sys; sys.exit(3)", "no CUDA device: the question ended with status 3"),
    ):
        (tmp_path / "probe.py").write_text(program)
        monkeypatch.setattr(gpu_probe, "__file__", str(tmp_path / "probe.py"))
        assert gpu_probe.missing_gpu() == reason


def test_no_framework_is_imported_when_tests_are_collected(pytester, monkeypatch):
    program = f"""
    import sys
    {PASSES}
    @pytest.mark.crosscheck_gpu
    def test_gpu(): pass

    @pytest.fixture(scope="session", autouse=True)
    def nothing_was_imported():
        yield
        assert not {{"torch", "jax"}} & set(sys.modules)
    """
    in_subprocess(pytester, program).assert_outcomes(
        passed=3, skipped=int(gpu_probe.missing_gpu() is not None), failed=0
    )
