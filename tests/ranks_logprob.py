"""On ranks: log-probabilities of a sharded vocab have the bits of the whole's, forward and backward."""

from typing import Any

import numpy as np
import ranks
import torch
import torch.distributed as dist
from ranks_values import FEW, FLOATS, drawn, gradients, ids_of, leaf, of_columns, of_rows, same
from torch import Tensor

import rlk_torch
from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal

INF, NAN = float("inf"), float("nan")


def upstream(*shape: int) -> Tensor:
    """With zeros, and with what is not finite where there is room for it."""
    grad = drawn(*shape, seed=7)
    flat = grad.view(-1)
    for place, value in enumerate((0.0, -0.0, 1e-40, INF, NAN)):
        flat[2 * place + 1 : 2 * place + 2] = value
    return grad


def special(*lead: int, vocab: int, dtype: torch.dtype, spread: float = 3.0) -> Tensor:
    """Logits with rows of every kind where there is room for them."""
    x = (drawn(*lead, vocab) * spread).to(dtype)
    rows = x.view(-1, vocab)
    for row, column, value in ((1, 0, NAN), (2, -1, NAN), (3, 0, INF), (4, -1, INF), (5, 0, -INF), (6, -1, -INF)):
        rows[row : row + 1, column] = value
    rows[7:8] = -INF
    rows[8:9, :-1] = -INF
    rows[9:10] = 1e-40
    return x


def targets_of(*lead: int, vocab: int) -> Tensor:
    """The first and the last id among them."""
    ids = torch.randint(0, vocab, lead, generator=torch.Generator().manual_seed(3))
    flat = ids.view(-1)
    flat[:1], flat[-1:], flat[5:6], flat[8:9] = vocab - 1, 0, 0, 0
    return ids.to(ranks.DEVICE)


def logits_case(rank: int, size: int, logits: Tensor, ids: Any, grad: Tensor, **options: Any) -> None:
    """`sharded_selected_logprob` against `selected_logprob`, with the gradient, on this rank's columns."""
    whole, part = leaf(logits), leaf(of_columns(logits, rank, size))
    expected = rlk_torch.selected_logprob(whole, ids, **options)
    found = rlk_torch.sharded_selected_logprob(part, ids, vocab=logits.shape[-1], **options)
    assert_bits_equal(found, expected)
    (wanted,) = gradients(expected, grad, whole)
    assert_bits_equal(gradients(found, grad, part)[0], of_columns(wanted, rank, size), context="gradient")


def states_case(
    rank: int, size: int, hidden: Tensor, weight: Tensor, ids: Any, bias: Any, grad: Tensor, **options: Any
) -> None:
    """`sharded_linear_logprob` against `linear_logprob`, with all gradients."""
    shared = {name: x for name, x in options.items() if name != "check_shapes"}
    whole = [leaf(x) for x in (hidden, weight, bias) if x is not None]
    part = [leaf(hidden), *(leaf(of_rows(x, rank, size)) for x in (weight, bias) if x is not None)]
    expected = rlk_torch.linear_logprob(whole[0], whole[1], ids, *whole[2:], **shared)
    found = rlk_torch.sharded_linear_logprob(part[0], part[1], ids, *part[2:], vocab=len(weight), **options)
    assert_bits_equal(found, expected)
    of_hidden, *others = gradients(expected, grad, *whole)
    same(gradients(found, grad, *part), (of_hidden, *(of_rows(x, rank, size) for x in others)), "gradient")


def check_logits_of_every_kind(rank: int, size: int) -> None:
    for dtype in FLOATS:
        for vocab in (21, 5, 1) if size <= FEW else (21,):
            logits, ids = special(2, 6, vocab=vocab, dtype=dtype), targets_of(2, 6, vocab=vocab)
            logits_case(rank, size, logits, ids, upstream(2, 6))
    logits_case(rank, size, special(10, vocab=13, dtype=FLOATS[2], spread=1e30), [12] * 10, upstream(10))


def check_ids_of_every_dtype(rank: int, size: int) -> None:
    logits, ids = drawn(4, 13), np.array([0, 12, 5, 7])
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        logits_case(rank, size, logits, ids.astype(dtype), upstream(4))
    logits_case(rank, size, logits, ids.tolist(), upstream(4))


