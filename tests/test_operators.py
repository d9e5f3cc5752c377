"""The custom operators of rlk_torch are what torch expects: pure, traceable with any sizes, and exportable."""

from typing import Any

import pytest
import torch
from frameworks import BFLOAT16, TORCH
from torch import Tensor

import rlk_torch
from crosscheck.bits import assert_bits_equal
from rlk_torch.alignment import _align
from rlk_torch.embedding import _embedding
from rlk_torch.embedding_grad import _table_gradient
from rlk_torch.host_rows import _host_rows
from rlk_torch.lm_head import _lm_head, _lm_head_aligned
from rlk_torch.lm_head_grad import _aligned_hidden_gradient, _bias_gradient, _hidden_gradient, _weight_gradient
from rlk_torch.quantized import dequantize
from rlk_torch.quantized_alignment import aligned_parts
from rlk_torch.quantized_head import _hidden_gradient as _quantized_hidden_gradient
from rlk_torch.quantized_head import _lm_head_quantized
from rlk_torch.quantized_rows import _rows


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def wanted(*shape: int) -> Tensor:
    return normal(*shape).requires_grad_()


WEIGHT = normal(5, 7, seed=1)
ALIGNED = rlk_torch.align(WEIGHT, 3)
PARTS = (ALIGNED.planes, ALIGNED.exponent, ALIGNED.nonfinite, ALIGNED.origin)
TABLE = normal(4, 3).bfloat16()
IDS = torch.tensor([[1, 0], [3, 1]])
QUANTIZED = (torch.arange(12, dtype=torch.int8).view(4, 3), normal(4))
CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "align": (_align, (normal(4, 7), 3)),
    "align a transposed matrix": (_align, (normal(7, 4).T, 2)),
    "align nothing": (_align, (normal(0, 7), 4)),
    "lm_head": (_lm_head, (normal(2, 3, 7), WEIGHT, normal(5), 4, torch.float32, "")),
    "lm_head of float16": (_lm_head, (normal(3, 7).half(), WEIGHT.bfloat16(), None, 2, torch.float16, "float64")),
    "lm_head of no rows": (_lm_head, (normal(0, 7), WEIGHT, None, 3, torch.float32, "int8")),
    "lm_head of a vector": (_lm_head, (normal(7), WEIGHT, None, 3, torch.float32, "")),
    "lm_head of an Aligned": (_lm_head_aligned, (normal(3, 7), *PARTS, normal(5), torch.bfloat16, "")),
    "embedding": (_embedding, (torch.tensor([[1, 0], [3, 2]]), TABLE, True, False, "", -1)),
    "embedding of a scalar id": (_embedding, (torch.tensor(1, dtype=torch.uint8), TABLE, True, True, "", 0)),
    "lm_head with a gradient": (_lm_head, (wanted(2, 3, 7), wanted(5, 7), wanted(5), 4, torch.float32, "")),
    "lm_head of an Aligned with a gradient": (
        _lm_head_aligned,
        (wanted(3, 7), *PARTS, wanted(5), torch.bfloat16, ""),
    ),
    "embedding with a gradient": (_embedding, (torch.tensor([[1, 0], [3, 1]]), wanted(4, 3), True, False, "", 0)),
    "gradient of hidden": (_hidden_gradient, (normal(2, 3, 5), WEIGHT, torch.bfloat16, "")),
    "gradient of hidden of an Aligned": (
        _aligned_hidden_gradient,
        (normal(3, 5), *PARTS[:3], 7, torch.float32, "float64"),
    ),
    "gradient of weight": (_weight_gradient, (normal(2, 3, 5), normal(2, 3, 7), torch.float16, "")),
    "gradient of bias": (_bias_gradient, (normal(2, 3, 5), torch.float32)),
    "gradient of a table": (
        _table_gradient,
        (normal(2, 2, 3), torch.tensor([[1, 0], [3, 1]]), 4, torch.bfloat16, 0, ""),
    ),
    "embedding of no ids": (_embedding, (torch.zeros(2, 0, dtype=torch.int32), TABLE, True, True, "", 0)),
    "embedding, scaled": (_embedding, (IDS, TABLE, True, False, "", -1, 0.5)),
    "embedding, scaled, with a gradient": (_embedding, (IDS, wanted(4, 3), True, False, "", 0, 0.5)),
    "gradient of a table, scaled": (_table_gradient, (normal(2, 2, 3), IDS, 4, torch.bfloat16, 0, "", 0.5)),
    "embedding in host memory": (_host_rows, (IDS, TABLE, True, True, None)),
    "embedding of a quantized table": (_rows, (IDS, *QUANTIZED, True, torch.bfloat16, 0.5)),
    "dequantize": (dequantize, (*QUANTIZED, torch.float16)),
    "align a quantized table": (aligned_parts, (*QUANTIZED, 3)),
    "lm_head of a quantized table": (
        _lm_head_quantized,
        (wanted(2, 3), *QUANTIZED, wanted(4), 3, torch.bfloat16, ""),
    ),
    "gradient of hidden of a quantized table": (
        _quantized_hidden_gradient,
        (normal(2, 3, 4), *QUANTIZED, torch.float32, ""),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_opcheck(call):
    operator, args = CALLS[call]
    torch.library.opcheck(operator, args)


class Model(torch.nn.Module):
    """Tied: the table is the LM head."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(WEIGHT.bfloat16(), requires_grad=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        hidden = rlk_torch.embedding(token_ids, self.weight)
        return rlk_torch.lm_head(hidden, rlk_torch.align(self.weight, 3))


@pytest.mark.parametrize("strict", [False, True], ids=["traced", "compiled"])
def test_export_for_any_number_of_ids(strict):
    model = Model()
    example, other = torch.tensor([0, 4, 1]), torch.tensor([3, 3, 0, 1, 2])
    sizes = ({0: torch.export.Dim("tokens")},)
    exported = torch.export.export(model, (example,), dynamic_shapes=sizes, strict=strict).module()
    assert_bits_equal(exported(other), model(other))


def test_an_exported_model_cannot_read_ids():
    exported = torch.export.export(Model(), (torch.tensor([0, 4]),)).module()
    poisoned = exported(torch.tensor([0, 5]))
    expected = TORCH.run(
        "lm_head", TORCH.run("embedding", [0, 5], WEIGHT.bfloat16(), check_ids=False), WEIGHT.bfloat16()
    )
    assert expected.dtype == BFLOAT16
    assert_bits_equal(poisoned, expected)


def test_one_compilation_serves_many_sizes():
    compilations = []

    def counting(graph: Any, inputs: Any) -> Any:
        compilations.append(graph)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(rlk_torch.lm_head, backend=counting, dynamic=True, fullgraph=True)
    for rows in (3, 5, 17, 256):
        compiled(normal(rows, 7), WEIGHT)
    assert len(compilations) == 1
