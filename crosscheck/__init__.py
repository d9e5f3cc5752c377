"""A judge of bit equality between array frameworks, and the NumPy reference it judges by.

Importing this package imports neither torch nor jax.
"""

from crosscheck.bits import BitsDiffer, Difference, assert_bits_equal, compare, digest, to_bits

__all__ = ["BitsDiffer", "Difference", "assert_bits_equal", "compare", "digest", "to_bits"]
