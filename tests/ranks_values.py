"""On ranks: the bits of sharded calls are those of the whole, forward and backward."""

from typing import Any

import ml_dtypes
import numpy as np
import ranks
import torch
import torch.distributed as dist
from torch import Tensor

import rlk_torch
from crosscheck import contract
from crosscheck.bits import as_numpy, assert_bits_equal
from rlk_torch import shard_range

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """The same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(ranks.DEVICE, dtype)


def ids_of(values: Any) -> Tensor:
    return torch.tensor(values, device=ranks.DEVICE)


def any_bits(*shape: int, dtype: torch.dtype) -> Tensor:
    """NaN payloads, infinities, subnormals and -0 among them."""
    info = torch.iinfo(BITS[dtype])
    bits = torch.randint(info.min, info.max, shape, generator=torch.Generator().manual_seed(1), dtype=BITS[dtype])
    bits[0, :4] = torch.tensor([info.min, 1, -1, info.min + 1], dtype=BITS[dtype])
    return bits.view(dtype).to(ranks.DEVICE)


def of_rows(x: Tensor, rank: int, size: int) -> Tensor:
    return x[slice(*shard_range(len(x), size, rank))]


def of_columns(x: Tensor, rank: int, size: int) -> Tensor:
    return x[..., slice(*shard_range(x.shape[-1], size, rank))]


def gradients(value: Tensor, grad: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, leaves, grad)


def leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def same(actual: Any, expected: Any, context: str) -> None:
    for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
        assert_bits_equal(one, other, context=f"{context} {i}")


def vocab_case(rank: int, size: int, hidden: Tensor, weight: Tensor, bias: Any, grad: Tensor, **options: Any) -> None:
    """Both ways of `sharded_lm_head` against `lm_head`, with all gradients."""
    whole = [leaf(x) for x in (hidden, weight, bias) if x is not None]
    expected = rlk_torch.lm_head(*whole, **options)
    wanted = gradients(expected, grad, *whole)
    wanted = (wanted[0], *(of_rows(x, rank, size) for x in wanted[1:]))
    for gather in (False, True):
        part = [leaf(hidden), *(leaf(of_rows(x, rank, size)) for x in (weight, bias) if x is not None)]
        logits = rlk_torch.sharded_lm_head(*part, vocab=len(weight), gather=gather, **options)
        assert_bits_equal(logits, expected if gather else of_columns(expected, rank, size))
        upstream = grad if gather else of_columns(grad, rank, size)
        same(gradients(logits, upstream, *part), wanted, f"gather={gather}, gradient")


def hidden_case(rank: int, size: int, hidden: Tensor, weight: Tensor, bias: Any, grad: Tensor, **options: Any) -> None:
    """`row_parallel_lm_head` against `lm_head`, with all gradients."""
    whole = [leaf(x) for x in (hidden, weight, bias) if x is not None]
    expected = rlk_torch.lm_head(*whole, **options)
    wanted = gradients(expected, grad, *whole)
    wanted = (*(of_columns(x, rank, size) for x in wanted[:2]), *wanted[2:])
    part = [leaf(of_columns(hidden, rank, size)), leaf(of_columns(weight, rank, size)), *map(leaf, whole[2:])]
    logits = rlk_torch.row_parallel_lm_head(*part, **options)
    assert_bits_equal(logits, expected)
    same(gradients(logits, grad, *part), wanted, "gradient")


CASES = (vocab_case, hidden_case)
FEW = 3  # ranks, up to which there is time for all of a check


def check_the_bits_of_a_table(rank: int, size: int) -> None:
    for dtype in FLOATS:
        for vocab, ids in ((13, [[0, 12, 5], [5, 7, 0]]), (5, [4, 0, 1])):
            table = any_bits(vocab, 5, dtype=dtype)
            part = of_rows(table, rank, size)
            for chosen in (ids_of(ids), np.array(ids, np.uint8), ids_of(ids[0]), [])[: None if size <= FEW else 1]:
                rows = rlk_torch.sharded_embedding(chosen, part, vocab)
                at = chosen if isinstance(chosen, Tensor) else ids_of(np.asarray(chosen, np.int64))
                assert_bits_equal(rows.view(BITS[dtype]), table.view(BITS[dtype])[at])
                wide = rlk_torch.sharded_embedding_fp32(chosen, part, vocab)
                assert_bits_equal(wide, rlk_torch.embedding_fp32(chosen, table))


def check_the_gradient_of_a_table(rank: int, size: int) -> None:
    ids, grad = ids_of([[3, 3, 12], [0, 3, 5]]), drawn(2, 3, 4) * 1e4
    for dtype in FLOATS:
        table = leaf(drawn(13, 4, dtype=dtype))
        part = leaf(of_rows(table, rank, size))
        for padding_idx in (None, 3, 12):
            (wanted,) = gradients(rlk_torch.embedding_fp32(ids, table, padding_idx=padding_idx), grad, table)
            rows = rlk_torch.sharded_embedding_fp32(ids, part, 13, padding_idx=padding_idx)
            assert_bits_equal(gradients(rows, grad, part)[0], of_rows(wanted, rank, size))


def check_unread_bad_ids_are_poison_without_gradient(rank: int, size: int) -> None:
    ids, grad = ids_of([-1, 13, 4, 2**40, -(2**63)]), drawn(5, 3)
    table = leaf(drawn(13, 3))
    part = leaf(of_rows(table, rank, size))
    expected = rlk_torch.embedding(ids, table, check_ids=False)
    rows = rlk_torch.sharded_embedding(ids, part, 13, check_ids=False)
    assert_bits_equal(rows, expected)
    (wanted,) = gradients(expected, grad, table)
    assert_bits_equal(gradients(rows, grad, part)[0], of_rows(wanted, rank, size))


def check_dtypes_and_digits(rank: int, size: int) -> None:
    for case in CASES:
        for i, dtype in enumerate(FLOATS):
            other = FLOATS[(i + 1) % 3]
            operands = drawn(2, 3, 21, dtype=dtype), drawn(13, 21, dtype=other), drawn(13, dtype=FLOATS[(i + 2) % 3])
            for digits in (None, 2 + i) if size <= FEW else (2 + i,):
                case(rank, size, *operands, drawn(2, 3, 13, dtype=dtype), digits=digits)


def check_shapes(rank: int, size: int) -> None:
    """Parts of one element and of none, one row, no row, no leading dimension, no bias, strides."""
    for case in CASES:
        sizes = ((3,), 8, 8), ((3,), 1, 1), ((), 5, 6), ((1, 2), 3, 17), ((2, 0), 4, 5), ((2,), 3, 0), ((2,), 0, 3)
        for lead, width, vocab in sizes:
            case(rank, size, drawn(*lead, width), drawn(vocab, width), None, drawn(*lead, vocab))
        case(rank, size, drawn(9, 4).T, drawn(9, 11).T, drawn(22)[::2], drawn(11, 4).T)


def check_exponents_of_the_whole(rank: int, size: int) -> None:
    """One part far larger than the others, in the weight, in hidden and in the upstream gradient."""
    for case in CASES:
        for large in range(3):
            hidden, weight, grad = drawn(4, 16), drawn(16, 16), drawn(4, 16)
            (hidden, weight, grad)[large][:, 13] *= 2.0**20
            weight[2] *= 2.0**30
            case(rank, size, hidden, weight, None, grad)
            if size <= FEW:
                case(rank, size, hidden * 2.0**-120, weight * 2.0**-100, None, grad * 2.0**-120)


def check_non_finite_rows_of_one_shard(rank: int, size: int) -> None:
    for case in CASES:
        for place, value in enumerate(("nan", "inf", "-inf")):
            hidden, weight, grad = drawn(4, 8), drawn(8, 8), drawn(4, 8)
            (hidden, weight, grad)[place][1, 7] = float(value)
            case(rank, size, hidden, weight, drawn(8), grad)


def check_several_blocks(rank: int, size: int) -> None:
    """More logits than are made at a time, and more sums of hidden's gradient."""
    if size > FEW:
        return
    for case in CASES:
        case(rank, size, drawn(520, 5), drawn(270, 5), drawn(270), drawn(520, 270))
    vocab_case(rank, size, drawn(1100, 130), drawn(5, 130), None, drawn(1100, 5))


