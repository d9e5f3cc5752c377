"""The gradients of a call: the upstream gradient that is drawn for it, and the gradients that the contract gives.

An upstream gradient has the shape and the dtype of the operator's result, and depends on the case's id alone, as
its inputs do. It is kept among the inputs, by the name "grad".
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck import contract
from crosscheck.cases import Inputs

__all__ = ["Gradients", "contract_gradients", "part_of", "result_shape", "upstream", "wanted"]

Array = NDArray[Any]
Gradients = dict[str, Array]  # by the name of the argument

WHOLE = 2**22  # elements; of a larger weight a part takes part in the gradients
MOST_ROWS = 512


def wanted(inputs: Mapping[str, Any]) -> list[str]:
    """The arguments that have a gradient: all but the ids and the upstream gradient itself."""
    return [name for name in inputs if name not in ("token_ids", "grad")]


def result_shape(inputs: Inputs) -> tuple[int, ...]:
    if "token_ids" in inputs:
        return (*inputs["token_ids"].shape, inputs["weight"].shape[1])
    return (*inputs["hidden"].shape[:-1], inputs["weight"].shape[0])


def upstream(op: str, inputs: Inputs, seed: int) -> Array:
    """The gradient of the result: exponents mixed, an outlier, a zero row, two equal rows, subnormals, NaN and inf.

    What is special stays out of as many rows as there are few of: NaN and infinity take whole gradients with them.
    """
    shape = result_shape(inputs)
    dtype = np.dtype(np.float32) if op.endswith("_fp32") else inputs.get("hidden", inputs["weight"]).dtype
    rng = np.random.default_rng([seed, 3])
    x = rng.standard_normal((int(np.prod(shape[:-1])), shape[-1]), dtype=np.float32)
    if x.size:
        x = np.ldexp(x, rng.integers(-8, 5, x.shape)).astype(np.float32)
        x[0, rng.integers(shape[-1])] = 5000
    if len(x) >= 3:
        x[1] = 0
        x[1, ::2] = -0.0
        x[2] = x[0]
    if len(x) >= 8:
        x[5, ::3] = 1e-40  # subnormal in bfloat16 and float32, 0 in float16
        x[6, rng.integers(shape[-1])] = np.nan
        x[7, rng.integers(shape[-1])] = -np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype).reshape(shape)


def contract_gradients(inputs: Inputs, grad: Array) -> Gradients:
    """Section 6: the gradient of each argument that has one, in the argument's shape. Bad ids add nothing."""
    weight = inputs["weight"]
    if "token_ids" in inputs:
        return {"weight": contract.embedding_grad(inputs["token_ids"], grad, len(weight), weight.dtype)}
    hidden, bias = inputs["hidden"], inputs.get("bias")
    count = int(np.prod(hidden.shape[:-1]))
    of_hidden, of_weight, of_bias = contract.lm_head_grads(
        grad.reshape(count, len(weight)),
        hidden.reshape(count, hidden.shape[-1]),
        weight,
        None if bias is None else bias.dtype,
    )
    gradients = {"hidden": of_hidden.reshape(hidden.shape), "weight": of_weight}
    return gradients if of_bias is None else {**gradients, "bias": of_bias}


def part_of(inputs: Inputs) -> tuple[Inputs, str]:
    """What takes part in the gradients, since they are as large as the weight; in words where that is not all.

    Of a large LM head the first rows; of a large table the rows that the ids name, with the ids renumbered.
    """
    weight = inputs["weight"]
    if weight.size <= WHOLE:
        return inputs, ""
    most = max(1, WHOLE // weight.shape[1])
    if "token_ids" in inputs:
        ids = inputs["token_ids"]
        first = ids.reshape(-1)[:most] if ids.size > most else ids
        named, renumbered = np.unique(first, return_inverse=True)
        taken = "the ids name" if ids.size <= most else f"the first {most} ids name"
        part = {"token_ids": renumbered.reshape(first.shape).astype(ids.dtype), "weight": weight[named.astype(int)]}
        return part, f"a table of the {len(named)} of its {len(weight)} rows that {taken}"
    hidden = inputs["hidden"]
    rows = hidden.reshape(int(np.prod(hidden.shape[:-1])), hidden.shape[-1])
    part = {name: array[:most] for name, array in inputs.items() if name in ("weight", "bias")}
    said = f"the first {most} of {len(weight)} rows of the LM head"
    if len(rows) > MOST_ROWS:
        hidden, said = rows[:MOST_ROWS], f"{said} and the first {MOST_ROWS} of {len(rows)} hidden rows"
    return {"hidden": hidden, **part}, said
