"""Trees are equal where structure and every leaf are, and each planted difference is named by its path."""

import collections
import pickle
import types
from dataclasses import dataclass
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from bit_arrays import BFLOAT16, random_bits
from hypothesis import given
from hypothesis import strategies as st
from processes import run_alone

import rlk_jax
import rlk_torch
from crosscheck import BitsDiffer, TreesDiffer, assert_bits_equal
from crosscheck.bits import to_bits
from crosscheck.trees import compare_trees, is_tree

Pair = collections.namedtuple("Pair", ["left", "right"])
ONES = np.ones(3, np.float32)


@dataclass
class Layer:
    weight: Any
    steps: int = 3


@chex.dataclass
class ChexLayer:
    weight: Any


@jax.tree_util.register_pytree_node_class
class Registered:
    def __init__(self, x: Any, name: str) -> None:
        self.x, self.name = x, name

    def tree_flatten(self) -> tuple[tuple[Any], str]:
        return (self.x,), self.name

    @classmethod
    def tree_unflatten(cls, name: str, children: tuple[Any]) -> "Registered":
        return cls(*children, name)


def message(actual: Any, expected: Any, **options: Any) -> str:
    with pytest.raises(TreesDiffer) as error:
        assert_bits_equal(actual, expected, **options)
    return str(error.value)


# Leaves -------------------------------------------------------------------------------------------------
leaves = st.sampled_from([None, True, 1, 0.0, -0.0, float("nan"), "x", ONES, BFLOAT16.type(1), np.int8([4])])
trees = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", 0]), parts, max_size=3),
        st.builds(Pair, parts, parts),
        st.builds(Layer, parts),
    ),
)


@given(trees.filter(is_tree))
def test_a_tree_equals_itself_made_anew(tree):
    assert compare_trees(tree, pickle.loads(pickle.dumps(tree))) is None


@given(st.data())
def test_one_flipped_bit_is_found_by_its_path(data):
    keys = data.draw(st.lists(st.sampled_from(["a", "b", 7]), min_size=1, max_size=4))
    expected: Any = random_bits(np.dtype(np.float16), (2, 3))
    actual: Any = expected.copy()
    at = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2))
    to_bits(actual)[at] ^= np.uint16(1 << data.draw(st.integers(0, 15)))
    for key in keys:
        actual, expected = ({key: x, "other": [ONES]} for x in (actual, expected))
    found = compare_trees(actual, expected)
    assert found is not None and found.structure == ()
    assert [place.path for place in found.leaves] == ["".join(f"[{key!r}]" for key in reversed(keys))]
    assert found.leaves[0].difference is not None and found.leaves[0].difference.index == at
    assert found.compared == 1 + len(keys)


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        (0.0, -0.0, "it is 0.0 (0x0000000000000000); expected -0.0 (0x8000000000000000)"),
        (1, 2, "it is 1; expected 2"),
        (True, 1, "it is True, bool; expected 1, int"),
        (1.0, 1, "it is 1.0, float; expected 1, int"),
        ("relu", "gelu", "it is 'relu'; expected 'gelu'"),
        (None, ONES, "it is None; expected an array, float32 (3,)"),
        (torch.ones(2, dtype=torch.bfloat16), 1.0, "it is an array, bfloat16 (2,); expected 1.0, float"),
        (ONES, np.float64(ONES), "dtype is float32; expected float64"),
        (ONES[0], ONES[:1], "shape is (); expected (1,), float32"),
        (-ONES, ONES, "3 of 3 elements of float32 (3,) differ; first at [0]: actual -1.0 (0xBF800000), expected 1.0 "
         "(0x3F800000), 2130706432 ULP apart, at most 2130706432"),
    ],
)  # fmt: skip
def test_the_sentence_of_each_leaf(actual, expected, text):
    assert message({"x": actual}, {"x": expected}) == f"1 of 1 leaves differ:\n  ['x']: {text}"


def test_a_float_that_is_nan_equals_itself_and_no_other_nan():
    other = float(np.uint64([0x7FF8000000000001]).view(np.float64)[0])
    assert compare_trees([float("nan")], [float("nan")]) is None
    assert "0x7FF8000000000000" in message([float("nan")], [other])


def test_python_numbers_alone_are_no_tree():
    with pytest.raises(TypeError, match="actual is a float; expected a NumPy array"):
        assert_bits_equal(1.0, 1.0)


def test_arrays_of_different_frameworks_are_equal_leaves():
    of_torch = {"w": torch.ones(3), "b": [torch.zeros(2, dtype=torch.bfloat16)]}
    of_jax = {"b": [jnp.zeros(2, jnp.bfloat16)], "w": jnp.ones(3)}
    assert_bits_equal(of_torch, of_jax)
    assert_bits_equal(collections.OrderedDict(of_torch), types.MappingProxyType(of_jax))


