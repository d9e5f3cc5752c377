"""Every array that a function returns is compared, one that differs is named, any other result is refused in words."""

import pickle
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from crosscheck import BatchVariant, assert_batch_invariant

X = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)
NUMPY = "expected a NumPy array, a torch tensor or a JAX array"


def variant(function, inputs, *transforms, **options) -> BatchVariant:
    with pytest.raises(BatchVariant) as error:
        assert_batch_invariant(function, inputs, transforms or None, **options)
    return error.value


@dataclass
class Output:
    logits: Any
    states: Any = None


@pytest.mark.parametrize("wrap", [
    lambda *x: x, lambda *x: list(x), lambda *x: {"a": x[0], "b": x[1:]}, lambda *x: Output(x[0], x[1:]),
    lambda *x: (x[0], None, {"rest": x[1]}),
], ids=["tuple", "list", "dict", "dataclass", "nested"])  # fmt: skip
def test_each_array_of_a_result_is_compared(wrap):
    arrays = [X, torch.from_numpy(X), jnp.asarray(X)]
    for array in arrays:
        assert_batch_invariant(lambda x: wrap(x * 2, x[:, 0]), array, ["population", "neighbours"])
    assert_batch_invariant(lambda x: wrap(x * 2, x[:, 0]), X)
    assert variant(lambda x: wrap(x * 2, x[:, 0] + len(x)), X).transform == "first row alone"


def test_the_array_that_differs_is_named_by_its_path():
    found = variant(lambda x: {"out": x, "norms": (x - x.max(), x)}, np.float32([[1, 2], [3, 5]]), context="mine")
    assert found.path == "['norms'][0]"
    assert str(found).startswith(
        "mine: the result['norms'][0] depends on the batch: 'first row alone' (population) changes it, from 2 rows on; "
    )
    again = pickle.loads(pickle.dumps(found))
    assert (str(again), again.path) == (str(found), found.path)


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (
            lambda x: None,
            TypeError,
            "the result is None; expected an array, or a tuple or dict of arrays: return what to",
        ),
        (lambda x: 1.5, TypeError, f"the result is a float; {NUMPY}"),
        (lambda x: "x", TypeError, f"the result is a str; {NUMPY}"),
        (lambda x: [1.0, 2.0], TypeError, f"the result[0] is a float; {NUMPY}"),
        (lambda x: (x, object()), TypeError, f"the result[1] is an object; {NUMPY}"),
        (lambda x: (x, x + 1j), TypeError, "the result[1] has dtype complex64; expected bool"),
        (lambda x: (y for y in x), TypeError, f"the result is a generator; {NUMPY}"),
        (lambda x: torch.from_numpy(x).to_sparse(), TypeError, "the result is a tensor of layout sparse_coo; expected"),
        (lambda x: (), ValueError, "the result is a tuple without an array; expected one to compare"),
        (lambda x: {"a": None}, ValueError, "the result is a dict without an array; expected one to compare"),
        (lambda x: (x, x.sum()), ValueError, "the result[1] has shape () for 4 rows; expected [4, ...]: name the"),
        (lambda x: {"t": x.T}, ValueError, "the result['t'] has shape (3, 4) for 4 rows; expected [4, ...]: name the"),
    ],
    ids=lambda x: x[:34] if isinstance(x, str) else "",
)
def test_a_result_that_cannot_be_compared_is_refused(function, kind, text):
    with pytest.raises(kind) as error:
        assert_batch_invariant(function, X)
    assert str(error.value).startswith(text)


def test_other_arrays_in_a_transformed_call_are_refused():
    with pytest.raises(
        ValueError, match=r"^the arrays are the result\[0\]; expected the result\[0\], the result\[1\]"
    ) as e:
        assert_batch_invariant(lambda x: (x, x) if len(x) > 1 else (x, None), X)
    assert e.value.__notes__ == ["crosscheck: raised under the transform 'first row alone' (population)"]


def test_an_operator_of_the_contract_returns_one_array():
    def with_states(hidden, weight):
        return hidden @ weight.T, hidden

    with pytest.raises(ValueError, match=r"^the result is 2 arrays; expected one, as an operator .*, rows='hidden'$"):
        assert_batch_invariant(with_states, (X, WEIGHT))

    def by_row(hidden, weight):
        return np.stack([(row * weight).sum(-1) for row in hidden]), hidden

    assert_batch_invariant(by_row, (X, WEIGHT), rows="hidden")


def test_results_in_one_buffer_are_kept_as_they_were():
    buffer = np.zeros((8, 3), ml_dtypes.bfloat16)

    def buffered(x):
        buffer[: len(x)] = x * 2
        return buffer[: len(x)], (buffer[: len(x), 0],)

    assert_batch_invariant(buffered, X.astype(ml_dtypes.bfloat16), ["position", "chunking"])
