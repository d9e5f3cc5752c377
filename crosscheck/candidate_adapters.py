"""Adapters whose operator is a candidate: a user's own function, in PyTorch or JAX.

The function is called with the arguments of `crosscheck.operators.positional`, such as hidden states and the weight.
By name it gets `bias`, `digits` and `check_ids`, those of them that its signature has and that the call has; where
there is no signature to read, as of a builtin, a bias comes last. What a candidate has not is `NotOffered`, and no
failure of its own.

The candidate's module is imported here, in the candidate's process, after its framework.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from crosscheck.arrays import a_kind
from crosscheck.backends import Call, own_digits, unchecked
from crosscheck.jax_adapter import JaxAdapter
from crosscheck.operators import positional, wanted
from crosscheck.torch_adapter import TorchAdapter
from crosscheck.trial import Parts
from crosscheck.verdict import NotOffered, in_one_line

__all__ = ["BY_NAME", "LAST", "Candidate", "JaxCandidate", "TorchCandidate", "load", "named_by"]

LAST = "bias as the last"  # among what a candidate takes
BY_NAME = ("bias", "digits", "check_ids")
Function = Callable[..., Any]


def named_by(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Those of BY_NAME that a function takes; None where it has no signature to read."""
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):  # a builtin
        return None
    everything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return tuple(name for name in BY_NAME if everything or name in parameters)


def load(target: str) -> Function:
    """The callable "module:function"; modules of the current directory are found.

    Raises:
        ValueError: the reason why there is none, in words.
    """
    module, _, path = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path[:1]:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever the module does when it is imported
        raise ValueError(f"{module} cannot be imported: {in_one_line(error)}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"{module} has no {path}")
        found = getattr(found, name)
    if not callable(found):
        raise ValueError(f"{target} is {a_kind(found)}; expected a function")
    function: Function = found
    return function


class Candidate:
    """What the two adapters share. Each is a framework's adapter as well, which does what is not said here."""

    function: Function
    adapter: Any  # TorchAdapter or JaxAdapter, which are called with this object

    def __init__(self, device: str, threads: int, target: str) -> None:
        self.adapter.__init__(self, device, threads)
        self.target = target
        self.named: tuple[str, ...] = ()
        self.bias_last = False
        self.differentiable: set[tuple[Any, ...]] = set()

    def available(self) -> str | None:
        return self.adapter.available(self) or self.take()

    def run(self, op: str, inputs: Call, digits: int | None, mode: str) -> Any:
        self.refuse(inputs)
        run = self.adapter.run
        return _or_eagerly(lambda mode: run(self, op, inputs, digits, mode), mode, "it")

    def run_parts(self, op: str, inputs: Call, digits: int | None, mode: str, parts: Parts) -> Any:
        raise NotOffered("it has no form that takes parts")

    def gradients(self, op: str, inputs: Call, grad: Any, digits: int | None, mode: str) -> Call:
        """Once for each kind of call it is found out whether there are gradients at all."""
        self.refuse(inputs)
        kind = (op, *inputs)
        if kind not in self.differentiable:
            self.differentiate(op, inputs, unchecked(op, digits))
            self.differentiable.add(kind)
        gradients = self.adapter.gradients
        found: Call = _or_eagerly(
            lambda mode: gradients(self, op, inputs, grad, digits, mode),
            mode,
            "its gradient",
        )
        return found

    def differentiate(self, op: str, inputs: Call, options: Call) -> None:
        """Raise `NotOffered` where the function has no gradients."""
        raise NotImplementedError

    def take(self) -> str | None:
        """Import the function; the reason where that cannot be done."""
        try:
            self.function = load(self.target)
        except ValueError as error:
            return str(error)
        named = named_by(self.function)
        self.bias_last, self.named = named is None, named or ()
        return None

    @property
    def takes(self) -> tuple[str, ...]:
        """What it is called with beside the first arguments: those of BY_NAME that it has, or LAST."""
        return (LAST,) if self.bias_last else self.named

    def called(self, op: str) -> Function:
        """The function as an operator: arguments by name, of which it gets what it accepts."""
        function, named, bias_last = self.function, self.named, self.bias_last

        def call(**arguments: Any) -> Any:
            tensors = [arguments[name] for name in positional(arguments)]
            if bias_last and "bias" in arguments:
                tensors.append(arguments["bias"])
            return function(*tensors, **{name: arguments[name] for name in named if name in arguments})

        return call

    def implementation(self, op: str, inputs: Call | None = None, digits: int | None = None) -> str:
        return self.target

    def uncompared(self, op: str, inputs: Call, digits: int | None) -> str | None:
        """Why its bits cannot be held against the contract's: it cannot be told the case's digits."""
        own = own_digits(op, inputs)
        if digits in (None, own) or "digits" in self.named:
            return None
        return f"it takes no digits, and the case has {digits} in place of the operator's own choice, {own}"

    def refuse(self, inputs: Call) -> None:
        if "bias" in inputs and not self.bias_last and "bias" not in self.named:
            raise NotOffered("it takes no bias")


def _or_eagerly(call: Callable[[str], Any], mode: str, what: str) -> Any:
    """The call in its mode; where that fails and eager code does not, what cannot be done is to compile."""
    if mode == "eager":
        return call(mode)
    try:
        return call(mode)
    except NotOffered:
        raise
    except Exception as error:
        call("eager")
        raise NotOffered(f"{what} cannot be compiled: {in_one_line(error)}") from error


class TorchCandidate(Candidate, TorchAdapter):
    adapter = TorchAdapter

    def operator(self, op: str) -> Function:
        return self.called(op)

    def differentiate(self, op: str, inputs: Call, options: Call) -> None:
        import torch

        names = wanted(inputs)
        leaves = {name: x.detach().clone().requires_grad_(name in names) for name, x in inputs.items()}
        try:
            result = self.operator(op)(**leaves, **options)
        except Exception as error:
            raise NotOffered(f"no gradients: with arguments that require them, {in_one_line(error)}") from error
        if not result.requires_grad:
            raise NotOffered("no gradients: its result does not require any")
        try:
            found = torch.autograd.grad(
                result, [leaves[name] for name in names], torch.zeros_like(result), allow_unused=True
            )
        except NotImplementedError as error:
            raise NotOffered(f"no gradients: {in_one_line(error)}") from error
        missing = [name for name, gradient in zip(names, found, strict=True) if gradient is None]
        if missing:
            raise NotOffered(f"no gradient of {' and of '.join(missing)}")


class JaxCandidate(Candidate, JaxAdapter):
    adapter = JaxAdapter

    def operator(self, op: str) -> Function:
        """Ids come as JAX arrays: those of 64 bits are narrowed where JAX is not in 64-bit mode."""
        call = self.called(op)

        def on_device(**arguments: Any) -> Any:
            return call(**{name: self._put(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()})

        return on_device

    def differentiate(self, op: str, inputs: Call, options: Call) -> None:
        """Without computing anything: whether JAX knows how."""
        import jax

        some = {name: inputs[name] for name in wanted(inputs)}
        others = {name: x for name, x in inputs.items() if name not in some}
        operator = self.operator(op)
        try:
            jax.eval_shape(lambda some: jax.vjp(lambda some: operator(**others, **some, **options), some)[0], some)
        except Exception as error:
            raise NotOffered(f"no gradients: {in_one_line(error)}") from error
