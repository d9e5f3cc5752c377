"""Trees of arrays, leaf by leaf: dicts, lists, tuples, named tuples, dataclasses, and JAX's own pytrees.

Two trees are equal when they have the same structure and equal leaves. Arrays are compared as `crosscheck.bits.compare`
does; None, bool, int, float and str where the type is the same and `==` holds, floats by their bits. Mappings are
compared by key, whatever their class and order, and keys by type and `==`; any other container has to be of the same
class on both sides. `crosscheck.containers` has what is a container, and its parts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosscheck.arrays import a_kind, as_numpy, described_array, is_array
from crosscheck.bits import BitsDiffer, Difference, compare
from crosscheck.containers import PLAIN, Container, is_dataclass, is_tree, kind_of, opened, texts_of

__all__ = ["Place", "TreeDifference", "TreesDiffer", "compare_trees", "is_tree", "leaves_of"]

SHOWN = 5  # places that a text names
END = 60  # characters of each end of a path that a text has
DEEPEST = 10_000  # levels
_NOTHING = object()  # where one side has no such part


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
        return f"{shortened(self.path) or 'the root'}: {self.text}"


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
            the same object on both sides is equal, whatever it is, unless it is an array.
        ValueError: a tree that holds itself, or is more than DEEPEST levels deep.

    Example:
        >>> found = compare_trees({"w": np.float32([1, 0]), "n": 3}, {"w": np.float32([1, -0.0]), "n": 3})
        >>> found.leaves[0].path, found.compared
        ("['w']", 2)
    """
    structure: list[Place] = []
    leaves: list[Place] = []
    compared = 0
    for path, got, want, text in _walk(actual, expected, "actual", "expected"):
        if text:
            structure.append(Place(path, text))
        else:
            compared += 1
            leaves += _leaf(path, got, want)
    return TreeDifference(tuple(structure), tuple(leaves), compared) if structure or leaves else None


