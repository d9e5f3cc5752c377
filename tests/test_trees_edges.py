"""A tree that is cyclic, deep, incomplete or of odd classes is compared as it is, or refused with a path."""

import collections
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
from tree_texts import message, refusal

from crosscheck import assert_bits_equal
from crosscheck.trees import DEEPEST, compare_trees, leaves_of

ONES = np.ones(3, np.float32)


# Cycles and depth -----------------------------------------------------------------------------------------
@dataclass
class Node:
    value: Any
    below: Any = None


@jax.tree_util.register_pytree_node_class
class Registered:
    """Its one child may be itself."""

    def __init__(self, *children: Any, static: Any = None) -> None:
        self.children, self.static = children or (self,), static

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        return self.children, self.static

    @classmethod
    def tree_unflatten(cls, static: Any, children: tuple[Any, ...]) -> "Registered":
        return cls(*children, static=static)


def cyclic_list() -> Any:
    tree: list[Any] = [ONES]
    tree.append(tree)
    return {"a": tree}


def cyclic_dict() -> Any:
    tree: dict[str, Any] = {"n": 1}
    tree["up"] = [tree]
    return tree


def cyclic_dataclass() -> Any:
    tree = Node(ONES)
    tree.below = (Node(1, tree),)
    return tree


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (cyclic_list, "actual['a'][1] is actual['a'] again, a list that holds itself; expected a tree that ends: leave "
         "that part out"),
        (cyclic_dict, "actual['up'][0] is actual again, a dict that holds itself; expected a tree that ends"),
        (cyclic_dataclass, "actual.below[0].below is actual again, a Node that holds itself; expected"),
        (Registered, "actual[<flat index 0>] is actual again, a Registered that holds itself; expected"),
    ],
    ids=["list", "dict", "dataclass", "pytree"],
)  # fmt: skip
def test_a_tree_that_holds_itself_is_refused_with_both_paths(make, text):
    assert refusal(ValueError, make(), make()).startswith(text)
    tree = make()
    assert refusal(ValueError, tree, tree).startswith(text)


def test_a_cycle_of_the_expected_tree_alone_is_named_by_its_side():
    expected = cyclic_list()
    text = "expected['a'][1] is expected['a'] again, a list that holds itself"
    assert refusal(ValueError, {"a": [ONES, [ONES, 2]]}, expected).startswith(text)


def test_one_object_in_several_places_is_no_cycle():
    shared = [ONES, {}]
    assert_bits_equal([shared, {"again": shared}, (shared, shared)], [shared, {"again": [ONES, {}]}, (shared, shared)])


def nested(levels: int, leaf: Any) -> Any:
    for i in range(levels):
        leaf = {"key": leaf} if i % 2 else [leaf]
    return leaf


def test_a_deep_tree_is_compared_and_its_path_is_shown_by_its_ends():
    assert_bits_equal(nested(5000, ONES), nested(5000, ONES.copy()))
    found = compare_trees(nested(5000, 1), nested(5000, 2))
    assert found is not None and found.leaves[0].path == "['key'][0]" * 2500
    line = message(nested(5000, 1), nested(5000, 2)).splitlines()[1]
    end = ("['key'][0]" * 6)[:60]
    assert line == f"  {end} ... {end}: it is 1; expected 2"


def test_a_deep_linked_list_with_a_leaf_at_each_level_is_compared():
    def linked() -> Any:
        tree: Any = None
        for i in range(2000):
            tree = Node(np.int32(i), tree)
        return tree

    assert_bits_equal(linked(), linked())


def test_a_tree_without_an_end_is_refused_at_the_deepest_level():
    class Endless(Mapping):
        def __getitem__(self, key: str) -> Any:
            return Endless()

        def __iter__(self) -> Any:
            return iter("x")

        def __len__(self) -> int:
            return 1

    end = ("['x']" * 12)[:60]
    assert refusal(ValueError, Endless(), Endless()) == (
        f"actual{end} ... {end} is {DEEPEST} levels deep, and goes on; expected a tree that ends: compare its parts"
    )


# Dataclasses and other classes ----------------------------------------------------------------------------
@dataclass
class Unset:
    weight: Any
    cache: Any = field(init=False)


@dataclass(slots=True)
class Slots:
    weight: Any
    cache: Any = field(init=False)


@dataclass(frozen=True)
class Frozen:
    weight: Any
    bias: Any = None


@dataclass
class Computed:
    weight: Any
    double: Any = field(init=False)


Computed.double = property(lambda self: self.missing)  # type: ignore[assignment]


class Row(collections.namedtuple("Row", ["left", "right"])):
    __slots__ = ()


class Listing(tuple):
    """A tuple with a _fields that is not that of a named tuple."""

    _fields = "left, right"


class Attributes:
    """As attrs makes classes: a container for its author alone."""

    __slots__ = ("weight",)

    def __init__(self, weight: Any) -> None:
        self.weight = weight


