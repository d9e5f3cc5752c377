"""Whether a function leaves the arguments that it is called with as they are.

One that does not may still treat each row alone, but its calls cannot be compared: each begins where another ended.
"""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.arrays import is_array
from crosscheck.bits import Difference, compare, digest
from crosscheck.trees import is_tree, leaves_of

__all__ = ["ArgumentChanged", "Kept", "check_copies", "versions"]

Array = NDArray[Any]


class ArgumentChanged(AssertionError):
    """Raised by `assert_batch_invariant` for a function that writes into its arguments.

    Arguments:
        argument: its name.
        difference: of the argument after the call (actual) from before (expected); None where it is not known.
        same: whether its bits are the same nevertheless.
    """

    def __init__(
        self, argument: str, difference: Difference | None = None, same: bool = False, context: str = ""
    ) -> None:
        self.argument, self.difference, self.same, self.context = argument, difference, same, context
        super().__init__(f"{context}: {self._text()}" if context else self._text())

    def _text(self) -> str:
        what = "writes into" if self.same else "changes"
        how = ", in this call with the bits that it has" if self.same else ""
        if self.difference is not None:
            how = f": after the call (actual) and before (expected), {self.difference.describe()}"
        return f"the function {what} its argument {self.argument}{how}; expected arguments left alone: work on a copy"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.argument, self.difference, self.same, self.context)


# Copies ------------------------------------------------------------------------------------------------
def versions(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Of each torch tensor how often torch has written into it."""
    return {name: x._version for name, x in arguments.items() if _is_tensor(x) and not x.is_inference()}


def _is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def check_copies(arguments: Mapping[str, Any], copied: Mapping[str, Array], before: Mapping[str, int]) -> None:
    """Refuse a call that has written into its arguments.

    Arguments:
        arguments: what the function was called with.
        copied: of those that were made for this call, what they were made from.
        before: the `versions` of the arguments before the call.

    Raises:
        ArgumentChanged: an argument has other bits, or torch has written into it.
    """
    for name, array in copied.items():
        x = arguments[name]
        if isinstance(x, np.ndarray) or _is_tensor(x):  # nothing can write into a JAX array
            found = compare(x, array)
            if found is not None:
                raise ArgumentChanged(name, found)
    for name, version in versions(arguments).items():
        if version != before.get(name, version):
            raise ArgumentChanged(name, same=name in copied)


# Arguments that every call gets ------------------------------------------------------------------------
class Kept:
    """Arguments that are handed on as they are, and digests of the arrays among them as they were at first."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.digests = {name: _digests(name, x) for name, x in given.items()}

    def check(self) -> None:
        """
        Raises:
            ArgumentChanged: an array has other bits than at first, or was deleted.
        """
        for name, before in self.digests.items():
            after = _digests(name, self.given[name])
            if after != before:
                raise ArgumentChanged(next(path for path in {**before, **after} if before.get(path) != after.get(path)))


def _digests(name: str, x: Any) -> dict[str, str | None]:
    """By path, of an array or of a tree of arrays; of anything else nothing is looked at."""
    if not is_array(x) and not is_tree(x):
        return {}
    try:
        return {f"{name}{path}": _digest(leaf) for path, leaf in leaves_of(x, name) if is_array(leaf)}
    except (TypeError, ValueError):  # a tree that has no list of leaves may be passed on all the same
        return {}


def _digest(x: Any) -> str | None:
    try:
        return digest(x)
    except TypeError:  # it has no bits that can be read, and may be passed on all the same
        return None
