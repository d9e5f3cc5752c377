"""Trees of arrays, leaf by leaf: dicts, lists, tuples, named tuples, dataclasses, and JAX's own pytrees.

Two trees are equal when they have the same structure and equal leaves. Arrays are compared as `crosscheck.bits.compare`
does; None, bool, int, float and str where the type is the same and `==` holds, floats by their bits. Mappings are
compared by key, whatever their class and order; any other container has to be of the same class on both sides.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosscheck.bits import BitsDiffer, Difference, as_numpy, compare, is_array

__all__ = ["Place", "TreeDifference", "TreesDiffer", "compare_trees", "is_tree"]

SHOWN = 5  # places that a text names
PLAIN = (type(None), bool, int, float, str)


# Differences -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Place:
    """Where two trees differ, and how.

    Arguments:
        path: from the root, as in `['head'].weight[0]`; "" is the root.
        text: what differs there, in a sentence without its subject.
        difference: the record, where both sides have an array or a float.
    """

    path: str
    text: str
    difference: Difference | None = None

    def describe(self) -> str:
        return f"{self.path or 'the root'}: {self.text}"


@dataclass(frozen=True)
class TreeDifference:
    """How two trees differ.

    Arguments:
        structure: places where one tree has something else than the other: another container, key or length.
        leaves: leaves that differ.
        compared: leaves that both have at the same place.
    """

    structure: tuple[Place, ...]
    leaves: tuple[Place, ...]
    compared: int

    def describe(self) -> str:
        """A sentence on how many places differ, and the first of them, one a line."""
        parts = [f"{len(self.leaves)} of {self.compared} leaves differ"] if self.leaves else []
        if self.structure:
            count = len(self.structure)
            parts.insert(0, f"the structure differs in {count} {'place' if count == 1 else 'places'}")
        places = [*self.structure, *self.leaves]
        lines = [f"  {place.describe()}" for place in places[:SHOWN]]
        if len(places) > SHOWN:
            lines.append(f"  and {len(places) - SHOWN} more")
        return "\n".join([f"{' and '.join(parts)}:", *lines])


class TreesDiffer(BitsDiffer):
    """Raised by `assert_bits_equal` for trees.

    Arguments:
        tree: the record; `difference` is that of the first leaf that has one.
    """

    def __init__(self, tree: TreeDifference, context: str = "") -> None:
        records = [place.difference for place in tree.leaves if place.difference is not None]
        super().__init__(records[0] if records else None, context, tree.describe())
        self.tree = tree

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tree, self.context)


# Comparison --------------------------------------------------------------------------------------------
def compare_trees(actual: Any, expected: Any) -> TreeDifference | None:
    """None where structure and leaves agree, else the record of the difference.

    Raises:
        TypeError: a leaf that is neither an array that `as_numpy` reads nor None, bool, int, float or str; one and
            the same object on both sides is equal, whatever it is.

    Example:
        >>> found = compare_trees({"w": np.float32([1, 0]), "n": 3}, {"w": np.float32([1, -0.0]), "n": 3})
        >>> found.leaves[0].path, found.compared
        ("['w']", 2)
    """
    comparison = _Comparison()
    comparison.visit("", actual, expected)
    if not comparison.structure and not comparison.leaves:
        return None
    return TreeDifference(tuple(comparison.structure), tuple(comparison.leaves), comparison.compared)


class _Comparison:
    """What has been found so far."""

    def __init__(self) -> None:
        self.structure: list[Place] = []
        self.leaves: list[Place] = []
        self.compared = 0

    def visit(self, path: str, actual: Any, expected: Any) -> None:
        if not is_tree(actual) and not is_tree(expected):
            self.compared += 1
            self.leaves += _leaf(path, actual, expected)
        elif _kind(actual) is not _kind(expected):
            self.structure.append(Place(path, _one_for_another(actual, expected)))
        else:
            self._visit_children(path, actual, expected)

    def _visit_children(self, path: str, actual: Any, expected: Any) -> None:
        (got, got_static), (want, want_static) = _children(actual), _children(expected)
        if got_static != want_static:
            self.structure.append(Place(path, f"its static part is {got_static}; expected {want_static}"))
        for part in dict.fromkeys([*got, *want]):
            if part not in got:
                self.structure.append(Place(path + part, f"it is missing; expected {_described(want[part])}"))
            elif part not in want:
                self.structure.append(Place(path + part, f"it is {_described(got[part])}; expected nothing here"))
            else:
                self.visit(path + part, got[part], want[part])


def _leaf(path: str, actual: Any, expected: Any) -> Iterator[Place]:
    """The place, where two leaves differ."""
    if is_array(actual) and is_array(expected):
        found = compare(as_numpy(actual, f"actual{path}"), as_numpy(expected, f"expected{path}"))
        if found is not None:
            yield Place(path, found.describe(), found)
    elif type(actual) is not type(expected):
        for leaf, side in ((actual, "actual"), (expected, "expected")):
            _check_leaf(leaf, f"{side}{path}")
        yield Place(path, _one_for_another(actual, expected))
    elif type(actual) is float:
        found = compare(np.float64(actual), np.float64(expected))
        if found is not None:
            bits = found.actual_bits, found.expected_bits
            yield Place(path, f"it is {actual!r} ({bits[0]}); expected {expected!r} ({bits[1]})", found)
    elif actual is not expected:
        _check_leaf(actual, f"actual{path}")
        if actual != expected:
            yield Place(path, f"it is {actual!r}; expected {expected!r}")


def _check_leaf(leaf: Any, name: str) -> None:
    if not is_array(leaf) and type(leaf) not in PLAIN:
        raise TypeError(
            f"{name} is a {type(leaf).__name__}; expected an array, a container of arrays, or None, bool, int, float "
            "or str: compare what it holds"
        )


# Containers --------------------------------------------------------------------------------------------
def is_tree(x: Any) -> bool:
    """Whether x is a container. JAX is asked only where it is imported."""
    if is_array(x) or isinstance(x, PLAIN):
        return False
    if isinstance(x, list | tuple | Mapping) or _is_dataclass(x):
        return True
    return not _tree_util().all_leaves([x]) if "jax" in sys.modules else False


def _is_dataclass(x: Any) -> bool:
    return dataclasses.is_dataclass(x) and not isinstance(x, type)


def _tree_util() -> Any:
    return sys.modules["jax"].tree_util


def _kind(x: Any) -> type:
    """What has to be the same on both sides."""
    return Mapping if isinstance(x, Mapping) and not _is_dataclass(x) else type(x)


def _children(x: Any) -> tuple[dict[str, Any], Any]:
    """The parts of a container by what comes after its path, and what else it holds, to be compared by `==`."""
    if _is_dataclass(x):
        return {f".{field.name}": getattr(x, field.name) for field in dataclasses.fields(x)}, None
    if isinstance(x, Mapping):
        parts = {f"[{key!r}]": value for key, value in x.items()}
        if len(parts) < len(x):
            raise TypeError(f"a {type(x).__name__} has keys that read alike, {list(parts)}; expected keys of their own")
        return parts, None
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return {f".{name}": value for name, value in zip(x._fields, x, strict=True)}, None
    if isinstance(x, list | tuple):
        return {f"[{i}]": value for i, value in enumerate(x)}, None
    tree_util = _tree_util()
    parts, static = tree_util.tree_flatten_with_path(x, is_leaf=lambda part: part is not x)
    return {tree_util.keystr(path): part for path, part in parts}, static


def _one_for_another(actual: Any, expected: Any) -> str:
    got, want = _described(actual), _described(expected)
    if got == want:  # two classes of one name
        got, want = (f"{type(x).__module__}.{type(x).__qualname__}" for x in (actual, expected))
    return f"it is {got}; expected {want}"


def _described(x: Any) -> str:
    if is_array(x):
        return f"an array, {str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
    if x is None:
        return "None"
    if type(x) in PLAIN:
        return f"{x!r}, {type(x).__name__}"
    name = type(x).__name__
    named = f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
    return f"{named} of {len(x)}" if isinstance(x, list | tuple | Mapping) and not _is_dataclass(x) else named
