"""What the sharded functions of rlk_torch do not take is refused in a sentence; a group of one rank shows it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import rlk_torch
from crosscheck.bits import assert_bits_equal
from rlk_torch import sharded

VOCAB, WIDTH = 4, 3
# torch.func.jvp itself still uses torch.jit.script (torch 2.13).
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def hidden() -> Tensor:
    return torch.arange(6.0).view(2, WIDTH) - 2


def weight() -> Tensor:
    return torch.arange(12.0).view(VOCAB, WIDTH) / 4


def on_mesh(x: Tensor, *placements: Any, sizes: tuple[int, ...] = (1,)) -> Any:
    return distribute_tensor(x, init_device_mesh("cpu", sizes), placements)


# Every sharded function, of a weight; the heads of a hidden too.
OF_WEIGHT = {
    "sharded_embedding": lambda w: rlk_torch.sharded_embedding([1, 2], w, VOCAB),
    "sharded_lm_head": lambda w: rlk_torch.sharded_lm_head(hidden(), w, vocab=VOCAB, gather=True),
    "row_parallel_lm_head": lambda w: rlk_torch.row_parallel_lm_head(hidden(), w),
    "lm_head_of_parts": lambda w: rlk_torch.lm_head_of_parts([hidden()], [w]),
    "sharded_linear_logprob": lambda w: rlk_torch.sharded_linear_logprob(hidden(), w, [0, 3], vocab=VOCAB),
    "sharded_selected_logprob": lambda w: rlk_torch.sharded_selected_logprob(w, [0, 1, 2, 0], vocab=WIDTH),
    "selected_logprob_of_parts": lambda w: rlk_torch.selected_logprob_of_parts([w], [0, 1, 2, 0]),
}
OF_HIDDEN = {
    "sharded_lm_head": lambda h: rlk_torch.sharded_lm_head(h, weight(), vocab=VOCAB),
    "row_parallel_lm_head": lambda h: rlk_torch.row_parallel_lm_head(h, weight()),
    "lm_head_of_parts": lambda h: rlk_torch.lm_head_of_parts([h], [weight()]),
    "sharded_linear_logprob": lambda h: rlk_torch.sharded_linear_logprob(h, weight(), [0, 3], vocab=VOCAB),
    "sharded_selected_logprob": lambda h: rlk_torch.sharded_selected_logprob(h, [0, 2], vocab=WIDTH),
    "selected_logprob_of_parts": lambda h: rlk_torch.selected_logprob_of_parts([h], [0, 2]),
}
of_weight = pytest.mark.parametrize("name", OF_WEIGHT)
of_hidden = pytest.mark.parametrize("name", OF_HIDDEN)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: rlk_torch.sharded_embedding([0], weight(), "4"), TypeError,
         "vocab is of type str; expected an integer, the rows of the whole weight"),
        (lambda: rlk_torch.sharded_lm_head(hidden(), weight(), vocab=None), TypeError,
         "vocab is of type NoneType; expected an integer, the rows of the whole weight"),
        (lambda: rlk_torch.sharded_lm_head(hidden(), weight(), vocab=5), ValueError,
         "weight has 4 rows on rank 0 of 1; expected 5, the rows 0 to 5 of 5: divide it as shard_range(5, 1, 0) or "
         "torch.chunk do"),
        (lambda: rlk_torch.sharded_embedding([0], weight(), 4, padding_idx=4), ValueError,
         "padding_idx is 4; expected 0 <= padding_idx < 4, the vocab: name the row that padding ids read, or use None"),
        (lambda: rlk_torch.row_parallel_lm_head(hidden(), rlk_torch.align(weight(), 4)), TypeError,
         "weight is an Aligned; expected an array [V, K_r]: rows are aligned over the whole hidden dimension, which no "
         "part has"),
        (lambda: rlk_torch.sharded_lm_head(hidden(), rlk_torch.align(weight(), 3), vocab=VOCAB), ValueError,
         "weight is aligned with 3 digits and the call uses 4; expected one number: align(weight, 4), or digits=3"),
        (lambda: rlk_torch.row_parallel_lm_head(hidden(), weight(), group=init_device_mesh("cpu", (1,))), TypeError,
         "group is of type DeviceMesh; expected a process group of torch.distributed, or None for its default: of a "
         "mesh, pass get_group()"),
        (lambda: rlk_torch.sharded_selected_logprob(weight(), [0] * 4, vocab=4), ValueError,
         "logits has 3 columns on rank 0 of 1; expected 4, the columns 0 to 4 of 4: divide it as shard_range(4, 1, 0) "
         "or torch.chunk do"),
        (lambda: rlk_torch.sharded_selected_logprob(weight(), [0] * 4, vocab=None), TypeError,
         "vocab is of type NoneType; expected an integer, the rows of the whole weight"),
        (lambda: rlk_torch.sharded_selected_logprob(weight(), [0] * 4, vocab=2**18 + 1), ValueError,
         "vocab is 262145; expected 1 <= V <= 262144, the sum of whose exponentials has 63 bits: leave out ids that "
         "cannot occur"),
        (lambda: rlk_torch.sharded_linear_logprob(hidden(), weight()[:0], [0, 0], vocab=0), ValueError,
         "vocab is 0; expected 1 <= V <= 262144, the sum of whose exponentials has 63 bits: leave out ids that cannot "
         "occur"),
        (lambda: rlk_torch.sharded_selected_logprob(weight(), [0], vocab=WIDTH), ValueError,
         "target_ids has shape (1,) and logits (4, 3); expected (4,), one id a row of logits"),
        (lambda: rlk_torch.sharded_selected_logprob(torch.zeros(()), 0, vocab=1), ValueError,
         "logits has shape (); expected [..., V_r]: add the vocab dimension"),
        (lambda: rlk_torch.sharded_linear_logprob(hidden(), weight(), [0, 4], vocab=VOCAB), IndexError,
         "target_ids[1] is 4; expected 0 <= id < 4, the vocab: check the tokenizer against the table, or mask padding "
         "ids first"),
        (lambda: rlk_torch.sharded_linear_logprob(hidden(), weight(), [0, 1], vocab=VOCAB, budget=0), ValueError,
         "budget is 0; expected a positive number of bytes for the logits of some rows"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_meet(call, kind, text):
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: rlk_torch.sharded_lm_head(hidden(), on_mesh(weight(), Replicate()), vocab=None), ValueError,
         "weight is a DTensor placed R; expected Shard(0): redistribute it first"),
        (lambda: rlk_torch.row_parallel_lm_head(hidden(), on_mesh(weight(), Shard(0))), ValueError,
         "weight is a DTensor placed S(0); expected Shard(1): redistribute it first"),
        (lambda: rlk_torch.sharded_embedding([0], on_mesh(weight(), Shard(0)), 5), ValueError,
         "vocab is 5 and weight a DTensor of 4 rows; expected its rows, or vocab=None"),
        (lambda: rlk_torch.sharded_embedding([0], on_mesh(weight(), Shard(0)), 4, group=dist.group.WORLD), ValueError,
         "weight is a DTensor and group is given; expected no group: a DTensor's mesh has its own"),
        (lambda: rlk_torch.sharded_embedding([0], on_mesh(weight(), Shard(0), Replicate(), sizes=(1, 1)), 4),
         ValueError,
         "weight is a DTensor on a mesh of 2 dimensions; expected 1: pass weight.to_local() and the group of the "
         "dimension that shards it"),
        (lambda: rlk_torch.sharded_lm_head(on_mesh(hidden(), Replicate()), weight(), vocab=VOCAB), TypeError,
         "hidden is a DTensor; expected a plain array: pass hidden.to_local() or full_tensor()"),
        (lambda: rlk_torch.sharded_lm_head(hidden(), weight(), on_mesh(torch.ones(VOCAB), Shard(0)), vocab=VOCAB),
         TypeError, "bias is a DTensor and weight is none; expected both to be: pass bias.to_local()"),
        (lambda: rlk_torch.sharded_linear_logprob(hidden(), on_mesh(weight(), Replicate()), [0, 1], vocab=None),
         ValueError, "weight is a DTensor placed R; expected Shard(0): redistribute it first"),
        (lambda: rlk_torch.sharded_selected_logprob(on_mesh(weight(), Shard(1)), [0] * 4, vocab=WIDTH), TypeError,
         "logits is a DTensor; expected a plain array: pass logits.to_local() or full_tensor()"),
        (lambda: rlk_torch.sharded_selected_logprob(weight(), on_mesh(torch.zeros(4).int(), Shard(0)), vocab=WIDTH),
         TypeError, "target_ids is a DTensor; expected a plain array: pass target_ids.to_local() or full_tensor()"),
    ],
)  # fmt: skip
def test_dtensors_that_are_placed_otherwise(call, kind, text):
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text


def test_lengths_whose_sums_may_overflow(monkeypatch):
    monkeypatch.setattr(sharded, "LONGEST_WHOLE", 2)
    for name, call in (
        ("vocab is 4", lambda: rlk_torch.sharded_lm_head(hidden(), weight(), vocab=VOCAB)),
        ("the hidden dimension of all parts is 3", lambda: rlk_torch.lm_head_of_parts([hidden()], [weight()])),
        ("hidden's last size times the ranks is 3", lambda: rlk_torch.row_parallel_lm_head(hidden(), weight())),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == f"{name}; expected at most 2, which sums of integers hold"


def test_arrays_that_the_group_does_not_exchange():
    ranks = replace(sharded.ranks_of(None, None), devices=("cuda",))
    with pytest.raises(ValueError) as caught:
        sharded.check_device(weight(), ranks)
    assert str(caught.value) == (
        "weight is on cpu and the group exchanges arrays on cuda; expected one of them: move the arrays, or pass a "
        "group of another backend"
    )


@of_weight
def test_vmap(name):
    with pytest.raises(NotImplementedError, match=f"^vmap over {name} is not offered: pass more rows in one call$"):
        torch.func.vmap(OF_WEIGHT[name])(weight().expand(2, VOCAB, WIDTH))


@pytest.mark.parametrize("transform", ["vmap", "is_grads_batched"])
@pytest.mark.parametrize("name", ["sharded_lm_head", "sharded_linear_logprob", "sharded_selected_logprob"])
def test_vmap_over_the_gradient_of_a_sharded_call(name, transform):
    with pytest.raises(NotImplementedError, match=rf"^vmap over the gradient of {name} .*is not offered"):
        if transform == "vmap":
            torch.func.jacrev(OF_HIDDEN[name])(hidden())
        else:
            x = hidden().requires_grad_()
            value = OF_HIDDEN[name](x)
            torch.autograd.grad(value, x, torch.ones(2, *value.shape), is_grads_batched=True)


@of_weight
@pytest.mark.parametrize("ask", ["torch.func.jvp", "forward_ad"])
def test_forward_mode(name, ask):
    x = weight()
    with pytest.raises(NotImplementedError, match=r"^forward mode .* is not offered: use torch.func.grad"):
        if ask == "forward_ad":
            with forward_ad.dual_level():
                OF_WEIGHT[name](forward_ad.make_dual(x, x))
        else:
            torch.func.jvp(OF_WEIGHT[name], (x,), (x,))


@of_hidden
def test_second_derivatives(name):
    x = hidden().requires_grad_()
    (gradient,) = torch.autograd.grad(OF_HIDDEN[name](x).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"^second derivatives of [\w ]+ are not offered: detach"):
        gradient.sum().backward()


def test_the_gradient_of_an_aligned_shard():
    x = weight().requires_grad_()
    for call in (
        lambda aligned: rlk_torch.sharded_lm_head(hidden(), aligned, vocab=VOCAB),
        lambda aligned: rlk_torch.sharded_linear_logprob(hidden(), aligned, [0, 3], vocab=VOCAB),
    ):
        with pytest.raises(NotImplementedError, match=r"^the gradient of an Aligned is not offered"):
            call(rlk_torch.align(x, 4)).sum().backward()


@of_weight
def test_torch_func_grad_is_backward(name):
    x = weight().requires_grad_()
    (expected,) = torch.autograd.grad(OF_WEIGHT[name](x).sum(), x)
    assert_bits_equal(torch.func.grad(lambda w: OF_WEIGHT[name](w).sum())(weight()), expected)


# torch hides this warning, which its compiler causes, but not where warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@of_weight
def test_compiled_code_leaves_the_call_to_eager_code(name):
    torch.compiler.reset()
    x = weight().requires_grad_()
    expected = OF_WEIGHT[name](x)
    found = torch.compile(lambda w: OF_WEIGHT[name](w * 1), backend="eager")(x)
    assert_bits_equal(found, expected)
    assert_bits_equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)))
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch.compiler.disable"):
        torch.compile(lambda w: OF_WEIGHT[name](w * 1), backend="eager", fullgraph=True)(x)
