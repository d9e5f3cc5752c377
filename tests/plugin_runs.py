"""Test files for the pytest plugin, run by pytest with warnings as errors."""

import pytest
from golden_files import CASE

OPTIONS = ("-p", "no:cacheprovider", "-W", "error", "--strict-markers")
IMPORTS = """
    import numpy as np
    import pytest
    from crosscheck import assert_batch_invariant, assert_bits_equal, assert_matches_golden, compare, contract
"""
PASSES = f"""
    {IMPORTS}
    @pytest.mark.crosscheck(op="lm_head", filter="*-N3-K100-*")
    def test_head(crosscheck_case, crosscheck_backend):
        assert_bits_equal(crosscheck_backend(crosscheck_case), crosscheck_case.expected(), context=crosscheck_case.id)
"""

__all__ = ["CASE", "IMPORTS", "PASSES", "in_process", "in_subprocess"]


def in_process(pytester: pytest.Pytester, program: str, *options: str) -> pytest.RunResult:
    """Quick, and not for frameworks: what it imports first is gone after it, and torch cannot be imported twice."""
    pytester.makepyfile(program)
    return pytester.runpytest_inprocess(*OPTIONS, *options)


def in_subprocess(pytester: pytest.Pytester, program: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(program)
    return pytester.runpytest_subprocess(*OPTIONS, *options)
