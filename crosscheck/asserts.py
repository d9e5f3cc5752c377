"""Assertions for tests: batch invariance of a function, and a function's or a program's results against a golden.

`assert_bits_equal` is in `crosscheck.bits`. No framework is imported that the caller has not imported or named.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crosscheck.arguments import ArgumentChanged
from crosscheck.arrays import a_kind
from crosscheck.batch_variant import BatchVariant, find_variance
from crosscheck.golden_check import GoldenDiffers, differences_from_golden
from crosscheck.subjects import subject_of

__all__ = ["ArgumentChanged", "BatchVariant", "GoldenDiffers", "assert_batch_invariant", "assert_matches_golden"]


def assert_batch_invariant(
    function: Callable[..., Any],
    inputs: Any,
    transforms: str | Iterable[str] | None = None,
    *,
    rows: str | Sequence[str] | None = None,
    seed: int = 0,
    context: str = "",
) -> None:
    """Raise `BatchVariant` where a row of the result has other bits in another company, order, chunk or storage.

    Arguments:
        function: called with arrays of the framework, device and dtype of `inputs`, by name or in order, as they are
            given, and leaves them as they are; returns an array, or a tuple, a dict or another tree of arrays, of which
            each is compared.
        inputs: a dict of arguments by name, a tuple or list of them in order, or one array. Where they are hidden
            [..., K], weight [V, K] and perhaps bias [V], or token_ids [...] and weight [V, H], by the names in the dict
            or in the signature of `function`, it is taken for an LM head or an embedding, and so with the arguments of
            `selected_logprob` and `linear_logprob`: the rows are those of all leading axes, and the vocab is
            transformed as well. Otherwise the first argument is the batch, with its rows along axis 0 of it and of
            the result, and other arguments may be anything and are passed on as they are.
        transforms: columns ("population", "position", "neighbours", "padding", "chunking", "layout", "repeat"), or
            transforms by name ("rows reversed"); None for all that apply. JAX arrays have no strides, so of "layout"
            there only "one row expanded" applies.
        rows: the name of the argument that is the batch, or of several that are one together; the vocab is left alone.
        seed: of the orders and the rows that are drawn.
        context: opens the message.

    Raises:
        BatchVariant: the text names the transform, the fewest first rows that show it, and the first difference.
        ArgumentChanged: the function writes into its arguments; the text names the first, and how it has changed.
        TypeError: a function, inputs or a result of another type.
        ValueError: an unknown transform, arguments or a result that cannot be a batch, or nothing to compare.
        Whatever the function raises, with a note that names the transform.

    Example:
        >>> import numpy as np
        >>> x = np.float32([[1, 2], [3, 4]])
        >>> assert_batch_invariant(lambda x: x * 2, x)
        >>> assert_batch_invariant(lambda x: x - x.max(), x, ["population"])
        Traceback (most recent call last):
        crosscheck.batch_variant.BatchVariant: the result depends on the batch: 'first row alone' (population) ...
    """
    __tracebackhide__ = True
    found = find_variance(subject_of(function, inputs, rows), transforms, seed, context)
    if found is not None:
        raise found


def assert_matches_golden(
    function_or_results: Callable[..., Any] | Mapping[str, Any],
    golden_dir: str | Path,
    *,
    cases: str | Iterable[str] | None = None,
    framework: str = "numpy",
    device: str = "cpu",
    context: str = "",
) -> None:
    """Raise `GoldenDiffers` where a result has other bits than the golden; docs/goldens.md has what a golden is.

    Arguments:
        function_or_results: called once for each case with hidden states or token ids, and the weight, in this order;
            by name `bias`, and `digits` where the case has them and the signature takes them. Or the results, a dict
            {case id: array} with one for each chosen case.
        golden_dir: a folder that `crosscheck golden write` or `crosscheck record` made.
        cases: a glob or a list of ids; None for all. Gradients in the golden are left out.
        framework: "numpy", "torch" or "jax", of the arrays that the function is called with. JAX without 64-bit mode
            would narrow ids of 64 bits, so they stay NumPy arrays there.
        device: of the same: "cpu" or "cuda".
        context: opens the message.

    Raises:
        GoldenDiffers: the text names the first cases that differ, with the first difference of each; of an array that
            the golden has as digests, the rows that differ.
        GoldenError: a golden that cannot be read, or nothing to compare.
        ValueError: results that are not those of the chosen cases, an unknown framework.
        TypeError: a case with a bias, and a function that takes none; arguments or a result of another type.
        Whatever the function raises, with a note that names the case.
    """
    __tracebackhide__ = True
    if not isinstance(function_or_results, Mapping) and not callable(function_or_results):
        raise TypeError(
            f"function_or_results is {a_kind(function_or_results)}; expected a function with an operator's arguments, "
            "or a dict {case id: array}"
        )
    if cases is not None and not isinstance(cases, Iterable):
        raise TypeError(f"cases is {a_kind(cases)}; expected a glob, a list of ids, or None for all")
    found, compared = differences_from_golden(function_or_results, golden_dir, cases, framework, device)
    if found:
        raise GoldenDiffers(found, compared, str(golden_dir), context)
