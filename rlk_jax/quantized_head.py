"""The LM head of a quantized table: that of its float32 rows, which exist a block at a time at most.

The twin is rlk_torch/quantized_head.py.
"""

from typing import Any

from rlk_jax.checks import check_digits, check_lm_head, check_same_device
from rlk_jax.quantized import QuantizedTable, constant, unchecked


def weight_of_call(hidden: Any, weight: QuantizedTable, bias: Any, digits: int) -> QuantizedTable:
    """The weight of a call whose arguments were checked, a constant whose gradient is refused.

    The operator is that of lm_head.py, which takes rows of a table for a block of its weight.
    """
    check_digits(digits)
    check_lm_head(hidden, weight.shape, bias)
    check_same_device(weight.values, hidden=hidden, bias=bias)
    return unchecked(*constant(weight.values, weight.scale))
