"""rlk_torch and rlk_jax are one library twice: the same modules, names, signatures and documentation."""

import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest
from processes import run_alone

import rlk_jax
import rlk_torch

KERNEL = re.compile(r"_(triton|pallas)$")  # what only one of the frameworks has
# Autograd finds through it what is to be refused; JAX needs no such thread from an array to its origin.
ONLY_IN_TORCH = {"origin"}


def modules(package: Any) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(package.__path__) if not KERNEL.search(module.name)]


def signature(function: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters if p.name not in ONLY_IN_TORCH]


def headings(function: Any) -> list[str]:
    return re.findall(r"^    (\w+):$", function.__doc__, re.MULTILINE)


def documented(function: Any, heading: str) -> list[str]:
    """The names under a heading, in order."""
    section = re.search(rf"^    {heading}:\n((?:        .*\n)+)", function.__doc__, re.MULTILINE)
    return re.findall(r"^        (\w[\w, ]*):", section[1], re.MULTILINE) if section else []


FUNCTIONS = [name for name in rlk_torch.__all__ if inspect.isfunction(getattr(rlk_torch, name))]
CLASSES = [name for name in rlk_torch.__all__ if inspect.isclass(getattr(rlk_torch, name))]
PAIRS = [pytest.param(getattr(rlk_torch, name), getattr(rlk_jax, name, None), id=name) for name in FUNCTIONS]


def qualified(function: Any) -> str:
    return f"{function.__module__}.{function.__name__}"


def members(cls: Any) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")} - ONLY_IN_TORCH


def test_the_same_modules():
    assert modules(rlk_torch) == modules(rlk_jax)


def test_the_same_public_names():
    assert rlk_torch.__all__ == rlk_jax.__all__


@pytest.mark.parametrize(("ours", "twin"), PAIRS)
def test_the_same_signature(ours, twin):
    assert signature(ours) == signature(twin)


@pytest.mark.parametrize(("ours", "twin"), PAIRS)
def test_the_same_summary(ours, twin):
    assert ours.__doc__.splitlines()[0] == twin.__doc__.splitlines()[0]


@pytest.mark.parametrize("function", [value for pair in PAIRS for value in pair.values], ids=qualified)
def test_the_four_headings(function):
    assert headings(function) == ["Arguments", "Returns", "Raises", "Example"]


@pytest.mark.parametrize("function", [value for pair in PAIRS for value in pair.values], ids=qualified)
def test_every_argument_is_documented_in_order(function):
    assert documented(function, "Arguments") == [name for name, _, _ in signature(function)]


@pytest.mark.parametrize(("ours", "twin"), PAIRS)
def test_the_same_errors_are_documented(ours, twin):
    assert documented(ours, "Raises") == documented(twin, "Raises")


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_same_members(name):
    assert members(getattr(rlk_torch, name)) == members(getattr(rlk_jax, name))


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_made_of_the_same_fields(name):
    assert signature(getattr(rlk_torch, name)) == signature(getattr(rlk_jax, name))


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, m) for name in CLASSES for m in members(getattr(rlk_torch, name)) | {"__call__"}
     if inspect.isfunction(getattr(getattr(rlk_torch, name), m, None))],
)  # fmt: skip
def test_a_method_has_the_same_signature(name, method):
    assert signature(getattr(getattr(rlk_torch, name), method)) == signature(getattr(getattr(rlk_jax, name), method))


@pytest.mark.parametrize("name", ["embedding", "lm_head"])
@pytest.mark.parametrize("path", ["forward", "forward_fp32"])
@pytest.mark.parametrize("package", [rlk_torch, rlk_jax], ids=lambda package: package.__name__)
def test_an_operator_takes_what_its_function_takes(package, path, name):
    function = getattr(package, name + path.removeprefix("forward"))
    assert signature(getattr(package.get_op(name), path)) == signature(function)


@pytest.mark.parametrize("package", [rlk_torch, rlk_jax], ids=lambda package: package.__name__)
@pytest.mark.parametrize("name", modules(rlk_torch))
def test_a_module_names_its_twin(package, name):
    other = "rlk_jax" if package is rlk_torch else "rlk_torch"
    module = importlib.import_module(f"{package.__name__}.{name}")
    assert f"The twin is {other}/{name}.py" in str(module.__doc__)


@pytest.mark.parametrize(
    ("package", "forbidden"), [(rlk_torch, "jax rlk_jax crosscheck"), (rlk_jax, "torch rlk_torch crosscheck")]
)
def test_no_module_imports_the_other_framework(package, forbidden):
    every = ", ".join(f"{package.__name__}.{name}" for name in modules(package))
    loaded = run_alone(f"import sys, {every}; print(*sorted(set('{forbidden}'.split()) & set(sys.modules)))")
    assert loaded.split() == []