def leaves_of(x: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The leaves of a tree that the errors call `name`, with their paths.

    Example:
        >>> list(leaves_of({"a": [1, None], "b": "x"}, "the result"))
        [("['a'][0]", 1), ("['a'][1]", None), ("['b']", 'x')]
    """
    for path, leaf, _, _ in _walk(x, x, name, name):
        yield path, leaf


class _Open:
    """The containers that a walk is in, from the root down. A loop and no recursion, so that depth is no limit."""

    def __init__(self, names: tuple[str, str]) -> None:
        self.names = names
        self.parts: list[str] = []
        self.pairs: list[tuple[Any, Any]] = []
        self.depth: tuple[dict[int, int], dict[int, int]] = {}, {}

    def shown(self, levels: int = -1) -> str:
        """The path of a container `levels` below the root, or of the last, shortened without all of it being joined."""
        parts = self.parts if levels < 0 else self.parts[: levels + 1]
        return shortened("".join(parts if len(parts) <= 2 * END else [*parts[: END + 1], *parts[-END:]]))

    def enter(self, *pair: Any) -> None:
        for name, x, depth in zip(self.names, pair, self.depth, strict=True):
            if id(x) in depth:
                raise ValueError(
                    f"{name}{self.shown()} is {name}{self.shown(depth[id(x)])} again, {a_kind(x)} "
                    "that holds itself; expected a tree that ends: leave that part out"
                )
            if len(depth) == DEEPEST:
                raise ValueError(
                    f"{name}{self.shown()} is {DEEPEST} levels deep, and goes on; expected a tree that ends: "
                    "compare its parts"
                )
            depth[id(x)] = len(self.pairs)
        self.pairs.append(pair)  # which keeps them, and so their ids

    def leave(self) -> None:
        for x, depth in zip(self.pairs.pop(), self.depth, strict=True):
            del depth[id(x)]


def _walk(actual: Any, expected: Any, *names: str) -> Iterator[tuple[str, Any, Any, str]]:
    """Pairs of leaves with their paths, and in between, with a text, places where the structure differs."""
    open_ = _Open((names[0], names[1]))
    todo = [iter([("", actual, expected)])]
    while todo:
        step = next(todo[-1], None)
        if step is None:
            todo.pop()
            if todo:
                open_.leave()
                open_.parts.pop()
            continue
        text, got, want = step
        open_.parts.append(text)
        if got is not _NOTHING and want is not _NOTHING and is_tree(got) and kind_of(got) is kind_of(want):
            open_.enter(got, want)
            pair = [opened(x, name + open_.shown()) for x, name in ((got, names[0]), (want, names[1]))]
            if got is not want and (differs := _static(open_.shown(), *pair)):
                yield "".join(open_.parts), got, want, differs
            todo.append(_parts(*pair))
        else:
            yield "".join(open_.parts), got, want, _structure(got, want)
            open_.parts.pop()


def _parts(got: Container, want: Container) -> Iterator[tuple[str, Any, Any]]:
    for part, text in texts_of([*got.parts, *want.parts]).items():
        yield text, got.parts.get(part, _NOTHING), want.parts.get(part, _NOTHING)


def _structure(got: Any, want: Any) -> str:
    """How the structure differs, where two parts cannot be opened together; "" of two leaves."""
    if got is _NOTHING:
        return f"it is missing; expected {_described(want)}"
    if want is _NOTHING:
        return f"it is {_described(got)}; expected nothing here"
    return _one_for_another(got, want) if is_tree(got) or is_tree(want) else ""


def _static(path: str, got: Container, want: Container) -> str:
    """How the static parts differ, in a sentence; "" where they are equal."""
    try:
        equal = bool(got.static == want.static)
    except (TypeError, ValueError) as error:  # such as an array, whose == is one of elements
        raise TypeError(
            f"the static part of actual{path} cannot be compared, {error}; expected one with an == of its "
            "own: compare what it holds"
        ) from error
    return "" if equal else f"its static part is {got.static}; expected {want.static}"


def _leaf(path: str, actual: Any, expected: Any) -> Iterator[Place]:
    """The place, where two leaves differ."""
    got_name, want_name = (f"{side}{shortened(path)}" for side in ("actual", "expected"))
    if is_array(actual) and is_array(expected):
        found = compare(as_numpy(actual, got_name), as_numpy(expected, want_name))
        if found is not None:
            yield Place(path, found.describe(), found)
    elif type(actual) is not type(expected):
        _check_leaf(actual, got_name)
        _check_leaf(expected, want_name)
        yield Place(path, _one_for_another(actual, expected))
    elif type(actual) is float:
        found = compare(np.float64(actual), np.float64(expected))
        if found is not None:
            bits = found.actual_bits, found.expected_bits
            yield Place(path, f"it is {actual!r} ({bits[0]}); expected {expected!r} ({bits[1]})", found)
    elif actual is not expected:
        _check_leaf(actual, got_name)
        if actual != expected:
            yield Place(path, f"it is {actual!r}; expected {expected!r}")


def _check_leaf(leaf: Any, name: str) -> None:
    if not is_array(leaf) and type(leaf) not in PLAIN:
        raise TypeError(
            f"{name} is {a_kind(leaf)}; expected an array, a container of arrays, or None, bool, int, float or str: "
            "compare what it holds"
        )


# Words -------------------------------------------------------------------------------------------------
def shortened(path: str) -> str:
    """A path for a sentence: of a long one the two ends."""
    return path if len(path) <= 2 * END else f"{path[:END]} ... {path[-END:]}"


def _one_for_another(actual: Any, expected: Any) -> str:
    got, want = _described(actual), _described(expected)
    if got == want:  # two classes of one name
        got, want = (f"{type(x).__module__}.{type(x).__qualname__}" for x in (actual, expected))
    return f"it is {got}; expected {want if got != want else 'another class of this name'}"


def _described(x: Any) -> str:
    if is_array(x):
        return described_array(x)
    if x is None:
        return "None"
    if type(x) in PLAIN:
        return f"{x!r}, {type(x).__name__}"
    return f"{a_kind(x)} of {len(x)}" if isinstance(x, list | tuple | Mapping) and not is_dataclass(x) else a_kind(x)
