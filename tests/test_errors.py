"""Every misuse is refused with what was got, what was expected and the remedy, in the same words in both packages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from frameworks import TORCH, Framework, both
from processes import run_alone

H = np.ones((2, 3), np.float32)
W = np.ones((4, 3), np.float32)
B = np.ones(4, np.float32)


@dataclass(frozen=True)
class Mistake:
    """A call that is refused, over a framework's package and its converter of NumPy arrays."""

    name: str
    call: Callable[[Any, Callable[[Any], Any]], Any]
    error: type[Exception]
    text: str


_LM_HEAD = [
    Mistake(
        "hidden is a list", lambda p, a: p.lm_head([1.0, 2.0, 3.0], a(W)), TypeError,
        "hidden is of type list; expected an array of shape [..., K]: convert it first",
    ),
    Mistake(
        "hidden is float64", lambda p, a: p.lm_head(a(H.astype(np.float64)), a(W)), TypeError,
        "hidden has dtype float64; expected bfloat16, float16 or float32: convert it first",
    ),
    Mistake(
        "hidden is int32", lambda p, a: p.lm_head_fp32(a(H.astype(np.int32)), a(W)), TypeError,
        "hidden has dtype int32; expected bfloat16, float16 or float32: convert it first",
    ),
    Mistake(
        "weight is None", lambda p, a: p.lm_head(a(H), None), TypeError,
        "weight is of type NoneType; expected an array of shape [V, K]: convert it first",
    ),
    Mistake(
        "weight is int8", lambda p, a: p.lm_head(a(H), a(W.astype(np.int8))), TypeError,
        "weight has dtype int8; expected bfloat16, float16 or float32: convert it first",
    ),
    Mistake(
        "bias is a number", lambda p, a: p.lm_head(a(H), a(W), 1.0), TypeError,
        "bias is of type float; expected an array of shape [V]: convert it first",
    ),
    Mistake(
        "bias is float64", lambda p, a: p.lm_head(a(H), a(W), a(B.astype(np.float64))), TypeError,
        "bias has dtype float64; expected bfloat16, float16 or float32: convert it first",
    ),
    Mistake(
        "hidden without dimensions", lambda p, a: p.lm_head(a(H[0, 0].reshape(())), a(W)), ValueError,
        "hidden has shape (); expected [..., K]: add the hidden dimension",
    ),
    Mistake(
        "weight of one dimension", lambda p, a: p.lm_head(a(H), a(W[0])), ValueError,
        "weight has shape (3,); expected [V, K]: reshape it first",
    ),
    Mistake(
        "weight of three dimensions", lambda p, a: p.lm_head_fp32(a(H), a(W[None])), ValueError,
        "weight has shape (1, 4, 3); expected [V, K]: reshape it first",
    ),
    Mistake(
        "two widths", lambda p, a: p.lm_head(a(H), a(W.T.copy())), ValueError,
        "hidden has shape (2, 3) and weight (3, 4); expected [..., K] and [V, K] with one K: transpose or slice one "
        "of them",
    ),
    Mistake(
        "two widths, aligned", lambda p, a: p.lm_head_fp32(a(H), p.align(a(W.T.copy()), 4)), ValueError,
        "hidden has shape (2, 3) and weight (3, 4); expected [..., K] and [V, K] with one K: transpose or slice one "
        "of them",
    ),
    Mistake(
        "bias of two dimensions", lambda p, a: p.lm_head(a(H), a(W), a(B[None])), ValueError,
        "bias has shape (1, 4); expected [V]: reshape it first",
    ),
    Mistake(
        "bias of another length", lambda p, a: p.lm_head(a(H), a(W), a(B[:3])), ValueError,
        "bias has shape (3,); expected (4,), one value a row of weight",
    ),
    Mistake(
        "bias of another length, aligned", lambda p, a: p.lm_head(a(H), p.align(a(W), 4), a(B[:1])), ValueError,
        "bias has shape (1,); expected (4,), one value a row of weight",
    ),
]  # fmt: skip

