"""A call of this project's packages from parts of its arguments, in one process, as devices would hold them.

The parts are those that `rlk_torch.shard_range` gives: equal ones, the last of them shorter or empty.
"""

from typing import Any

from crosscheck.trial import Parts
from crosscheck.verdict import NotOffered

__all__ = ["of_parts"]


def of_parts(package: Any, op: str, inputs: dict[str, Any], options: dict[str, int], parts: Parts) -> Any:
    """
    Arguments:
        package: rlk_torch or rlk_jax.
        inputs: the framework's arrays by name.
        options: the digits, where the call has them.
        parts: "vocab" or "hidden", and how many.
    """
    what, count = parts
    if what == "hidden" and "hidden" in inputs:
        head = "lm_head_of_parts" + ("" if op == "lm_head" else "_fp32")
        divided = (_parts(inputs[name], count) for name in ("hidden", "weight"))
        logits = getattr(package, head)(*divided, inputs.get("bias"), **options)
        return logits if op.startswith("lm_head") else package.selected_logprob(logits, inputs["target_ids"])
    if what == "vocab" and "target_ids" in inputs:
        return package.selected_logprob_of_parts(_logits(package, inputs, options, count), inputs["target_ids"])
    raise NotOffered(f"{op} has no form that takes parts of the {what}")


def _parts(x: Any, count: int) -> list[Any]:
    """Of the last axis."""
    size = -(-x.shape[-1] // count)
    return [x[..., i * size : (i + 1) * size] for i in range(count)]


def _logits(package: Any, inputs: dict[str, Any], options: dict[str, int], count: int) -> list[Any]:
    if "logits" in inputs:
        return _parts(inputs["logits"], count)
    size, bias = -(-inputs["weight"].shape[0] // count), inputs.get("bias")
    at = [slice(i * size, (i + 1) * size) for i in range(count)]
    return [
        package.lm_head_fp32(inputs["hidden"], inputs["weight"][part], None if bias is None else bias[part], **options)
        for part in at
    ]
