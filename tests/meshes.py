"""Checks inside `jax.shard_map`, in a process of its own that has eight virtual CPU devices."""

import importlib
import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from processes import run_alone

VARIABLES = {
    # The programs are many and small: they are compiled faster than well.
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
}


def run_on_meshes(module: str) -> dict[str, str]:
    """What went wrong in the checks of a module, functions `check_...()`, by name: empty where all is well."""
    printed = run_alone(f"import meshes; meshes.main({module!r})", **VARIABLES)
    return json.loads(printed.splitlines()[-1])


def main(name: str) -> None:
    checks = {key: value for key, value in vars(importlib.import_module(name)).items() if key.startswith("check_")}
    found = {}
    for key, check in checks.items():
        try:
            check()
        except BaseException:
            found[key] = traceback.format_exc()
    print(json.dumps(found if checks else {name: "no checks"}))


def mesh_of(size: int, *, axes: str = "x", platform: str | None = None) -> Mesh:
    """A mesh of so many devices, or of so many along each of several axes."""
    shape = (size,) * len(axes)
    return Mesh(np.array(jax.devices(platform)[: size ** len(axes)]).reshape(shape), tuple(axes))


def sharded(function: Callable[..., Any], mesh: Mesh, ins: Any, outs: Any) -> Callable[..., Any]:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=outs))


def with_gradients(function: Callable[..., Any], wanted: Sequence[int]) -> Callable[..., Any]:
    """(upstream gradient, *arguments) -> the result and the gradients of the wanted arguments."""

    def both(upstream: Any, *arguments: Any) -> Any:
        def of_wanted(*some: Any) -> Any:
            every = list(arguments)
            for i, x in zip(wanted, some, strict=True):
                every[i] = x
            return function(*every)

        out, pull = jax.vjp(of_wanted, *(arguments[i] for i in wanted))
        return (out, *pull(upstream))

    return both


def refused(error: type[Exception], text: str, function: Callable[..., Any], *arguments: Any) -> None:
    try:
        jax.jit(function).lower(*arguments)
    except error as raised:
        assert str(raised) == text, f"{raised} is not {text}"
    else:
        raise AssertionError(f"nothing was refused; expected: {text}")


def exchanged(jaxpr: Any) -> Iterator[Any]:
    """What devices exchange in a program, in its order."""
    for equation in jaxpr.eqns:
        if any(word in equation.primitive.name for word in ("psum", "pmax", "pmin", "all_gather", "all_to", "permute")):
            yield from equation.invars
        for inner in jax.tree.leaves(equation.params):
            if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                yield from exchanged(getattr(inner, "jaxpr", inner))
