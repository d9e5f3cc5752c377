"""Text of a report: sentences on a verdict, and characters from outside that no page can show."""

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["printable", "printable_tree", "sentences"]

# Controls but tab and line ends, surrogates, what XML has no place for, and marks that turn the direction of the text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    r"""Characters that XML cannot hold, or that hide what a text says, as Python escapes.

    Example:
        >>> print(printable("a\x1b[31m red\udc80 word"))
        a\x1b[31m red\udc80 word
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def printable_tree(value: Any) -> Any:
    """`printable` in every text of a JSON tree, names included."""
    if isinstance(value, dict):
        return {printable(name): printable_tree(member) for name, member in value.items()}
    if isinstance(value, list):
        return [printable_tree(member) for member in value]
    return printable(value) if isinstance(value, str) else value


def sentences(verdict: Mapping[str, Any]) -> list[str]:
    """Why a verdict of the JSON report is not equal: what happened, then every trial that failed."""
    said = [] if verdict["status"] == "judged" else [f"{verdict['status']}: {verdict['message']}"]
    for name, check in verdict["checks"].items():
        said += [f"{name}, {failure['trial']}: {failure['text']}" for failure in check["failed"]]
    if verdict["tolerance"] is not None and verdict["accuracy"] is not None:
        error = float(verdict["accuracy"]["max_scaled_ulp"])
        if not error <= verdict["tolerance"]:
            limit = f"tolerated are {verdict['tolerance']:g}"
            said.append(f"accuracy: {error:.3g} ULP of the logit's scale from the exact answer; {limit}")
    return said
