"""The gradients of a call: the upstream gradient that is drawn for it, and the gradients that the contract gives.

An upstream gradient has the shape and the dtype of the operator's result, and depends on the case's id alone, as
its inputs do. It is kept among the inputs, by the name "grad".
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck import contract
from crosscheck.calls import Call, named_digits
from crosscheck.cases import Inputs
from crosscheck.operators import result_shape, wanted

__all__ = ["Gradients", "contract_gradients", "part_of", "result_shape", "upstream", "wanted"]

Array = NDArray[Any]
Gradients = dict[str, Array]  # by the name of the argument

WHOLE = 2**22  # elements; of a larger weight a part takes part in the gradients
MOST_ROWS = 512


def upstream(op: str, inputs: Inputs, seed: int) -> Array:
    """The gradient of the result: exponents mixed, an outlier, a zero row, two equal rows, subnormals, NaN and inf.

    What is special stays out of as many rows as there are few of: NaN and infinity take whole gradients with them,
    and of a whole weight's through a log-probability: there, none are drawn.
    """
    of_logprobs, linear = "target_ids" in inputs, "target_ids" in inputs and "weight" in inputs
    shape = (*result_shape(inputs), 1) if of_logprobs else result_shape(inputs)
    dtype = result_dtype(op, inputs)
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
    if len(x) >= 8 and not linear:
        x[6, rng.integers(shape[-1])] = np.nan
        x[7, rng.integers(shape[-1])] = -np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype).reshape(result_shape(inputs))


def result_dtype(op: str, inputs: Inputs) -> np.dtype[Any]:
    if op.endswith(("_fp32", "logprob")):
        return np.dtype(np.float32)
    return (inputs["hidden"] if "hidden" in inputs else inputs["weight"]).dtype


def contract_gradients(inputs: Inputs, grad: Array, digits: int | None) -> Gradients:
    """Sections 6 and 7: the gradient of each argument that has one, in its shape. Bad ids add nothing.

    Arguments:
        digits: of the call: the gradient of a log-probability goes through logits.
    """
    if "logits" in inputs:
        of_logits = contract.selected_logprob_grad(inputs["logits"], inputs["target_ids"], grad, check_ids=False)
        return {"logits": of_logits}
    weight = inputs["weight"]
    if "token_ids" in inputs:
        return {"weight": contract.embedding_grad(inputs["token_ids"], grad, len(weight), weight.dtype)}
    hidden, bias = inputs["hidden"], inputs.get("bias")
    count = int(np.prod(hidden.shape[:-1]))
    if "target_ids" in inputs:
        logits = contract.lm_head_fp32(hidden, weight, bias, **named_digits(digits))
        grad = contract.selected_logprob_grad(logits, inputs["target_ids"], grad, check_ids=False)
    of_hidden, of_weight, of_bias = contract.lm_head_grads(
        grad.reshape(count, len(weight)),
        hidden.reshape(count, hidden.shape[-1]),
        weight,
        None if bias is None else bias.dtype,
    )
    found = {"hidden": of_hidden.reshape(hidden.shape), "weight": of_weight, "bias": of_bias}
    return {name: gradient for name in wanted(inputs) if (gradient := found[name]) is not None}


def part_of(inputs: Inputs) -> tuple[Inputs, str]:
    """What takes part in the gradients, since they are as large as the weight; in words where that is not all.

    Of a large LM head the first rows, with targets among them; of a large table the rows that the ids name, with the
    ids renumbered; of many logits the first rows.
    """
    if "logits" in inputs:
        return _some_logits(inputs)
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
    call = Call(inputs)
    part = {name: array[:most] for name, array in inputs.items() if name in ("weight", "bias")}
    said = f"the first {most} of {len(weight)} rows of the LM head"
    if (count := len(call.rows)) > MOST_ROWS:
        inputs = call.with_rows(call.rows[:MOST_ROWS])
        said = f"{said} and the first {MOST_ROWS} of {count} hidden rows"
    if "target_ids" in inputs:
        targets = inputs["target_ids"]
        part["target_ids"] = (targets.astype(np.int64) % most).astype(targets.dtype)
        said = f"{said}, with targets among them"
    return {**inputs, **part}, said


def _some_logits(inputs: Inputs) -> tuple[Inputs, str]:
    logits = inputs["logits"]
    if logits.size <= WHOLE:
        return inputs, ""
    call, most = Call(inputs), max(1, WHOLE // logits.shape[-1])
    return call.with_rows(call.rows[:most]), f"the first {most} of {len(call.rows)} rows of logits"