def check_the_contract(rank: int, size: int) -> None:
    hidden, weight, bias = drawn(5, 12).bfloat16(), drawn(11, 12), drawn(11).half()
    grad = drawn(5, 11).bfloat16()
    arrays = [as_numpy(x) for x in (hidden, weight, bias)]
    logits = contract.lm_head(*arrays)
    grads = contract.lm_head_grads(as_numpy(grad), arrays[0], arrays[1], np.dtype(np.float16))
    assert logits.dtype == ml_dtypes.bfloat16
    rows, columns = slice(*shard_range(11, size, rank)), slice(*shard_range(12, size, rank))
    part = leaf(hidden), leaf(weight[rows]), leaf(bias[rows])
    found = rlk_torch.sharded_lm_head(*part, vocab=11, gather=True)
    assert_bits_equal(found, logits)
    same(gradients(found, grad, *part), (grads[0], grads[1][rows], grads[2][rows]), "gradient")
    part = leaf(hidden[:, columns]), leaf(weight[:, columns]), leaf(bias)
    found = rlk_torch.row_parallel_lm_head(*part)
    assert_bits_equal(found, logits)
    same(gradients(found, grad, *part), (grads[0][:, columns], grads[1][:, columns], grads[2]), "gradient")
    found = rlk_torch.row_parallel_lm_head_fp32(*part)
    assert_bits_equal(found, contract.lm_head_fp32(*arrays))


