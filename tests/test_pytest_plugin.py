"""The pytest plugin has the cases that were asked for, shows planted faults in words, and costs nothing unasked."""

from pathlib import Path

import pytest
from frameworks import both
from golden_files import crosscheck
from plugin_runs import CASE, IMPORTS, PASSES, in_process, in_subprocess
from processes import run_alone

from crosscheck import assert_bits_equal
from crosscheck.cases import default_suite
from crosscheck.pytest_cases import cases_of
from crosscheck.registry import BACKENDS

CASES = [case.id for case in default_suite() if "-N3-K100-" in case.id]


# Cases ----------------------------------------------------------------------------------------------------
def test_cases_are_parameters_with_their_own_ids(pytester):
    result = in_process(pytester, PASSES, "-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([f"*::test_head[[]{case}-numpy] PASSED*" for case in CASES])


def test_the_whole_default_suite_is_the_default(pytester):
    result = in_process(pytester, "def test_case(crosscheck_case): pass", "--collect-only", "-q")
    collected = [line.partition("[")[2].removesuffix("]") for line in result.outlines if "::" in line]
    assert collected == [case.id for case in default_suite()]


def test_the_inputs_of_a_case_are_the_tests_own(pytester):
    program = f"""
    {IMPORTS}
    def test_inputs(crosscheck_case):
        expected = contract.lm_head(**crosscheck_case.inputs, **crosscheck_case.options)
        for array in crosscheck_case.inputs.values():
            array[...] = 0
        assert_bits_equal(crosscheck_case.expected(), expected)
        with pytest.raises(ValueError, match="the framework is 'tf'; expected one of numpy, torch, jax"):
            crosscheck_case.arrays("tf")
    """
    in_process(pytester, program, "--crosscheck-filter", CASE).assert_outcomes(passed=1)


@both
def test_a_case_has_its_inputs_in_each_framework(framework):
    (case,) = (case.drawn() for case in cases_of("default", Path(), CASE))
    arrays = case.arrays(framework.name)
    assert {name: type(x) for name, x in arrays.items()} == dict.fromkeys(
        ["hidden", "weight", "bias"], type(framework.array(case.inputs["bias"]))
    )
    assert_bits_equal(arrays, case.inputs)
    assert_bits_equal(framework.package.lm_head(**arrays, **case.options), case.expected())


def test_markers_of_a_class_and_of_a_test_are_one(pytester):
    program = f"""
    {IMPORTS}
    @pytest.mark.crosscheck(op="lm_head", filter="*-N3-K100-*")
    class TestHead:
        @pytest.mark.crosscheck(filter="*-fp16-*-K100-*")
        def test_one(self, crosscheck_case):
            assert (crosscheck_case.op, crosscheck_case.digits) == ("lm_head", 4)
            assert repr(crosscheck_case) == f"<crosscheck case {{crosscheck_case.id}}>"

        @pytest.mark.crosscheck(op=["embedding", "lm_head"])
        def test_two(self, crosscheck_case): pass
    """
    in_process(pytester, program).assert_outcomes(passed=4)


def test_a_golden_gives_its_stored_inputs_and_outputs(pytester):
    options = ("--filter", "lm_head-*-N3-K100-V33-*")
    assert crosscheck("golden", "write", pytester.path / "golden", *options).exit_code == 0
    program = f"""
    {IMPORTS}
    @pytest.mark.crosscheck(golden="golden", filter="*-bf16-*")
    def test_golden(crosscheck_case):
        result = contract.lm_head(**crosscheck_case.inputs, **crosscheck_case.options)
        assert_bits_equal(result, crosscheck_case.expected())

    @pytest.mark.crosscheck(golden="golden")
    def test_backend(crosscheck_case, crosscheck_backend):
        with pytest.raises(ValueError, match="is a case of a golden, and backends are called with built-in ones"):
            crosscheck_backend(crosscheck_case)

    def test_whole_golden():
        assert_matches_golden(contract.lm_head, "golden")
    """
    in_process(pytester, program).assert_outcomes(passed=5)


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("op='head'", "the marker's op is 'head'; expected some of embedding, embedding_fp32, lm_head, lm_head_fp32"),
        ("op='lm_head', filter='*-N9-*'", "the default suite has no case of lm_head that matches '*-N9-*'"),
        ("golden='nowhere'", "nowhere is no golden: "),
        ("filters='*'", "the marker crosscheck has filters; expected op, filter, golden by name"),
        ("'lm_head'", "the marker crosscheck has 'lm_head'; expected op, filter, golden by name"),
    ],
)
def test_a_marker_without_a_case_is_an_error_and_no_skip(pytester, marker, text):
    program = f"import pytest\n@pytest.mark.crosscheck({marker})\ndef test_head(crosscheck_case): pass"
    result = in_process(pytester, program)
    result.assert_outcomes(errors=1)
    assert any(text in line for line in result.outlines), result.outlines


def test_the_filter_leaves_out_a_test_of_other_cases_with_the_reason(pytester):
    program = f"{PASSES}\n    @pytest.mark.crosscheck(op='embedding')\n    def test_rows(crosscheck_case): assert 0"
    result = in_process(pytester, program, "--crosscheck-filter", "lm_head-*", "-rs")
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["*not run: no case of this test matches --crosscheck-filter 'lm_head-[*]'"])


