"""A function that writes into its arguments is told so, and inputs of another kind are refused in words."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from crosscheck import ArgumentChanged, assert_batch_invariant, assert_bits_equal

X = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)
ALONE = "; expected arguments left alone: work on a copy"


def changed(function, inputs, *transforms, **options) -> ArgumentChanged:
    with pytest.raises(ArgumentChanged) as error:
        assert_batch_invariant(function, inputs, transforms or None, **options)
    return error.value


# Arguments that are written into --------------------------------------------------------------------------
def doubled_in_place(x):
    x *= 2
    return x


@pytest.mark.parametrize("array", [X, torch.from_numpy(X), torch.from_numpy(X).bfloat16()], ids=["np", "torch", "bf16"])
def test_a_function_that_works_in_place_is_told_so(array):
    before = array.copy() if isinstance(array, np.ndarray) else array.clone()
    error = changed(doubled_in_place, array)
    assert str(error).startswith(
        "the function changes its argument x: after the call (actual) and before (expected), 12 of 12 elements of "
    )
    assert str(error).endswith(ALONE)
    assert (error.argument, error.difference.index) == ("x", (0, 0))
    assert_bits_equal(array, before)


def test_the_message_says_all_of_it_and_survives_pickling():
    def zeroed(hidden, scale):
        result = hidden * scale
        hidden[1, 2] = 0
        return result

    error = changed(zeroed, {"hidden": X, "scale": 2}, context="my norm")
    assert str(error) == (
        "my norm: the function changes its argument hidden: after the call (actual) and before (expected), 1 of 12 "
        "elements of float32 (4, 3) differ; first at [1, 2]: actual 0.0 (0x00000000), expected 6.0 (0x40C00000), "
        f"1086324736 ULP apart{ALONE}"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.argument, again.difference) == (str(error), "hidden", error.difference)


def test_a_write_of_the_bits_that_are_there_is_said_in_torch_which_counts_writes():
    """Torch refuses to write into one row that is expanded, whatever the bits."""
    assert str(changed(lambda x: x.clamp_(-1e6, 1e6), torch.from_numpy(X))) == (
        f"the function writes into its argument x, in this call with the bits that it has{ALONE}"
    )


def test_a_write_of_the_bits_that_are_there_is_no_matter_in_numpy():
    def clipped(x):
        return np.clip(x, -1e6, 1e6, out=x)

    assert_batch_invariant(clipped, X, ["position", "layout"])
    assert changed(clipped, X * np.float32(1e9)).difference is not None


@pytest.mark.parametrize("array", [X, torch.from_numpy(X)], ids=["numpy", "torch"])
def test_one_row_expanded_that_is_written_into_is_no_raw_error(array):
    """It writes only where all rows are equal, as in no other call."""

    def careful(x):
        if len(x) > 1 and (x[0] == x[1]).all():
            x[:] = 7
        return x * 2

    error = changed(careful, array, "one row expanded")
    assert (error.argument, error.difference.actual) == ("x", 7)


def test_an_error_of_one_row_expanded_that_is_no_write_stays_what_it_is():
    def viewed(x):
        return x.view(-1).reshape(x.shape) * 2

    with pytest.raises(RuntimeError, match="view size is not compatible") as error:
        assert_batch_invariant(viewed, torch.from_numpy(X), "one row expanded")
    assert error.value.__notes__ == ["crosscheck: raised under the transform 'one row expanded' (layout)"]

    def refuses(x):
        if (x[0] == x[1]).all():
            raise RuntimeError("equal rows")
        return x

    with pytest.raises(RuntimeError, match="equal rows"):
        assert_batch_invariant(refuses, torch.from_numpy(X), "one row expanded")


def head(hidden, weight):
    return torch.stack([(row * weight).sum(-1) for row in hidden])


def test_a_weight_that_is_written_into_is_named():
    def renormalized(hidden, weight):
        weight /= 2
        return head(hidden, weight)

    assert str(changed(renormalized, (torch.from_numpy(X), torch.from_numpy(WEIGHT.copy())))) == (
        f"the function changes its argument weight{ALONE}"
    )
    unseen = changed(lambda hidden, weight: (weight.data.mul_(2), head(hidden, weight))[1],
                     (torch.from_numpy(X), torch.from_numpy(WEIGHT.copy())))  # fmt: skip
    assert (unseen.argument, str(unseen)) == ("weight", f"the function changes its argument weight{ALONE}")


def test_arrays_that_are_passed_on_and_written_into_are_named_by_their_path():
    def counts(x, cache):
        cache["seen"][0] += 1
        return x + cache["seen"][0][0]

    cache = {"n": 1, "seen": [np.zeros(2, np.float32)]}
    assert str(changed(counts, (X, cache))) == f"the function changes its argument cache['seen'][0]{ALONE}"


def test_one_that_writes_in_a_later_call_alone_is_told_so_and_not_batch_variant():
    total = np.zeros(1, np.float32)

    def late(x, total):
        total += len(x) == 1
        return x + total

    assert changed(late, (X, total)).argument == "total"


def test_a_donated_weight_is_a_change_of_it():
    donating = jax.jit(lambda x, table: (x * 2, table + 1), donate_argnums=1)
    with pytest.raises(ArgumentChanged, match=r"^the function changes its argument table; expected"):
        assert_batch_invariant(lambda x, table: donating(x, table)[0], (jnp.asarray(X), jnp.ones(3)))


def test_arguments_that_cannot_be_read_or_end_are_passed_on():
    sparse, endless = torch.eye(3).to_sparse(), []
    endless.append(endless)
    assert_batch_invariant(lambda x, *rest: x, (torch.from_numpy(X), sparse, endless, jax.random.key(0), {1}))
    assert_batch_invariant(lambda hidden, weight: hidden * 2, (torch.from_numpy(X), sparse), ["position"])
    with torch.inference_mode():
        assert_batch_invariant(lambda x: x * 2, torch.from_numpy(X), ["position"])


# Inputs ---------------------------------------------------------------------------------------------------
INPUTS = "expected a dict of arguments by name, a tuple of them in order, or one array"
NUMPY = "expected a NumPy array, a torch tensor or a JAX array"


@pytest.mark.parametrize(
    ("function", "inputs", "options", "text"),
    [
        (abs, None, {}, f"inputs is None; {INPUTS}"),
        (abs, 3, {}, f"inputs is an int; {INPUTS}"),
        (abs, "x", {}, f"inputs is a str; {INPUTS}"),
        (abs, (x for x in [X]), {}, f"inputs is a generator; {INPUTS}"),
        (abs, {X.tobytes()}, {}, f"inputs is a set; {INPUTS}"),
        (abs, {0: X}, {}, "inputs has the key 0; expected names of arguments: in order they are a tuple"),
        (abs, [[1.0, 2.0]], {}, f"x is a list; {NUMPY}"),
        (lambda *rest: rest[0], (1, X), {}, f"argument 0 is an int; {NUMPY}"),
        (lambda x, y: x, (X, None), {"rows": ["x", "y"]}, f"y is None; {NUMPY}"),
        (X, abs, {}, "function is an array; expected a function of the inputs, which come behind it"),
        ("abs", X, {}, "function is a str; expected a function of the inputs"),
        (None, X, {}, "function is None; expected a function of the inputs"),
        (abs, X, {"rows": 1}, "rows is an int; expected the name of an argument, or several, among ['x']"),
        (abs, X, {"transforms": 1}, "transforms is an int; expected a column or a transform by name, or several"),
        (abs, X.astype(complex), {}, "x has dtype complex128; expected bool"),
    ],
    ids=lambda x: x[:22] if isinstance(x, str) else "",
)
def test_inputs_of_another_type_are_refused(function, inputs, options, text):
    with pytest.raises(TypeError) as error:
        assert_batch_invariant(function, inputs, **options)
    assert str(error.value).startswith(text)


@pytest.mark.parametrize("inputs", [(), [], {}], ids=repr)
def test_no_inputs_are_refused(inputs):
    with pytest.raises(
        ValueError, match=r"^inputs are empty; expected the arguments of the function, one of them the b"
    ):
        assert_batch_invariant(abs, inputs)


def test_no_transforms_are_refused():
    with pytest.raises(ValueError, match=r"^transforms are empty; expected a column or a transform by name, or None"):
        assert_batch_invariant(abs, X, [])
    with pytest.raises(ValueError, match=r"^there is no transform 1 of these inputs; expected a column, population"):
        assert_batch_invariant(abs, X, [1, "layout"])


def test_a_list_of_arguments_is_read_as_a_tuple_is():
    assert_batch_invariant(lambda x, scale: x * scale, [X, 2], ["position"])


def test_what_the_call_itself_raises_is_said_to_be_it():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'") as error:
        assert_batch_invariant(lambda x, y: x, X)
    assert error.value.__notes__ == ["crosscheck: raised in the call itself, before any transform"]
