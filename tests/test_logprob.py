"""Selected log-probabilities: the contract's bits in both frameworks, in every mode, from logits and from states."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from exact_inputs import examples
from frameworks import BFLOAT16, FLOATS, JAX, Framework, both
from gradients import pull_back
from hypothesis import given
from hypothesis import strategies as st
from vector_cases import array, vector_cases

import rlk_jax
import rlk_torch
from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

VECTORS = [case.values[0] for case in vector_cases("selected_logprob")]
GRADIENTS = [case for case in vector_cases("selected_logprob") if "grad_logprob" in case.values[0]]
RNG = np.random.default_rng


def upstream_of(framework: Framework, values: Any) -> Any:
    return framework.array(np.asarray(values, np.float32))


def of_logits(framework: Framework, ids: Any, logits: Any, upstream: Any, **options: Any) -> Any:
    """The gradient of logits, both the framework's."""
    function = partial(framework.package.selected_logprob, target_ids=ids, **options)
    return pull_back(framework, function, [logits], [0], upstream)[0]


# Vectors -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", vector_cases("selected_logprob"))
@both
def test_vectors_eager(framework, case):
    logprobs = framework.package.selected_logprob(framework.array(array(case["logits"])), case["target_ids"])
    assert_bits_equal(logprobs, array(case["expect"]))


@cache
def compiled_results(framework: Framework) -> list[Any]:
    every = [(framework.array(array(c["logits"])), framework.array(np.array(c["target_ids"]))) for c in VECTORS]
    function = framework.compiled(lambda every: [framework.package.selected_logprob(*both) for both in every])
    return [as_numpy(x) for x in function(every)]


@pytest.mark.parametrize("index", range(len(VECTORS)), ids=[case["id"] for case in VECTORS])
@both
def test_vectors_compiled(framework, index):
    assert_bits_equal(compiled_results(framework)[index], array(VECTORS[index]["expect"]))


@pytest.mark.parametrize("case", GRADIENTS)
@both
def test_vectors_of_gradients(framework, case):
    arrays = (framework.array(array(case[name])) for name in ("logits", "grad_logprob"))
    grad = of_logits(framework, np.array(case["target_ids"]), *arrays)
    assert_bits_equal(grad, array(case["expect_grad_logits"]))


# Against the contract ----------------------------------------------------------------------------------
@st.composite
def problems(draw):
    """Logits [5, 37] of some spread with special values, targets, upstream gradients of any size."""
    rng = RNG(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.01, 1.0, 10.0, 100.0, 1e30, 1e-38]))
    with np.errstate(over="ignore"):
        x = (rng.standard_normal((5, 37)) * spread).astype(draw(st.sampled_from(FLOATS)))
    for value in draw(st.lists(st.sampled_from([np.inf, -np.inf, np.nan, -np.inf, 0.0, -0.0, 1e-40]), max_size=3)):
        x[rng.integers(0, 5), rng.integers(0, 37, rng.integers(1, 30))] = value
    g = (rng.standard_normal(5) * 2.0 ** rng.integers(-149, 100)).astype(np.float32)
    g[rng.integers(0, 5)] = draw(st.sampled_from([0.0, -0.0, np.inf, np.nan, 1e-45, 3e38, 1.0]))
    return x, rng.integers(0, 37, 5), g


@given(problems())
@examples(60)
@both
def test_any_logits_and_upstream_gradients(framework, problem):
    x, ids, g = problem
    logits = framework.array(x)
    assert_bits_equal(framework.package.selected_logprob(logits, ids), contract.selected_logprob(x, ids))
    grad = of_logits(framework, ids, logits, framework.array(g))
    assert_bits_equal(grad, contract.selected_logprob_grad(x, ids, g))


