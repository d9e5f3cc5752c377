"""A judge of bit equality between array frameworks, and the NumPy reference it judges by.

Importing this package imports neither torch nor jax, and NumPy only when a name is first used: pytest imports it in
every run, for the plugin.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crosscheck.arguments import ArgumentChanged
    from crosscheck.asserts import BatchVariant, GoldenDiffers, assert_batch_invariant, assert_matches_golden
    from crosscheck.bits import BitsDiffer, Difference, assert_bits_equal, compare, digest, to_bits
    from crosscheck.trees import TreesDiffer

__all__ = [
    "ArgumentChanged", "BatchVariant", "BitsDiffer", "Difference", "GoldenDiffers", "TreesDiffer",
    "assert_batch_invariant", "assert_bits_equal", "assert_matches_golden", "compare", "digest", "to_bits",
]  # fmt: skip

_MODULES = {
    "arguments": ("ArgumentChanged",),
    "asserts": ("BatchVariant", "GoldenDiffers", "assert_batch_invariant", "assert_matches_golden"),
    "bits": ("BitsDiffer", "Difference", "assert_bits_equal", "compare", "digest", "to_bits"),
    "trees": ("TreesDiffer",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"crosscheck.{module}"), name)
    raise AttributeError(f"module 'crosscheck' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
