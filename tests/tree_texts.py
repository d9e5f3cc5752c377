"""What is said of two trees that differ, or that are refused."""

from typing import Any

import pytest

from crosscheck import TreesDiffer, assert_bits_equal


def message(actual: Any, expected: Any) -> str:
    with pytest.raises(TreesDiffer) as error:
        assert_bits_equal(actual, expected)
    return str(error.value)


def refusal(kind: type[Exception], actual: Any, expected: Any) -> str:
    with pytest.raises(kind) as error:
        assert_bits_equal(actual, expected)
    return str(error.value)