def check_leading_shapes(rank: int, size: int) -> None:
    for lead in ((), (0,), (2, 0), (2, 1, 3)):
        ids = targets_of(*lead, vocab=9)
        logits_case(rank, size, drawn(*lead, 9), ids, upstream(*lead))
        states_case(rank, size, drawn(*lead, 4), drawn(9, 4, seed=1), ids, drawn(9), upstream(*lead))
    columns = drawn(9, 5).T
    logits_case(rank, size, columns, targets_of(5, vocab=9), upstream(5))


def check_from_hidden_states(rank: int, size: int) -> None:
    """A row at a time, some, and all of them; parts of the weight's gradient likewise."""
    for i, dtype in enumerate(FLOATS):
        hidden, weight = drawn(7, 11, dtype=dtype), drawn(21, 11, dtype=FLOATS[(i + 1) % 3], seed=1)
        bias = drawn(21, dtype=FLOATS[(i + 2) % 3]) if i else None
        hidden[3, 2] = (NAN, INF, -INF)[i]
        if bias is not None:
            bias[20] = -INF
        budget = (1, 4 * 21 * 3, 2**30)[i]
        ids = targets_of(7, vocab=21)
        states_case(rank, size, hidden, weight, ids, bias, upstream(7), digits=2 + i, budget=budget)


def check_more_shards_than_rows(rank: int, size: int) -> None:
    states_case(rank, size, drawn(3, 4), drawn(2, 4, seed=1), [1, 0, 1], drawn(2), upstream(3))
    states_case(rank, size, drawn(3, 4), drawn(1, 4, seed=1), [0, 0, 0], None, upstream(3))


def check_a_weight_row_that_is_not_finite(rank: int, size: int) -> None:
    weight = drawn(8, 4, seed=1)
    weight[7, 1] = NAN
    states_case(rank, size, drawn(3, 4), weight, [7, 0, 3], None, upstream(3))


def check_exponents_of_the_whole(rank: int, size: int) -> None:
    """One part far larger than the others, and upstream gradients that are tiny."""
    hidden, weight = drawn(4, 16), drawn(16, 16, seed=1)
    weight[13] *= 2.0**3
    weight[:, 2] *= 2.0**-20
    states_case(rank, size, hidden, weight, [13, 0, 5, 15], None, drawn(4) * 2.0**-100)


def check_several_blocks(rank: int, size: int) -> None:
    """More logits than are taken at a time, and more sums of hidden's gradient."""
    if size > FEW:
        return
    vocab = 70001 * size
    logits_case(rank, size, drawn(2, vocab), [0, vocab - 1], upstream(2))
    states_case(rank, size, drawn(600, 230), drawn(7, 230, seed=1), targets_of(600, vocab=7), None, drawn(600))


def check_unread_bad_ids_are_nan_without_gradient(rank: int, size: int) -> None:
    ids, grad = ids_of([-1, 13, 4, 2**40, -(2**63)]), drawn(5)
    logits_case(rank, size, drawn(5, 13), ids, grad, check_ids=False)
    states_case(rank, size, drawn(5, 3), drawn(13, 3, seed=1), ids, drawn(13), grad, check_ids=False)
    part = leaf(of_columns(drawn(5, 13), rank, size))
    found = rlk_torch.sharded_selected_logprob(part, ids, vocab=13, check_ids=False)
    assert found.isnan().tolist() == [True, True, False, True, True]
    assert not gradients(found, grad, part)[0][[0, 1, 3, 4]].any()


def check_the_contract(rank: int, size: int) -> None:
    hidden, weight, bias = drawn(5, 12).bfloat16(), drawn(11, 12, seed=1), drawn(11).half()
    ids, grad = np.array([0, 10, 5, 10, 3]), drawn(5)
    arrays = [as_numpy(x) for x in (hidden, weight, bias)]
    logits = contract.lm_head_fp32(*arrays)
    expected = contract.selected_logprob(logits, ids)
    of_logits = contract.selected_logprob_grad(logits, ids, as_numpy(grad))
    of_hidden, *others = contract.lm_head_grads(of_logits, *arrays[:2], arrays[2].dtype)
    rows = slice(*rlk_torch.shard_range(11, size, rank))
    part = leaf(hidden), leaf(weight[rows]), leaf(bias[rows])
    found = rlk_torch.sharded_linear_logprob(part[0], part[1], ids, part[2], vocab=11)
    assert_bits_equal(found, expected)
    same(gradients(found, grad, *part), (of_hidden, *(x[rows] for x in others)), "gradient")
    columns = leaf(torch.from_numpy(logits).to(ranks.DEVICE)[:, rows])
    found = rlk_torch.sharded_selected_logprob(columns, ids, vocab=11)
    assert_bits_equal(found, expected)
    assert_bits_equal(gradients(found, grad, columns)[0], of_logits[:, rows])


