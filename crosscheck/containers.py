"""Containers that may be in a tree, and their parts: for `crosscheck.trees`.

A part is known by what comes after its container's path, as `[0]` or `.weight`; of a mapping by its key.
"""

import dataclasses
import sys
import types
from collections import Counter
from collections.abc import Iterable, Mapping
from inspect import getattr_static
from itertools import count
from typing import Any, NamedTuple

from crosscheck.arrays import a_kind, is_array

__all__ = ["PLAIN", "Container", "Key", "is_dataclass", "is_tree", "kind_of", "opened", "texts_of"]

PLAIN = (type(None), bool, int, float, str)


class Key(NamedTuple):
    """A key of a mapping. Two are one where type and value are: 1 is neither True nor 1.0."""

    kind: type
    key: Any


class Container(NamedTuple):
    """A container that has been looked into.

    Arguments:
        parts: what it holds.
        static: what else it is, to be compared by `==`: of JAX's own pytrees.
    """

    parts: dict[str | Key, Any]
    static: Any = None


def is_tree(x: Any) -> bool:
    """Whether x is a container. JAX is asked only where it is imported."""
    if is_array(x) or isinstance(x, PLAIN):
        return False
    if isinstance(x, list | tuple | Mapping) or is_dataclass(x):
        return True
    return not _tree_util().all_leaves([x]) if "jax" in sys.modules else False


def is_dataclass(x: Any) -> bool:
    return dataclasses.is_dataclass(x) and not isinstance(x, type)


def _tree_util() -> Any:
    return sys.modules["jax"].tree_util


def kind_of(x: Any) -> type:
    """What has to be the same on both sides."""
    return Mapping if isinstance(x, Mapping) and not is_dataclass(x) else type(x)


def opened(x: Any, name: str) -> Container:
    """The parts of a container that the errors call `name`."""
    if is_dataclass(x):
        return Container(_fields(x, name))
    if isinstance(x, Mapping):
        return Container(_items(x, name))
    if isinstance(x, list | tuple):
        names = getattr(x, "_fields", ())
        named = isinstance(x, tuple) and isinstance(names, tuple) and len(names) == len(x)
        return Container({f".{names[i]}" if named else f"[{i}]": part for i, part in enumerate(x)})
    return _pytree(x, name)


def _fields(x: Any, name: str) -> dict[str | Key, Any]:
    """The fields of a dataclass that are set."""
    parts: dict[str | Key, Any] = {}
    for field in dataclasses.fields(x):
        try:
            parts[f".{field.name}"] = getattr(x, field.name)
        except AttributeError as error:
            slot = getattr_static(type(x), field.name, None)
            if slot is not None and not isinstance(slot, types.MemberDescriptorType):  # a property, which has failed
                raise ValueError(
                    f"{name}.{field.name} cannot be read, {error}; expected a field that is set or unset: compare the "
                    "other fields"
                ) from error
    return parts


def _items(x: Mapping[Any, Any], name: str) -> dict[str | Key, Any]:
    parts: dict[str | Key, Any] = {}
    for key, value in x.items():
        try:
            parts[Key(type(key), key)] = value
        except TypeError as error:  # only a mapping that is no dict can have such a key
            raise TypeError(f"{name} has a key that is {a_kind(key)}, {error}; expected keys with a hash") from error
    return parts


def _pytree(x: Any, name: str) -> Container:
    """What JAX finds in x, one level deep, also where x is among its own parts."""
    tree_util, asked = _tree_util(), count()

    def is_part(_: Any) -> bool:
        return next(asked) > 0  # the first to be asked of is x

    try:
        found, static = tree_util.tree_flatten_with_path(x, is_leaf=is_part)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # of the class's own flattening
        raise ValueError(
            f"{name} is {a_kind(x)} that JAX cannot flatten, {type(error).__name__}: {error}; expected a pytree whose "
            "parts are all set"
        ) from error
    parts: dict[str | Key, Any] = {tree_util.keystr(path): part for path, part in found}
    if len(parts) < len(found):  # x gives some of its parts one path
        parts = {f"[<part {i}>]": part for i, (_, part) in enumerate(found)}
    return Container(parts, static)


def texts_of(parts: Iterable[str | Key]) -> dict[str | Key, str]:
    """What comes after the path for each part, of two containers of a kind; keys that read alike are numbered."""
    texts = {part: part if isinstance(part, str) else f"[{part.key!r}]" for part in parts}
    total, seen = Counter(texts.values()), Counter[str]()
    for part, text in texts.items():
        if total[text] > 1 and isinstance(part, Key):
            seen[text] += 1
            texts[part] = f"[{part.key!r} ({part.kind.__name__}, {seen[text]} of {total[text]})]"
    return texts