# Structure ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        ({"a": 1}, {"b": ONES}, "differs in 2 places:\n  ['a']: it is 1, int; expected nothing here\n"
         "  ['b']: it is missing; expected an array, float32 (3,)"),
        ([1, 2], [1], "differs in 1 place:\n  [1]: it is 2, int; expected nothing here"),
        ([1], (1,), "differs in 1 place:\n  the root: it is a list of 1; expected a tuple of 1"),
        (Pair(1, [2]), (1, [2]), "differs in 1 place:\n  the root: it is a Pair of 2; expected a tuple of 2"),
        (Pair(1, {}), Pair(1, []), "differs in 1 place:\n  .right: it is a dict of 0; expected a list of 0"),
        (Layer([ONES]), Layer(ONES), "differs in 1 place:\n  .weight: it is a list of 1; expected an array, float32"),
        ({"a": [ONES]}, [ONES], "differs in 1 place:\n  the root: it is a dict of 1; expected a list of 1"),
        ([1], ONES, "differs in 1 place:\n  the root: it is a list of 1; expected an array, float32 (3,)"),
    ],
)  # fmt: skip
def test_each_difference_of_structure_is_said_with_its_path(actual, expected, text):
    assert message(actual, expected).startswith(f"the structure {text}")


def test_classes_of_one_name_are_told_apart():
    weight = np.ones((2, 4), np.float32)
    of_torch, of_jax = rlk_torch.align(torch.from_numpy(weight), 3), rlk_jax.align(weight, 3)
    text = "the root: it is rlk_torch.alignment.Aligned; expected rlk_jax.alignment.Aligned"
    assert text in message(of_torch, of_jax)


def test_structure_and_leaves_are_counted_and_the_first_are_shown():
    actual = {"extra": 0, **{str(i): i for i in range(9)}}
    expected = {str(i): i + (i > 1) for i in range(9)}
    lines = message(actual, expected, context="step 3").splitlines()
    assert lines[0] == "step 3: the structure differs in 1 place and 7 of 9 leaves differ:"
    assert lines[1] == "  ['extra']: it is 0, int; expected nothing here"
    assert lines[2:6] == [f"  ['{i}']: it is {i}; expected {i + 1}" for i in range(2, 6)]
    assert lines[6:] == ["  and 3 more"]


# JAX's pytrees ------------------------------------------------------------------------------------------
def test_an_aligned_weight_is_compared_part_by_part():
    weight = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert_bits_equal([rlk_jax.align(weight, 3)], [rlk_jax.align(weight.copy(), 3)])
    text = message([rlk_jax.align(weight, 3)], [rlk_jax.align(2 * weight, 3)])
    assert text.startswith("1 of 4 leaves differ:\n  [0].exponent: 2 of 2 elements of int32 (2,) differ")


def test_a_registered_class_is_compared_by_its_children_and_its_static_part():
    assert_bits_equal(Registered(ONES, "a"), Registered(jnp.ones(3), "a"))
    assert "dtype is float32; expected int32" in message(Registered(ONES, "a"), Registered(jnp.ones(3, int), "a"))
    text = message(Registered(ONES, "a"), Registered(ONES, "b"))
    assert text.startswith("the structure differs in 1 place:\n  the root: its static part is PyTreeDef(")


def test_a_chex_dataclass_is_a_dataclass_by_its_fields():
    assert_bits_equal(ChexLayer(weight=ONES), ChexLayer(weight=jnp.ones(3)))
    assert "\n  .weight: dtype" in message(ChexLayer(weight=ONES), ChexLayer(weight=jnp.ones(3, bool)))


def test_jax_is_asked_only_where_it_is_imported():
    run_alone("""
import sys
import numpy as np
from crosscheck import assert_bits_equal
assert_bits_equal({"a": [np.ones(2), None]}, {"a": [np.ones(2), None]})
same = object()
assert_bits_equal([same], [same])
assert not {"jax", "torch"} & set(sys.modules), sorted(sys.modules)
""")


# Refusals and records -----------------------------------------------------------------------------------
def test_what_has_no_bits_is_refused_by_its_path_unless_it_is_the_same():
    function = np.sin
    assert_bits_equal(Layer(function), Layer(function))
    with pytest.raises(TypeError, match=r"actual\['f'\]\[0\] is an object; expected an array, a container of arrays"):
        assert_bits_equal({"f": [object()]}, {"f": [object()]})
    with pytest.raises(TypeError, match=r"expected\[1\] has dtype complex128; expected bool, an integer"):
        assert_bits_equal([0, ONES], [0, np.zeros(2, complex)])


def test_the_failure_carries_the_records_and_survives_pickling():
    with pytest.raises(BitsDiffer) as error:
        assert_bits_equal({"n": 1, "x": np.int8(1)}, {"n": 2, "x": np.int8(3)}, context="here")
    again = pickle.loads(pickle.dumps(error.value))
    assert (type(again), str(again)) == (TreesDiffer, str(error.value))
    assert [place.path for place in again.tree.leaves] == ["['n']", "['x']"]
    assert (again.difference.actual, again.difference.expected) == (1, 3)
    with pytest.raises(BitsDiffer) as error:
        assert_bits_equal(np.int8(1), np.int8(3), context="here")
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.difference) == (str(error.value), error.value.difference)