def check_an_aligned_shard(rank: int, size: int) -> None:
    hidden, weight, grad = leaf(drawn(3, 9)), drawn(13, 9), drawn(3, 13)
    expected = rlk_torch.lm_head_fp32(hidden, rlk_torch.align(weight, 3), digits=3)
    part = rlk_torch.align(of_rows(weight, rank, size), 3)
    logits = rlk_torch.sharded_lm_head_fp32(hidden, part, vocab=13, gather=True, digits=3)
    assert_bits_equal(logits, expected)
    assert_bits_equal(gradients(logits, grad, hidden)[0], gradients(expected, grad, hidden)[0])


def check_dtensors(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = init_device_mesh(torch.device(ranks.DEVICE).type, (size,))
    hidden, weight, bias, grad = leaf(drawn(3, 9)), leaf(drawn(13, 9)), leaf(drawn(13)), drawn(3, 13)
    expected = rlk_torch.lm_head(hidden, weight, bias)
    wanted = gradients(expected, grad, hidden, weight, bias)
    ids = ids_of([0, 12, 12])
    rows, columns = (distribute_tensor(weight.detach(), mesh, [Shard(dim)]).requires_grad_() for dim in (0, 1))
    offsets = distribute_tensor(bias.detach(), mesh, [Shard(0)]).requires_grad_()
    logits = rlk_torch.sharded_lm_head(hidden, rows, offsets, vocab=None, gather=True)
    assert_bits_equal(logits, expected)
    found = gradients(logits, grad, hidden, rows, offsets)
    assert all(isinstance(x, DTensor) and x.placements == (Shard(0),) for x in found[1:])
    same([found[0], *(x.full_tensor() for x in found[1:])], wanted, "gradient")
    logits = rlk_torch.row_parallel_lm_head(of_columns(hidden, rank, size), columns, bias)
    assert type(logits) is Tensor
    assert_bits_equal(logits, expected)
    assert_bits_equal(gradients(logits, grad, columns)[0].full_tensor(), wanted[1])
    found = rlk_torch.sharded_embedding(ids, rows, 13)
    assert type(found) is Tensor
    assert_bits_equal(found, rlk_torch.embedding(ids, weight))


def check_a_group_of_some_ranks(rank: int, size: int) -> None:
    members = list(range(size // 2, size))
    group = dist.new_group(members)
    weight = drawn(7, 3)
    if rank in members:
        part = of_rows(weight, members.index(rank), len(members))
        rows = rlk_torch.sharded_embedding([6, 0], part, 7, group=group)
        assert_bits_equal(rows, weight[[6, 0]])


def check_results_may_be_written_into(rank: int, size: int) -> None:
    weight, hidden = drawn(7, 3).bfloat16(), leaf(drawn(3))
    part, columns = leaf(of_rows(weight, rank, size)), of_columns(weight, rank, size)
    for result in (
        rlk_torch.sharded_embedding(ids_of([1]), part, 7),
        rlk_torch.sharded_embedding_fp32(ids_of([1]), part, 7),
        rlk_torch.sharded_lm_head(hidden, part, vocab=7),
        rlk_torch.sharded_lm_head(hidden, part, vocab=7, gather=True),
        rlk_torch.row_parallel_lm_head(leaf(of_columns(hidden, rank, size)), columns),
    ):
        assert result.requires_grad
        result.mul_(2)


def check_without_comparing_calls(rank: int, size: int) -> None:
    hidden, weight = drawn(2, 6), drawn(7, 6)
    part = of_rows(weight, rank, size)
    rows = rlk_torch.sharded_embedding([6, 0], part, 7, check_shapes=False)
    assert_bits_equal(rows, weight[[6, 0]])
    logits = rlk_torch.sharded_lm_head(hidden, part, vocab=7, gather=True, check_shapes=False)
    assert_bits_equal(logits, rlk_torch.lm_head(hidden, weight))
    parts = of_columns(hidden, rank, size), of_columns(weight, rank, size)
    logits = rlk_torch.row_parallel_lm_head(*parts, check_shapes=False)
    assert_bits_equal(logits, rlk_torch.lm_head(hidden, weight))