def test_the_ini_file_says_what_the_options_do_not(pytester):
    pytester.makeini(f"""
        [pytest]
        crosscheck_backends = numpy, torch-cpu
        crosscheck_filter = {CASES[1]}
        crosscheck_suite = full
        crosscheck_require_gpu = true
    """)
    program = f"{IMPORTS}\n    def test_case(crosscheck_case, crosscheck_backend): pass"
    result = in_process(pytester, program, "--collect-only", "-q")
    assert [line for line in result.outlines if "::" in line] == [
        f"test_the_ini_file_says_what_the_options_do_not.py::test_case[{CASES[1]}-{name}]"
        for name in ("numpy", "torch-cpu")
    ]
    result = in_process(pytester, program, "--collect-only", "-q", "--crosscheck-backends", "numpy")
    assert len([line for line in result.outlines if "::" in line]) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--crosscheck-backends", "numpy,tpu"],
         f"--crosscheck-backends names 'tpu'; expected some of {', '.join(BACKENDS)}"),
        (["--crosscheck-backends", "numpy,numpy"], "--crosscheck-backends names numpy twice; expected each once"),
        (["--crosscheck-backends", ""], "--crosscheck-backends names ''; expected some of "),
        (["--crosscheck-suite", "huge"], "--crosscheck-suite is 'huge'; expected one of default, full"),
        (["--crosscheck-filter", "*-N9-*"], "--crosscheck-filter: no case of the default suite matches '*-N9-*'"),
    ],
    ids=["backend", "twice", "none", "suite", "filter"],
)  # fmt: skip
def test_an_option_that_cannot_be_used_is_a_usage_error(pytester, options, text):
    result = in_process(pytester, "def test_it(): pass", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text in result.stderr.str()


# Faults in words ------------------------------------------------------------------------------------------
def test_planted_faults_fail_with_the_first_difference_and_a_short_traceback(pytester):
    assert crosscheck("golden", "write", pytester.path / "golden", "--filter", CASE).exit_code == 0
    result = in_subprocess(
        pytester,
        f"""
    {IMPORTS}
    @pytest.mark.crosscheck(op="lm_head", filter="{CASE}")
    def test_head(crosscheck_case):
        wrong = crosscheck_case.expected()
        wrong.view(np.uint16)[0, 5] ^= 1
        assert_bits_equal(wrong, crosscheck_case.expected(), context=crosscheck_case.id)

    def test_tree():
        assert_bits_equal({{"w": [np.ones(2)]}}, {{"w": [np.zeros(2)]}})

    def test_batch():
        assert_batch_invariant(lambda x: x - x.max(), np.float32([[1, 2], [3, 5]]))

    def test_golden():
        assert_matches_golden(lambda hidden, weight, bias: contract.lm_head(hidden, weight), "golden")

    def test_compare():
        assert compare(np.float32(1), np.float32(2)) is None
    """,
    )
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines([
        f"E * crosscheck.bits.BitsDiffer: {CASE}: 1 of 99 elements of bfloat16 (3, 33) differ; first at [[]0, 5]: *",
        "E * crosscheck.trees.TreesDiffer: 1 of 1 leaves differ:",
        "E *[[]'w'][[]0]: 2 of 2 elements of float64 (2,) differ; *",
        "E * crosscheck.batch_variant.BatchVariant: the result depends on the batch: 'first row alone' (population) *",
        "E * crosscheck.golden_check.GoldenDiffers: 1 of 1 case has other bits than golden:",
        f"E * {CASE}: * of 99 elements of bfloat16 (3, 33) differ; first at [[]0, *",
        "E * assert the bits differ: 1 of 1 elements of float32 () differ; first at [[]]: actual 1.0 *",
    ])  # fmt: skip
    result.stdout.no_fnmatch_line("*crosscheck/*.py:*")


# The plugin itself ----------------------------------------------------------------------------------------
def test_loading_the_plugin_imports_no_more_of_crosscheck_and_nothing_heavy():
    run_alone("""
import sys
import pytest
before = set(sys.modules)
import crosscheck.pytest_plugin
new = set(sys.modules) - before
assert new == {"crosscheck", "crosscheck.pytest_plugin"}, sorted(new)
""")


def test_a_run_that_uses_none_of_it_imports_none_of_it(pytester):
    in_subprocess(
        pytester,
        """
    import sys
    def test_nothing():
        loaded = {name for name in sys.modules if name.startswith("crosscheck")}
        assert loaded == {"crosscheck", "crosscheck.pytest_plugin"}
        assert not {"torch", "jax", "click", "rich"} & set(sys.modules)
    """,
    ).assert_outcomes(passed=1)


def test_the_plugin_can_be_left_out(pytester):
    result = in_process(pytester, "def test_it(crosscheck_case): pass", "-p", "no:crosscheck")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["E *fixture 'crosscheck_case' not found"])


def test_options_and_markers_describe_themselves(pytester):
    result = in_process(pytester, "", "--markers")
    result.stdout.fnmatch_lines(
        ["@pytest.mark.crosscheck(op=None, *", "@pytest.mark.crosscheck_gpu: needs a CUDA device; *"]
    )
    result = in_process(pytester, "", "--help")
    result.stdout.fnmatch_lines(["*--crosscheck-backends=NAMES*", "*--crosscheck-require-gpu*"])


def test_a_fixture_asked_for_by_name_says_how_to_ask(pytester):
    program = "def test_it(request): request.getfixturevalue('crosscheck_case')"
    result = in_process(pytester, program)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*crosscheck_case is asked for by getfixturevalue; expected it among the arguments*"])
