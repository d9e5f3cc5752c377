"""What the sharded operators share: the rows of a shard, and the integers that ranks exchange.

Sharding changes who adds up integers, nothing else: largest magnitudes, sums of integer words and the bits of rows pass
between ranks, never a float. The twin is rlk_jax/sharded.py.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._functorch import TransformType, is_legacy_batchedtensor
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from rlk_torch.floats import bits_of
from rlk_torch.products import LONGEST_WHOLE


def shard_range(vocab: int, shards: int, index: int) -> tuple[int, int]:
    """The rows of a vocab that one shard holds: equal parts, the last ones shorter or empty.

    Arguments:
        vocab: rows of the whole, V.
        shards: how many there are.
        index: which of them, 0 <= index < shards.

    Returns:
        (start, end): the shard holds the rows start to end - 1, ceil(V / shards) of them but at the end of the vocab,
        as `torch.chunk` and a DTensor's `Shard(0)` divide them.

    Raises:
        TypeError: an argument that is no integer.
        ValueError: a vocab below 0, no shards, or an index outside them.

    Example:
        >>> [shard_range(10, 4, index) for index in range(4)]
        [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    vocab, shards, index = as_vocab(vocab), _integer("shards", shards), _integer("index", index)
    if shards < 1:
        raise ValueError(f"shards is {shards}; expected 1 or more")
    if not 0 <= index < shards:
        raise ValueError(f"index is {index}; expected 0 <= index < {shards}, the shards")
    rows = -(-vocab // shards)
    return min(index * rows, vocab), min((index + 1) * rows, vocab)


def as_vocab(vocab: Any) -> int:
    """The rows of the whole weight, a Python integer."""
    if isinstance(vocab, bool) or not isinstance(vocab, int | np.integer):
        raise TypeError(f"vocab is of type {type(vocab).__name__}; expected an integer, the rows of the whole weight")
    if vocab < 0:
        raise ValueError(f"vocab is {vocab}; expected 0 or more")
    return int(vocab)


def _integer(name: str, x: Any) -> int:
    if isinstance(x, bool) or not isinstance(x, int | np.integer):
        raise TypeError(f"{name} is of type {type(x).__name__}; expected an integer")
    return int(x)


def check_length(name: str, length: int) -> None:
    """The reduction's sums of words stay within 64 bits."""
    if length > LONGEST_WHOLE:
        raise ValueError(f"{name} is {length}; expected at most {LONGEST_WHOLE}, which sums of integers hold")


def refuse_vmap(name: str, grad: Tensor | None = None) -> None:
    """grad: of the result, in a backward that exchanges; is_grads_batched has a vmap of its own."""
    batched = grad is not None and is_legacy_batchedtensor(grad)
    if batched or any(level.key() == TransformType.Vmap for level in retrieve_all_functorch_interpreters()):
        raise NotImplementedError(f"vmap over {name} is not offered: pass more rows in one call")


@dataclass(frozen=True, eq=False)
class Ranks:
    """The processes that hold the shards, each its own: `rlk_torch.products.Shards` for them, and more exchanges.

    Arguments:
        devices: the types of devices whose arrays the group exchanges.
        device: where records of calls lie: on the CPU where that is one of them, so that no GPU is waited for.
        of_mesh: the group is that of a DTensor's mesh.
    """

    group: Any
    rank: int
    size: int
    devices: tuple[str, ...]
    device: Any
    of_mesh: bool

    def largest(self, top: Tensor) -> Tensor:
        """The largest of all ranks' magnitude bits, int32, in place."""
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=self.group)
        return top

    def total(self, words: Tensor) -> Tensor:
        """The sums of all ranks' integers, int64, in place."""
        dist.all_reduce(words, op=dist.ReduceOp.SUM, group=self.group)
        return words

    def unite(self, rows: Tensor) -> None:
        """Rows, contiguous, that one rank has and the others have zeros for: all ranks get them, as integers."""
        if rows.numel() == 0:
            return
        flat = bits_of(rows).view(-1)
        odd = flat.dtype == torch.int16 and len(flat) % 2
        whole = torch.cat((flat, flat.new_zeros(1))) if odd else flat
        # No backend adds up 16 bits; two zeros beside two halves carry nothing over.
        dist.all_reduce(whole.view(torch.int32), op=dist.ReduceOp.SUM, group=self.group)
        if odd:
            flat.copy_(whole[:-1])

    def together(self, part: Tensor, vocab: int) -> Tensor:
        """This rank's columns [..., V_r] and all others' -> [..., V]."""
        whole = part.new_empty((*part.shape[:-1], vocab))
        if whole.numel() == 0:
            return whole
        out, columns = whole.view(-1, vocab), shard_range(vocab, self.size, 0)[1]
        block = part.new_zeros((len(out), columns))  # the same size on every rank
        block[:, : part.shape[-1]] = part.reshape(len(out), part.shape[-1])
        blocks = [torch.empty_like(block) for _ in range(self.size)]
        dist.all_gather([x.view(torch.uint8) for x in blocks], block.view(torch.uint8), group=self.group)
        for rank, x in enumerate(blocks):
            start, end = shard_range(vocab, self.size, rank)
            out[:, start:end] = x[:, : end - start]
        return whole

    def all_records(self, record: list[int]) -> list[list[int]]:
        """Every rank's record."""
        mine = torch.tensor(record, dtype=torch.int64, device=self.device)
        records = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(records, mine, group=self.group)
        return [x.tolist() for x in records]


def ranks_of(group: Any, weight: Any) -> Ranks:
    """The group that is asked for: of a DTensor's mesh, else `torch.distributed`'s own by default."""
    if not dist.is_available():
        raise ValueError("this build of torch has no torch.distributed; expected one that has it: use another build")
    if not dist.is_initialized():
        raise ValueError(
            "there is no process group; expected one of the ranks that hold the shards: "
            "call torch.distributed.init_process_group first"
        )
    of_mesh = is_dtensor(weight)
    if of_mesh:
        if group is not None:
            raise ValueError("weight is a DTensor and group is given; expected no group: a DTensor's mesh has its own")
        if weight.device_mesh.ndim != 1:
            raise ValueError(
                f"weight is a DTensor on a mesh of {weight.device_mesh.ndim} dimensions; expected 1: "
                "pass weight.to_local() and the group of the dimension that shards it"
            )
        group = weight.device_mesh.get_group()
    elif group is dist.GroupMember.NON_GROUP_MEMBER:  # what new_group gives the others
        raise ValueError("this rank is not in group; expected a call on the ranks of the group alone")
    elif group is not None and not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"group is of type {type(group).__name__}; expected a process group of torch.distributed, or None for its "
            "default: of a mesh, pass get_group()"
        )
    backends = dist.get_backend_config(group).split(",")
    devices = tuple(backend.split(":")[0] for backend in backends)
    device, placed = "cpu" if "cpu" in devices else devices[0], getattr(weight, "device", None)
    if placed is not None and placed.type == device:
        device = placed  # which of several
    return Ranks(group, dist.get_rank(group), dist.get_world_size(group), devices, device, of_mesh)