def check_an_aligned_shard(rank: int, size: int) -> None:
    hidden, weight, grad, ids = leaf(drawn(3, 9)), drawn(13, 9, seed=1), drawn(3), [0, 12, 5]
    expected = rlk_torch.linear_logprob(hidden, rlk_torch.align(weight, 3), ids, digits=3)
    part = rlk_torch.align(of_rows(weight, rank, size), 3)
    found = rlk_torch.sharded_linear_logprob(hidden, part, ids, vocab=13, digits=3)
    assert_bits_equal(found, expected)
    assert_bits_equal(gradients(found, grad, hidden)[0], gradients(expected, grad, hidden)[0])


def check_dtensors(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = init_device_mesh(torch.device(ranks.DEVICE).type, (size,))
    hidden, weight, bias, grad = leaf(drawn(3, 9)), leaf(drawn(13, 9, seed=1)), leaf(drawn(13)), drawn(3)
    expected = rlk_torch.linear_logprob(hidden, weight, [0, 12, 5], bias)
    wanted = gradients(expected, grad, hidden, weight, bias)
    rows, offsets = (distribute_tensor(x.detach(), mesh, [Shard(0)]).requires_grad_() for x in (weight, bias))
    found = rlk_torch.sharded_linear_logprob(hidden, rows, [0, 12, 5], offsets, vocab=None)
    assert type(found) is Tensor
    assert_bits_equal(found, expected)
    of_hidden, *others = gradients(found, grad, hidden, rows, offsets)
    assert all(isinstance(x, DTensor) and x.placements == (Shard(0),) for x in others)
    same([of_hidden, *(x.full_tensor() for x in others)], wanted, "gradient")


def check_the_logits_of_a_sharded_head(rank: int, size: int) -> None:
    """One after the other, the gradients through both."""
    hidden, weight, ids, grad = drawn(3, 6), drawn(13, 6, seed=1), [12, 0, 7], drawn(3)
    whole, part = (leaf(hidden), leaf(weight)), (leaf(hidden), leaf(of_rows(weight, rank, size)))
    expected = rlk_torch.selected_logprob(rlk_torch.lm_head(*whole), ids)
    found = rlk_torch.sharded_selected_logprob(rlk_torch.sharded_lm_head(*part, vocab=13), ids, vocab=13)
    assert_bits_equal(found, expected)
    of_hidden, of_weight = gradients(expected, grad, *whole)
    same(gradients(found, grad, *part), (of_hidden, of_rows(of_weight, rank, size)), "gradient")


def check_results_may_be_written_into(rank: int, size: int) -> None:
    logits, hidden, weight = leaf(of_columns(drawn(2, 7), rank, size)), drawn(2, 3), leaf(drawn(7, 3))
    for result in (
        rlk_torch.sharded_selected_logprob(logits, [0, 6], vocab=7),
        rlk_torch.sharded_linear_logprob(hidden, of_rows(weight, rank, size), [0, 6], vocab=7),
    ):
        assert result.requires_grad
        result.mul_(2)


def check_without_comparing_calls_and_in_a_group(rank: int, size: int) -> None:
    states_case(rank, size, drawn(2, 6), drawn(7, 6), [6, 0], None, drawn(2), check_shapes=False)
    members = list(range(size // 2, size))
    group = dist.new_group(members)
    logits = drawn(2, 7)
    if rank in members:
        part = of_columns(logits, members.index(rank), len(members))
        found = rlk_torch.sharded_selected_logprob(part, [6, 0], vocab=7, group=group, check_shapes=False)
        assert_bits_equal(found, rlk_torch.selected_logprob(logits, [6, 0]))