@pytest.mark.parametrize("vocab", [1, 2, 65537, 151936])
@both
def test_vocabs_of_one_block_and_of_several(framework, vocab):
    x = RNG(0).standard_normal((2, vocab)).astype(np.float32) * np.float32(3)
    ids = np.array([0, vocab - 1])
    logits = framework.array(x)
    assert_bits_equal(framework.package.selected_logprob(logits, ids), contract.selected_logprob(x, ids))
    grad = of_logits(framework, ids, logits, upstream_of(framework, [1.5, -0.3]))
    assert_bits_equal(grad, contract.selected_logprob_grad(x, ids, np.float32([1.5, -0.3])))


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)], ids=str)
@both
def test_leading_shapes(framework, shape):
    x = RNG(1).standard_normal((*shape, 9)).astype(np.float32)
    ids = RNG(2).integers(0, 9, shape)
    assert_bits_equal(framework.package.selected_logprob(framework.array(x), ids), contract.selected_logprob(x, ids))


def test_a_result_of_torch_may_be_written_into():
    """As a mask does in place; autograd refuses that of views."""
    x, w = (torch.ones(shape, requires_grad=True) for shape in ((2, 3), (4, 3)))
    for logprobs in (rlk_torch.selected_logprob(x, [0, 1]), rlk_torch.linear_logprob(x, w, [0, 1])):
        logprobs.mul_(torch.tensor([1.0, 0.0])).sum().backward()
        assert x.grad is not None and not x.grad[1].any()


# From hidden states ------------------------------------------------------------------------------------
def composed(h: Any, w: Any, ids: Any, b: Any, g: Any, digits: int) -> tuple[Any, list[Any]]:
    """The contract's two operators, one after the other: log-probabilities, gradients of hidden, weight, bias."""
    logits = contract.lm_head_fp32(h, w, b, digits=digits)
    of_logits = contract.selected_logprob_grad(logits, ids, g)
    rows = (x.reshape(-1, x.shape[-1]) for x in (of_logits, h))
    of_hidden, *others = contract.lm_head_grads(*rows, w, None if b is None else b.dtype)
    found = [of_hidden.reshape(h.shape), *others]
    return contract.selected_logprob(logits, ids), [x for x in found if x is not None]


@pytest.mark.parametrize(
    ("dtype", "digits", "biased", "budget"),
    [(BFLOAT16, 4, False, 2**30), (np.dtype(np.float32), 3, True, 1), (np.dtype(np.float16), 4, True, 3 * 4 * 67)],
    ids=["whole", "a row at a time", "three rows at a time"],
)
@both
def test_from_hidden_states_is_the_composition_of_the_contract(framework, dtype, digits, biased, budget):
    rng = RNG(3)
    h, w, b = (rng.standard_normal(shape).astype(dtype) for shape in ((7, 33), (67, 33), (67,)))
    ids, g = rng.integers(0, 67, 7), rng.standard_normal(7).astype(np.float32)
    h[3], g[4], g[5] = np.nan, np.inf, 0
    expected, wanted = composed(h, w, ids, b if biased else None, g, digits)
    options = {"digits": digits, "budget": budget}

    def function(h: Any, w: Any, b: Any = None) -> Any:
        return framework.package.linear_logprob(h, w, ids, b, **options)

    arguments = [framework.array(x) for x in ((h, w, b) if biased else (h, w))]
    assert_bits_equal(function(*arguments), expected)
    found = pull_back(framework, function, arguments, range(len(arguments)), framework.array(g))
    for name, actual, want in zip(("hidden", "weight", "bias"), found, wanted, strict=False):
        assert_bits_equal(actual, want, context=f"the gradient of {name}")


