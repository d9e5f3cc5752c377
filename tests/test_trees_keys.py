"""Keys of mappings are one where type and value are, and told apart where they read alike; none needs an order."""

import collections
import enum
import pickle
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tree_texts import message, refusal

from crosscheck import TreesDiffer, assert_bits_equal

ONES = np.ones(3, np.float32)


class Key:
    """Equal by identity, or by a number; they all read alike."""

    def __init__(self, number: int | None = None) -> None:
        self.number = number

    def __repr__(self) -> str:
        return "key"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Key) and None is not self.number == other.number)

    def __hash__(self) -> int:
        return 7


class Name(str):
    """A key that reads as a str."""


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def test_keys_that_read_alike_are_told_apart_by_equality():
    a, b = Key(), Key()
    assert_bits_equal({a: 1, b: ONES}, {b: ONES, a: 1})
    assert message({a: 1, b: 2}, {a: 1, b: 3}) == ("1 of 2 leaves differ:\n  [key (Key, 2 of 2)]: it is 2; expected 3")
    assert message({Key(): 1}, {Key(): 1}) == (
        "the structure differs in 2 places:\n  [key (Key, 1 of 2)]: it is 1, int; expected nothing here\n"
        "  [key (Key, 2 of 2)]: it is missing; expected 1, int"
    )
    assert_bits_equal({Key(1): ONES, Key(2): 2}, {Key(2): 2, Key(1): ONES})


@pytest.mark.parametrize(
    ("actual", "expected"),
    [(1, True), (1, "1"), (0, False), (1, 1.0), (1, np.int64(1)), ("a", b"a"), (Color.RED, Color.BLUE), (None, "None")],
    ids=repr,
)
def test_keys_are_of_their_type(actual, expected):
    assert message({actual: 5}, {expected: 5}) == (
        f"the structure differs in 2 places:\n  [{actual!r}]: it is 5, int; expected nothing here\n"
        f"  [{expected!r}]: it is missing; expected 5, int"
    )


def test_a_key_of_a_subclass_that_reads_the_same_is_named_by_its_type():
    assert message({Name("a"): 1}, {"a": 1}) == (
        "the structure differs in 2 places:\n  ['a' (Name, 1 of 2)]: it is 1, int; expected nothing here\n"
        "  ['a' (str, 2 of 2)]: it is missing; expected 1, int"
    )


def test_keys_need_no_order():
    keys = [None, 1, "a", (2, None), Color.RED, frozenset([3]), float, 2j]
    actual = {key: np.int8(i) for i, key in enumerate(keys)}
    assert_bits_equal(actual, dict(reversed(actual.items())))
    assert_bits_equal({"in": collections.defaultdict(list, actual)}, {"in": types.MappingProxyType(actual)})


def test_a_key_without_a_hash_is_refused():
    class Listed(Mapping):
        def __getitem__(self, key: Any) -> Any:
            return 1

        def __iter__(self) -> Any:
            return iter([[0]])

        def __len__(self) -> int:
            return 1

    text = refusal(TypeError, [Listed()], [{}])
    assert text.startswith("actual[0] has a key that is a list, ") and text.endswith("; expected keys with a hash")


def test_failures_of_odd_trees_survive_pickling():
    with pytest.raises(TreesDiffer) as error:
        assert_bits_equal({1: ONES}, {True: ONES})
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