def is_dtensor(x: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # without it there is none
    return module is not None and isinstance(x, module.DTensor)


def local_part(name: str, x: Any, dim: int, ranks: Ranks) -> Any:
    """This rank's part of an array that is sharded along a dimension; the gradient of a DTensor is one."""
    if not is_dtensor(x):
        return x
    if not ranks.of_mesh:
        raise TypeError(f"{name} is a DTensor and weight is none; expected both to be: pass {name}.to_local()")
    (placement,) = x.placements
    if type(placement) is not type(_shard(dim)) or placement.dim != dim:
        raise ValueError(f"{name} is a DTensor placed {placement}; expected Shard({dim}): redistribute it first")
    return x.to_local()


def _shard(dim: int) -> Any:
    from torch.distributed.tensor import Shard

    return Shard(dim)


def check_plain(name: str, x: Any) -> None:
    """What every rank holds whole."""
    if is_dtensor(x):
        raise TypeError(f"{name} is a DTensor; expected a plain array: pass {name}.to_local() or full_tensor()")


def check_device(x: Tensor, ranks: Ranks, name: str = "weight") -> None:
    if x.device.type not in ranks.devices:
        raise ValueError(
            f"{name} is on {x.device} and the group exchanges arrays on {' and '.join(ranks.devices)}; "
            "expected one of them: move the arrays, or pass a group of another backend"
        )


def check_rows(rows: int, vocab: int, ranks: Ranks, name: str = "weight", unit: str = "rows") -> int:
    """The first row, or column, of this rank's shard, whose size is that of `shard_range`."""
    start, end = shard_range(vocab, ranks.size, ranks.rank)
    if rows != end - start:
        raise ValueError(
            f"{name} has {rows} {unit} on rank {ranks.rank} of {ranks.size}; expected {end - start}, the {unit} "
            f"{start} to {end} of {vocab}: divide it as shard_range({vocab}, {ranks.size}, {ranks.rank}) or "
            "torch.chunk do"
        )
    return start


def whole_vocab(vocab: Any, weight: Any) -> int:
    """The vocab that is given; a DTensor knows its own."""
    if not is_dtensor(weight):
        return as_vocab(vocab)
    if vocab is not None and as_vocab(vocab) != weight.shape[0]:
        raise ValueError(
            f"vocab is {vocab} and weight a DTensor of {weight.shape[0]} rows; expected its rows, or vocab=None"
        )
    return int(weight.shape[0])
