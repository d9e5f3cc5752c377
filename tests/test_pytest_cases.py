"""What the marker asks for is read by its type: anything else is a sentence, and no error from inside."""

from pathlib import Path

import pytest

from crosscheck.pytest_cases import NoSuchCase, cases_of


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"op": 3}, "the marker's op is an int; expected one or several of embedding, "),
        ({"op": [3]}, "the marker's op is 3; expected some of embedding, "),
        ({"op": {"lm_head"}}, "the marker's op is a set; expected one or several of embedding, "),
        ({"filter": None}, "the marker's filter is None; expected a glob for ids"),
        ({"filter": ["*"]}, "the marker's filter is a list; expected a glob for ids"),
        ({"golden": 3}, "the marker's golden is an int; expected a folder"),
    ],
    ids=str,
)
def test_a_marker_of_another_type_is_refused(asked, text):
    with pytest.raises(NoSuchCase) as error:
        cases_of("default", Path(), "*", **asked)
    assert str(error.value).startswith(text)


def test_a_marker_takes_one_operator_or_several():
    one, both = (cases_of("default", Path(), "*", op=op) for op in ("lm_head", ("lm_head", "embedding")))
    assert {case.id.split("-")[0] for case in one} == {"lm_head"}
    assert {case.id.split("-")[0] for case in both} == {"lm_head", "embedding"}