@both
def test_a_batch_under_vmap_is_more_rows(framework):
    rng = RNG(4)
    h, w = rng.standard_normal((3, 4, 16)).astype(np.float32), rng.standard_normal((21, 16)).astype(np.float32)
    ids = rng.integers(0, 21, (3, 4))
    expected, (of_hidden, _) = composed(h, w, ids, None, np.ones((3, 4), np.float32), 4)
    weight, package = framework.array(w), framework.package

    def total(h: Any, ids: Any) -> Any:
        return package.linear_logprob(h, weight, ids, check_ids=False).sum()

    def logprobs(h: Any, ids: Any) -> Any:
        return package.linear_logprob(h, weight, ids, check_ids=False)

    arguments = framework.array(h), framework.array(ids)
    grad = jax.grad if framework is JAX else torch.func.grad
    assert_bits_equal(framework.vmap(logprobs)(*arguments), expected)
    assert_bits_equal(framework.vmap(grad(total))(*arguments), of_hidden)


@both
def test_what_a_batch_shares_has_one_sum_over_all_of_it(framework):
    rng = RNG(8)
    h, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 6), (7, 6), (7,)))
    ids, g = rng.integers(0, 7, (2, 3)), rng.standard_normal((2, 3)).astype(np.float32)
    _, wanted = composed(h, w, ids, b, g, 4)
    targets, package = framework.array(ids), framework.package

    def function(h: Any, w: Any, b: Any) -> Any:
        one = framework.vmap(lambda h, ids: package.linear_logprob(h, w, ids, b, check_ids=False))
        return one(h, targets)

    arguments = [framework.array(x) for x in (h, w, b)]
    found = pull_back(framework, function, arguments, range(3), framework.array(g))
    for name, actual, want in zip(("hidden", "weight", "bias"), found, wanted, strict=True):
        assert_bits_equal(actual, want, context=f"the gradient of {name}")


@both
def test_compiled_code_gives_the_bits_of_eager_code(framework):
    rng = RNG(5)
    h, w = rng.standard_normal((5, 16)).astype(np.float32), rng.standard_normal((21, 16)).astype(np.float32)
    ids = rng.integers(0, 21, 5)
    expected, _ = composed(h, w, ids, None, np.zeros(5, np.float32), 4)
    compiled = framework.compiled(lambda h, w, ids: framework.package.linear_logprob(h, w, ids))
    assert_bits_equal(compiled(*(framework.array(x) for x in (h, w, ids))), expected)


@both
def test_an_aligned_weight(framework):
    rng = RNG(6)
    h, w = rng.standard_normal((5, 16)).astype(np.float32), rng.standard_normal((21, 16)).astype(np.float32)
    ids = rng.integers(0, 21, 5)
    expected, _ = composed(h, w, ids, None, np.zeros(5, np.float32), 3)
    aligned = framework.package.align(framework.array(w), 3)
    assert_bits_equal(framework.package.linear_logprob(framework.array(h), aligned, ids, digits=3), expected)


# Ids, masks and refusals -------------------------------------------------------------------------------
@both
def test_a_masked_vocab_counts_for_nothing_and_a_masked_target_is_impossible(framework):
    x = np.float32([[1.0, -np.inf, 2.0], [1.0, -np.inf, 2.0], [-np.inf, -np.inf, 0.5]])
    ids = np.array([0, 1, 2])
    logprobs = framework.package.selected_logprob(framework.array(x), ids)
    alone = framework.package.selected_logprob(framework.array(x[:1, ::2]), np.array([0]))
    assert_bits_equal(logprobs[:1], alone)
    assert_bits_equal(logprobs[1:], np.float32([-np.inf, 0.0]))
    grad = of_logits(framework, ids, framework.array(x), upstream_of(framework, [1, 1, 1]))
    assert_bits_equal(grad[:, 1], np.float32([0.0, 1.0, 0.0]))


@both
def test_an_id_that_was_not_read_gives_nan_and_no_gradient(framework):
    x, ids = RNG(7).standard_normal((3, 5)).astype(np.float32), np.array([5, -1, 2])
    logits, package = framework.array(x), framework.package
    logprobs = as_numpy(package.selected_logprob(logits, framework.array(ids), check_ids=False))
    assert_bits_equal(logprobs[:2], np.full(2, 0x7FC00000, np.uint32).view(np.float32))
    assert_bits_equal(logprobs[2:], contract.selected_logprob(x[2:], ids[2:]))
    grad = of_logits(framework, framework.array(ids), logits, upstream_of(framework, [1, 1, 1]), check_ids=False)
    assert_bits_equal(grad[:2], np.zeros((2, 5), np.float32))