_DIGITS = [
    Mistake(
        "digits 1", lambda p, a: p.lm_head(a(H), a(W), digits=1), ValueError,
        "digits is 1; expected 2 (coarse), 3 or 4 (ground truth)",
    ),
    Mistake(
        "digits 5", lambda p, a: p.lm_head_fp32(a(H), a(W), digits=5), ValueError,
        "digits is 5; expected 2 (coarse), 3 or 4 (ground truth)",
    ),
    Mistake(
        "digits 3.0", lambda p, a: p.lm_head(a(H), a(W), digits=3.0), TypeError,
        "digits is of type float; expected the integer 2, 3 or 4",
    ),
    Mistake(
        "digits True", lambda p, a: p.align(a(W), True), TypeError,
        "digits is of type bool; expected the integer 2, 3 or 4",
    ),
    Mistake(
        "digits None on the float32 path", lambda p, a: p.lm_head_fp32(a(H), a(W), digits=None), TypeError,
        "digits is of type NoneType; expected the integer 2, 3 or 4",
    ),
    Mistake(
        "digits of the weight", lambda p, a: p.lm_head(a(H), p.align(a(W), 3)), ValueError,
        "weight is aligned with 3 digits and the call uses 4; expected one number: align(weight, 4), or digits=3",
    ),
    Mistake(
        "digits of the weight, named", lambda p, a: p.lm_head_fp32(a(H), p.align(a(W), 4), digits=2), ValueError,
        "weight is aligned with 4 digits and the call uses 2; expected one number: align(weight, 2), or digits=4",
    ),
]  # fmt: skip

_ALIGN_AND_EMBEDDING = [
    Mistake(
        "align a list", lambda p, a: p.align([[1.0]], 3), TypeError,
        "x is of type list; expected an array of shape [R, L]: convert it first",
    ),
    Mistake(
        "align float64", lambda p, a: p.align(a(W.astype(np.float64)), 3), TypeError,
        "x has dtype float64; expected bfloat16, float16 or float32: convert it first",
    ),
    Mistake(
        "align a vector", lambda p, a: p.align(a(W[0]), 3), ValueError,
        "x has shape (3,); expected [R, L]: reshape it first",
    ),
    Mistake(
        "align with 6 digits", lambda p, a: p.align(a(W), 6), ValueError,
        "digits is 6; expected 2 (coarse), 3 or 4 (ground truth)",
    ),
    Mistake(
        "table is a list", lambda p, a: p.embedding([0], [[1.0]]), TypeError,
        "weight is of type list; expected an array of shape [V, H]: convert it first",
    ),
    Mistake(
        "table is float64", lambda p, a: p.embedding_fp32([0], a(W.astype(np.float64))), TypeError,
        "weight has dtype float64; expected bfloat16, float16 or float32: convert it first",
    ),
    Mistake(
        "table is aligned", lambda p, a: p.embedding([0], p.align(a(W), 3)), TypeError,
        "weight is of type Aligned; expected an array of shape [V, H]: convert it first",
    ),
    Mistake(
        "table of one dimension", lambda p, a: p.embedding([0], a(B)), ValueError,
        "weight has shape (4,); expected [V, H]: reshape it first",
    ),
]  # fmt: skip

_OPERATORS = [
    Mistake(
        "unknown operator", lambda p, a: p.get_op("logprob"), ValueError,
        "no operator 'logprob'; expected one of 'embedding', 'lm_head'",
    ),
    Mistake(
        "unknown device", lambda p, a: p.get_op("lm_head", device="tpu"), ValueError,
        "no device 'tpu'; expected 'cpu', 'cuda' or 'cuda:N'",
    ),
    Mistake(
        "device that torch knows", lambda p, a: p.get_op("lm_head", device="meta"), ValueError,
        "no device 'meta'; expected 'cpu', 'cuda' or 'cuda:N'",
    ),
    Mistake(
        "device with a wrong index", lambda p, a: p.get_op("lm_head", device="cuda:x"), ValueError,
        "no device 'cuda:x'; expected 'cpu', 'cuda' or 'cuda:N'",
    ),
    Mistake(
        "bad arguments through an operator", lambda p, a: p.get_op("lm_head")(a(H), a(W[0])), ValueError,
        "weight has shape (3,); expected [V, K]: reshape it first",
    ),
    Mistake(
        "bad id through an operator", lambda p, a: p.get_op("embedding").forward_fp32([4], a(W)), IndexError,
        "token_ids[0] is 4; expected 0 <= id < 4, the vocab: check the tokenizer against the table, or mask padding "
        "ids first",
    ),
]  # fmt: skip