@pytest.mark.parametrize("make", [Unset, Slots], ids=lambda make: make.__name__)
def test_a_field_that_is_unset_on_both_sides_is_equal_and_on_one_is_missing(make):
    assert_bits_equal(make(ONES), make(ONES.copy()))
    assert message([make(ONES)], [make(-ONES)]).startswith("1 of 1 leaves differ:\n  [0].weight: 3 of 3 elements")
    with_cache = make(ONES)
    with_cache.cache = {}
    head = "the structure differs in 1 place:\n  .cache: it is"
    assert message(make(ONES), with_cache) == f"{head} missing; expected a dict of 0"
    assert message(with_cache, make(ONES)) == f"{head} a dict of 0; expected nothing here"


def test_a_field_whose_reading_fails_is_an_error_and_not_unset():
    assert refusal(ValueError, [Computed(ONES)], [Computed(ONES)]) == (
        "actual[0].double cannot be read, 'Computed' object has no attribute 'missing'; expected a field that is set "
        "or unset: compare the other fields"
    )


def test_frozen_dataclasses_and_named_tuples_are_compared_by_name():
    assert_bits_equal(Frozen(ONES), Frozen(ONES.copy(), None))
    assert message(Frozen(ONES, 1), Frozen(ONES)) == "1 of 2 leaves differ:\n  .bias: it is 1, int; expected None"
    assert message(Row(1, None), Row(1, 0)) == "1 of 2 leaves differ:\n  .right: it is None; expected 0, int"
    assert message(Listing([1, 2]), Listing([1, 3])) == "1 of 2 leaves differ:\n  [1]: it is 2; expected 3"


def test_none_is_a_leaf_and_no_missing_part():
    assert_bits_equal([None, {"a": None}], [None, {"a": None}])
    assert message({"a": None}, {}).endswith("\n  ['a']: it is None; expected nothing here")
    assert message([None], [()]).endswith("\n  [0]: it is None; expected a tuple of 0")


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [(Attributes(ONES), "an Attributes"), ({1}, "a set"), (iter(()), "a tuple_iterator"), (1j, "a complex"),
     (b"x", "a bytes"), ({}.keys(), "a dict_keys")],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_another_object_is_refused_by_its_path(leaf, kind):
    for actual, expected, side in (([leaf], [0], "actual"), ([0], [leaf], "expected")):
        assert refusal(TypeError, actual, expected) == (
            f"{side}[0] is {kind}; expected an array, a container of arrays, or None, bool, int, float or str: compare "
            "what it holds"
        )


def test_two_classes_made_alike_are_said_to_be_two():
    def made() -> Any:
        @dataclass
        class Made:
            weight: Any

        return Made(1)

    assert message(made(), made()).endswith("<locals>.Made; expected another class of this name")


# JAX's pytrees --------------------------------------------------------------------------------------------
def test_a_static_part_without_an_equality_is_refused():
    trees = [[Registered(ONES, static=np.arange(3))] for _ in range(2)]
    text = refusal(TypeError, *trees)
    assert text.startswith("the static part of actual[0] cannot be compared, Exception raised while checking")
    assert text.endswith("; expected one with an == of its own: compare what it holds")


def test_a_pytree_that_cannot_be_flattened_is_refused():
    broken = Registered(ONES)
    del broken.children
    text = refusal(ValueError, [Registered(ONES)], [broken])
    assert text.startswith("expected[0] is a Registered that JAX cannot flatten, AttributeError: ")
    assert text.endswith("; expected a pytree whose parts are all set")


def test_parts_to_which_a_pytree_gives_one_path_are_compared_each():
    class Twice:
        def __init__(self, *children: Any) -> None:
            self.children = children

    same = jax.tree_util.GetAttrKey("x")
    jax.tree_util.register_pytree_with_keys(
        Twice, lambda tree: ([(same, child) for child in tree.children], None), lambda _, children: Twice(*children)
    )
    assert message(Twice(1, 2), Twice(3, 2)) == "1 of 2 leaves differ:\n  [<part 0>]: it is 1; expected 3"


# Leaves ---------------------------------------------------------------------------------------------------
def test_the_leaves_of_one_tree_come_in_order_with_their_paths():
    tree = {"b": [ONES, Row(1, None)], "a": Registered("x", static=np.arange(2))}
    found = list(leaves_of(tree, "the result"))
    assert [path for path, _ in found] == ["['b'][0]", "['b'][1].left", "['b'][1].right", "['a'][<flat index 0>]"]
    assert found[0][1] is ONES and [leaf for _, leaf in found[1:]] == [1, None, "x"]
    assert next(leaves_of(ONES, "x"))[0] == ""
    with pytest.raises(ValueError, match=r"^the result\[1\] is the result again, a list that holds itself"):
        list(leaves_of(cyclic_list()["a"], "the result"))