REFUSED = [
    (lambda p, x: p.selected_logprob(x(np.zeros((2, 3), np.float32)), [0, 3]), IndexError,
     "target_ids[1] is 3; expected 0 <= id < 3, the vocab: check the tokenizer against the table, or mask padding ids "
     "first"),
    (lambda p, x: p.selected_logprob(x(np.zeros((2, 3), np.float32)), [0]), ValueError,
     "target_ids has shape (1,) and logits (2, 3); expected (2,), one id a row of logits"),
    (lambda p, x: p.selected_logprob(x(np.zeros((2, 0), np.float32)), [0, 0]), ValueError,
     "logits has shape (2, 0); expected 1 <= V <= 262144, the sum of whose exponentials has 63 bits: leave out ids "
     "that cannot occur"),
    (lambda p, x: p.selected_logprob(x(np.zeros((1, 2**18 + 1), np.float32)), [0]), ValueError,
     "logits has shape (1, 262145); expected 1 <= V <= 262144, the sum of whose exponentials has 63 bits: leave out "
     "ids that cannot occur"),
    (lambda p, x: p.selected_logprob(x(np.zeros((), np.float32)), 0), ValueError,
     "logits has shape (); expected [..., V]: add the vocab dimension"),
    (lambda p, x: p.selected_logprob(x(np.zeros((1, 2), np.float32)), [0.5]), TypeError,
     "target_ids has dtype float64; expected an integer dtype: convert the ids, or use them as a mask instead"),
    (lambda p, x: p.linear_logprob(x(np.zeros((2, 3), np.float32)), x(np.zeros((4, 3), np.float32)), [0]), ValueError,
     "target_ids has shape (1,) and hidden (2, 3); expected (2,), one id a row of hidden"),
    (lambda p, x: p.linear_logprob(x(np.zeros((1, 3), np.float32)), x(np.zeros((4, 3), np.float32)), [0], budget=0),
     ValueError, "budget is 0; expected a positive number of bytes for the logits of some rows"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED, ids=[text[:40] for _, _, text in REFUSED])
@both
def test_bad_input_is_refused_in_a_sentence(framework, call, error, text):
    with pytest.raises(error) as caught:
        call(framework.package, framework.array)
    assert str(caught.value) == text


# torch.func.jvp itself still uses torch.jit.script (torch 2.13).
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("op", ["selected_logprob", "linear_logprob"])
def test_forward_mode_and_second_derivatives_are_refused(op):
    ids, w = np.array([0]), np.ones((2, 2), np.float32)
    more_jax, more_torch = ([w], [torch.from_numpy(w)]) if op == "linear_logprob" else ([], [])

    def in_jax(x: Any) -> Any:
        return getattr(rlk_jax, op)(x, *more_jax, ids)[0]

    def in_torch(x: Any) -> Any:
        return getattr(rlk_torch, op)(x, *more_torch, ids, check_ids=False)[0]

    x, y = jnp.ones((1, 2)), torch.ones(1, 2)
    for call in (lambda: jax.jvp(in_jax, (x,), (x,)), lambda: torch.func.jvp(in_torch, (y,), (y,))):
        with pytest.raises(NotImplementedError, match=f"forward mode .* of {op} is not offered"):
            call()
    for call in (
        lambda: jax.grad(lambda x: jax.grad(in_jax)(x).sum())(x),
        lambda: torch.func.grad(lambda y: torch.func.grad(in_torch)(y).sum())(y),
    ):
        with pytest.raises(NotImplementedError, match=f"second derivatives of {op} are not offered"):
            call()