def converter(framework: Framework) -> Callable[[Any], Any]:
    """JAX would narrow float64 first, so it gets that as the NumPy array it is."""
    return lambda x: x if framework is not TORCH and x.dtype == np.float64 else framework.array(x)


@pytest.mark.parametrize("mistake", _LM_HEAD + _DIGITS + _ALIGN_AND_EMBEDDING + _OPERATORS, ids=lambda m: m.name)
@both
def test_the_error_says_what_is_wrong(framework, mistake):
    with pytest.raises(mistake.error) as raised:
        mistake.call(framework.package, converter(framework))
    assert (type(raised.value), str(raised.value)) == (mistake.error, mistake.text)


@pytest.mark.parametrize("mistake", _LM_HEAD + _DIGITS, ids=lambda m: m.name)
@both
def test_an_operator_raises_the_error_of_its_function(framework, mistake):
    class Operators:
        """The package with its LM head taken from get_op."""

        align = staticmethod(framework.package.align)
        lm_head = staticmethod(framework.package.get_op("lm_head").forward)
        lm_head_fp32 = staticmethod(framework.package.get_op("lm_head").forward_fp32)

    with pytest.raises(mistake.error) as raised:
        mistake.call(Operators, converter(framework))
    assert str(raised.value) == mistake.text


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
@both
def test_a_missing_device_is_no_silent_cpu(framework, device, monkeypatch):
    if framework is TORCH:
        monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    else:
        monkeypatch.setattr("jax.devices", lambda platform: [])
    with pytest.raises(ValueError, match=f"^device '{device}' is not available: {framework.name} sees 0 CUDA devices$"):
        framework.package.get_op("lm_head", device=device)


@pytest.mark.parametrize(("op", "known"), [("lm_head", "int8"), ("embedding", "gather")])
@both
def test_an_unknown_implementation_is_an_error_that_lists_the_known_ones(framework, op, known):
    with pytest.raises(ValueError, match=f"^no implementation 'fast' of {op}; expected one of .*'{known}'"):
        framework.package.get_op(op, implementation="fast")


@pytest.mark.parametrize("name", ["hidden", "bias"])
def test_two_devices_in_torch(name):
    arguments = {"hidden": TORCH.array(H), "weight": TORCH.array(W), "bias": TORCH.array(B)}
    arguments[name] = arguments[name].to("meta")
    with pytest.raises(ValueError, match=f"^{name} is on meta, weight on cpu; expected one device: move one of them$"):
        TORCH.package.lm_head(**arguments)


def test_ids_on_another_device_in_torch():
    ids = TORCH.array(np.array([0])).to("meta")
    with pytest.raises(
        ValueError, match=r"^token_ids is on meta, weight on cpu; expected one device: move one of them$"
    ):
        TORCH.package.embedding(ids, TORCH.array(W))


def test_an_operator_for_another_device_in_torch():
    with pytest.raises(
        ValueError, match=r"^weight is on meta and the operator on cpu; move weight, or get_op for meta$"
    ):
        TORCH.package.get_op("lm_head")(TORCH.array(H), TORCH.array(W).to("meta"))


TWO_DEVICES = """
import jax, pytest, rlk_jax
import jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 2)
here, there = jax.devices("cpu")
H, W, B = (jax.device_put(jnp.ones(shape), here) for shape in ((2, 3), (4, 3), 4))
move = lambda x: jax.device_put(x, there)

def refused(function, text):
    with pytest.raises(ValueError) as raised:
        function()
    assert str(raised.value) == text, raised.value

apart = f"is on {there}, weight on {here}; expected one device: move one of them"
refused(lambda: rlk_jax.lm_head(move(H), W), f"hidden {apart}")
refused(lambda: rlk_jax.lm_head(H, rlk_jax.align(W, 4), move(B)), f"bias {apart}")
refused(lambda: rlk_jax.embedding(move(jnp.array([0])), W), f"token_ids {apart}")
operator = f"weight is on {there} and the operator on {here}; move weight, or get_op for {there}"
refused(lambda: rlk_jax.get_op("lm_head")(H, move(W)), operator)
refused(lambda: rlk_jax.get_op("embedding")([0], move(W)), operator)
assert rlk_jax.lm_head(move(H), move(W)).device == there
assert rlk_jax.lm_head(jnp.ones((2, 3)), move(W)).device == there
"""


def test_two_devices_in_jax():
    run_alone(TWO_DEVICES)
