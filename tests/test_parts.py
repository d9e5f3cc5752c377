"""A call made from parts of its arguments has the bits of the call on the whole, whatever the number of parts."""

import pytest

from crosscheck.backends import NumpyAdapter
from crosscheck.bits import compare
from crosscheck.calls import contract_result
from crosscheck.candidate_adapters import TorchCandidate
from crosscheck.cases import Case
from crosscheck.jax_adapter import JaxAdapter
from crosscheck.judge import Effort, expected_answer, judge
from crosscheck.torch_adapter import TorchAdapter
from crosscheck.trial import SHARDS
from crosscheck.verdict import NotOffered

HEAD = Case("lm_head", "fp16", (6,), 5, 9, 3, bias="fp32")
HEAD_FP32 = Case("lm_head_fp32", "bf16", (2, 3), 100, 7)
LOGITS = Case("selected_logprob", "fp16", (9,), 0, 5, id_dtype="int16")
LINEAR = Case("linear_logprob", "fp32", (2, 3), 10, 9, 3, bias="fp16", id_dtype="uint8")
DIVISIONS = [
    (HEAD, "hidden"), (HEAD_FP32, "hidden"), (LOGITS, "vocab"), (LINEAR, "hidden"), (LINEAR, "vocab"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "what"), DIVISIONS, ids=lambda x: getattr(x, "id", x))
@pytest.mark.parametrize("adapter", [TorchAdapter("cpu", 1), JaxAdapter("cpu", 1)], ids=["torch", "jax"])
def test_the_bits_do_not_notice_parts(adapter, case, what):
    assert adapter.available() is None
    counts = SHARDS if isinstance(adapter, TorchAdapter) or case in (HEAD, LOGITS) else (3,)  # each is compiled anew
    inputs = case.inputs()
    expected = contract_result(case.op, inputs, case.digits)
    for count in counts:
        arguments = {name: adapter.from_numpy(array) for name, array in inputs.items()}
        found = adapter.to_numpy(adapter.run_parts(case.op, arguments, case.digits, "eager", (what, count)))
        assert compare(found, expected) is None, count


def test_a_candidate_is_not_asked_for_parts_and_that_is_said():
    adapter = TorchCandidate("cpu", 1, "rlk_torch:lm_head")
    assert adapter.available() is None
    check = judge(adapter, "mine", HEAD, "eager", expected_answer(HEAD), effort=Effort(divided=False)).checks[
        "chunking"
    ]
    left_out = {attempt["trial"]: attempt["reason"] for attempt in check.not_applicable}
    assert left_out == {"hidden in 2 shards": "it has no form that takes parts"}


def test_the_contract_has_no_parts():
    with pytest.raises(NotOffered, match=r"^the contract has no form of it that takes parts$"):
        NumpyAdapter("cpu", 1).run_parts("lm_head", HEAD.inputs(), 3, "eager", ("hidden", 2))


def test_parts_of_the_vocab_of_an_lm_head_are_calls_of_their_own():
    adapter = TorchAdapter("cpu", 1)
    with pytest.raises(NotOffered, match=r"^lm_head has no form that takes parts of the vocab$"):
        adapter.run_parts("lm_head", HEAD.inputs(), 3, "eager", ("vocab", 2))
