"""The text of a script that makes a shrunk failure again: it loads the inputs, makes the calls, and compares.

It needs the framework and crosscheck's `assert_bits_equal` alone, so that it can be read, changed and passed on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crosscheck.calls import Call
from crosscheck.candidate_adapters import LAST
from crosscheck.cases import Inputs
from crosscheck.failing import Failing, bad_id
from crosscheck.invariance import Trial
from crosscheck.operators import IDS, positional, result_shape, wanted
from crosscheck.reproducer_places import Places, matched

__all__ = ["CALL", "Target", "script"]

CALL = "call"  # the untransformed call
_STORED = {
    "transposed": "x.mT.contiguous().mT",
    "strided": "torch.stack([x, torch.zeros_like(x)], -1).flatten(-2)[..., ::2]",
    "expanded": "x[:1].expand(x.shape)",
    "unaligned": "torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)",
}


@dataclass(frozen=True)
class Target:
    """What a script calls.

    Arguments:
        who: a name for messages.
        framework: "torch" or "jax".
        function: "module:function".
        device: "cpu" or "cuda".
        compiled: whether to compile it.
        takes: the arguments that it is given by name, where a call has them; or LAST.
        digits: of the call.
    """

    who: str
    framework: str
    function: str
    device: str
    compiled: bool
    takes: tuple[str, ...]
    digits: int | None


def script(
    target: Target, failing: Failing, inputs: Inputs, shrunk: str, trial: Trial[Any] | None, files: Sequence[str]
) -> str:
    """
    Arguments:
        inputs: of the call.
        shrunk: their sizes, in words.
        trial: the transform, where one fails.
        files: for each call of the trial, the name of the file that has its arrays; of CALL where they are the same.
    """
    text = _Text(target, failing, inputs)
    files = files if trial is not None else ()
    names = ["again" if file == CALL else file for file in files]  # of variables
    loads = {CALL: CALL, **dict(zip(names, files, strict=True))}
    loading = [f"{name} = {text.load(file)}" for name, file in loads.items()]
    body: list[str] = []
    if trial is not None:
        body += [line for name in loads if name != CALL for line in text.stored(name, trial.layout)]
    compares = trial is not None and not failing.error
    body += text.compared(trial, names) if trial is not None and compares else text.alone(names)
    return "\n".join(text.opening(shrunk, loading, [*text.preparing(), *body])) + "\n"


class _Text:
    def __init__(self, target: Target, failing: Failing, inputs: Inputs) -> None:
        self.target, self.failing, self.inputs = target, failing, inputs
        self.torch = target.framework == "torch"
        self.module, _, self.path = target.function.partition(":")
        self.device = ', device="cuda"' if self.torch and target.device == "cuda" else ""
        self.options = [f"{name}={value}" for name, value in self._options().items() if name in target.takes]
        self.function = "compiled" if target.compiled else self.path

    def _options(self) -> dict[str, Any]:
        unread = self.failing.gradients and any(name in self.inputs for name in IDS)
        digits = {} if self.target.digits is None else {"digits": self.target.digits}
        return {**({"check_ids": False} if unread else {}), **digits}

    # Before the calls ----------------------------------------------------------------------------------
    def opening(self, shrunk: str, loading: Sequence[str], body: Sequence[str]) -> Iterator[str]:
        """The script of this body, for which the files are loaded first."""
        yield f'"""{self.target.who}: {self.failing.title}; {shrunk}.'
        yield ""
        yield "Exit code 1 while that is so, 0 when it is mended, 2 where it cannot be tried. Run it where its imports"
        yield "are found, for example in the folder of a module."
        yield '"""'
        yield ""
        yield from ["import sys", "from pathlib import Path", ""]
        yield "try:"
        yield from (f"    {line}" if line else "" for line in [*self._imports(body), *loading])
        yield "except Exception as error:  # none of this is what fails"
        remedy = "run it where its imports are found, with its files beside it"
        yield f'    print(f"not tried: {{type(error).__name__}}: {{error}}; {remedy}", file=sys.stderr)'
        yield "    sys.exit(2)"
        yield ""
        yield from body

    def _imports(self, body: Sequence[str]) -> Iterator[str]:
        """The function's comes last, since a module in the folder may have the name of another."""
        on_cpu = not self.torch and self.target.device == "cpu"
        config = ['jax.config.update("jax_platforms", "cpu")'] if on_cpu else []
        names = {"torch": "import torch"} if self.torch else {"jax": "import jax", "jnp": "import jax.numpy as jnp"}
        yield from (line for name, line in names.items() if any(f"{name}." in line for line in [*config, *body]))
        yield f"from safetensors.{'torch' if self.torch else 'flax'} import load_file"
        yield ""
        yield "from crosscheck import assert_bits_equal"
        yield ""
        yield 'sys.path.insert(0, "")'
        yield f"from {self.module} import {self.path.partition('.')[0]}"
        yield ""
        yield from config
        yield "here = Path(__file__).parent"

    def preparing(self) -> Iterator[str]:
        if self.target.compiled:
            yield f"compiled = {self._compiled()}"
        if self.failing.gradients:
            yield from self._gradients()

    def _compiled(self) -> str:
        if self.torch:
            return f"torch.compile({self.path}, dynamic=True, fullgraph=True)"
        static = [option.partition("=")[0] for option in self.options]
        return f"jax.jit({self.path}{f', static_argnames={static}' if static else ''})"

    def load(self, file: str) -> str:
        """Tensors lie anywhere in a file, and results of libraries depend on addresses: each gets its own memory."""
        loaded = f'load_file(here / "{file}.safetensors"{self.device})'
        return f"{{name: x.clone() for name, x in {loaded}.items()}}" if self.torch else loaded

    def stored(self, name: str, layout: Mapping[str, str]) -> Iterator[str]:
        """The arguments as the transform stores them; arrays of JAX have no strides."""
        for argument, how in layout.items() if self.torch else ():
            place = f'{name}["inputs.{argument}"]'
            yield f"x = {place}"
            yield f"{place} = {_STORED[how]}  # {how}"

    # Calls ---------------------------------------------------------------------------------------------
    def call(self, name: str) -> str:
        """The function on the arrays of a file."""
        return self._called({argument: f'{name}["inputs.{argument}"]' for argument in self.inputs})

    def _called(self, arguments: Mapping[str, str]) -> str:
        given = [arguments[name] for name in positional(arguments)]
        if "bias" in arguments:
            given.append(arguments["bias"] if LAST in self.target.takes else f"bias={arguments['bias']}")
        return f"{self.function}({', '.join([*given, *self.options])})"

    def _gradients(self) -> Iterator[str]:
        names = wanted(self.inputs)
        others = {name: f'call["inputs.{name}"]' for name in self.inputs if name not in names}
        called = self._called({**others, **{name: name for name in names}})
        yield from ["", "", "def gradients(call):"]
        listed = ", ".join(f'call["inputs.{name}"]' for name in names)
        yield f"    arguments = [{listed}]"
        if self.torch:
            yield f"    {', '.join(names)}{',' * (len(names) == 1)} = (x.requires_grad_() for x in arguments)"
            yield f'    return torch.autograd.grad({called}, arguments, call["inputs.grad"])'
        else:
            yield f"    _, pullback = jax.vjp(lambda {', '.join(names)}: {called}, *arguments)"
            yield '    return pullback(call["inputs.grad"])'
        yield from ["", ""]

    def result(self, name: str, inputs: Inputs) -> str:
        """What is compared of a call, as a matrix, or a vector."""
        if self.failing.gradients:
            argument = self.failing.argument
            found, shape = f"gradients({name})[{wanted(self.inputs).index(argument)}]", inputs[argument].shape
        else:
            found, shape = self.call(name), result_shape(inputs)
        if not self.failing.gradients and "target_ids" in inputs:
            return f"{found}.reshape(-1, 1)"  # one value a row
        flat = len(shape) != 2 and self.failing.argument != "bias"
        return f"{found}.reshape(-1, {shape[-1]})" if flat else found

    # What is shown -------------------------------------------------------------------------------------
    def compared(self, trial: Trial[Any], names: Sequence[str]) -> Iterator[str]:
        """The transformed calls with the untransformed one."""
        copied = ".clone()" if self.torch else ""  # the second call may write into what the first one gave
        yield f"expected = {self.result(CALL, self.inputs)}{copied}"
        for one in matched(trial, self.inputs, self.failing.argument):
            variable = "actual" if len(trial.calls) == 1 else f"actual_{one.call + 1}"
            yield f"{variable} = {self.result(names[one.call], trial.calls[one.call])}"
            actual, expected = self._at(variable, one.actual), self._at("expected", one.expected)
            yield f'assert_bits_equal({actual}, {expected}, context="{self.target.who}: {trial.name}")'

    def _at(self, variable: str, places: Places) -> str:
        rows, columns = self._index(places.rows, places.shape[0]), self._index(places.columns, places.shape[1])
        if columns:
            return f"{variable}[{rows or ':'}][:, {columns}]"
        return f"{variable}[{rows}]" if rows else variable

    def _index(self, places: Sequence[int], count: int) -> str:
        if places == tuple(range(count)):
            return ""
        if places == tuple(range(places[0], places[-1] + 1)):
            return f"{places[0]}:{places[-1] + 1}"
        return str(list(places)) if self.torch else f"jnp.array({list(places)})"

    def alone(self, names: Sequence[str]) -> Iterator[str]:
        """What needs no second result to be compared with."""
        failing, who = self.failing, self.target.who
        if failing.error:  # the call itself, or the transformed one
            for name in names or [CALL]:
                yield f"gradients({name})" if failing.gradients else self.call(name)
        elif failing.kind == "bad-id":
            yield from self._bad_id()
        elif failing.kind == "arguments":
            yield f"gradients({CALL})" if failing.gradients else self.call(CALL)
            place = f'["inputs.{failing.argument}"]'
            yield f"before = {self.load(CALL)}"
            yield f'assert_bits_equal({CALL}{place}, before{place}, context="{who}: {failing.argument} after the call")'
        else:
            what = f"grad.{failing.argument}" if failing.gradients else "result"
            call = self.failing.gradients and f"gradients({CALL})[{wanted(self.inputs).index(failing.argument)}]"
            yield f"actual = {call or self.call(CALL)}"
            yield f'assert_bits_equal(actual, {CALL}["outputs.{what}"], context="{who} and the contract")'

    def _bad_id(self) -> Iterator[str]:
        call = Call(self.inputs)
        bad, ids = bad_id(self.failing, self.inputs), f'{CALL}["inputs.{call.ids}"]'
        if self.torch:
            yield f"{ids} = {ids}.flatten()"
            yield f"{ids}[-1] = {bad}  # the vocab has {call.vocab} rows"
        else:
            yield f"{ids} = {ids}.flatten().at[-1].set({bad})  # the vocab has {call.vocab} rows"
        yield "try:"
        yield f"    row = {self.call(CALL)}[-1]"
        yield "except Exception as refusal:  # an error is right, and so is a row of NaN"
        yield '    print(f"refused: {refusal}")'
        yield "else:"
        nan = "torch.full_like(row, torch.nan)" if self.torch else "jnp.full_like(row, jnp.nan)"
        yield f'    assert_bits_equal(row, {nan}, context="{self.target.who}: a row for the id {bad}")'
