"""rlk_torch and rlk_jax are one library twice: the same modules, names, signatures and documentation."""

import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest
import torch
from processes import run_alone

import rlk_jax
import rlk_torch

KERNEL = re.compile(r"_(triton|pallas)$")  # what only one of the frameworks has
# Autograd finds through it what is to be refused; JAX needs no such thread from an array to its origin.
ONLY_IN_TORCH = {"origin"}
# Of the sharded functions. Processes can be called differently, so torch compares their calls; the devices of one JAX
# program cannot. JAX cuts a vocab into equal parts alone, so there it may need padding. torch names the shards by a
# process group, which has a default, JAX by a mesh axis, which has none.
MODULES_ONLY_IN_TORCH = {"sharded_record"}
MODULES_ONLY_IN_JAX = {"words"}  # torch has integers of 64 bits
ARGUMENTS_ONLY_IN_TORCH = {"check_shapes"}
FUNCTIONS_ONLY_IN_JAX = {"pad_vocab"}
SHARDS = {"group", "axis_name"}
# What makes a class a module of torch, or a pytree of JAX.
OF_A_MODULE = set(dir(torch.nn.Module))
OF_A_PYTREE = {"tree_flatten_with_keys", "tree_unflatten"}


def every_module(package: Any) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(package.__path__) if not KERNEL.search(module.name)]


def modules(package: Any) -> list[str]:
    return [name for name in every_module(package) if name not in MODULES_ONLY_IN_TORCH | MODULES_ONLY_IN_JAX]


def signature(function: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    kept = [p for p in parameters if p.name not in ONLY_IN_TORCH | ARGUMENTS_ONLY_IN_TORCH]
    return [("shards", p.kind, None) if p.name in SHARDS else (p.name, p.kind, p.default) for p in kept]


def headings(function: Any) -> list[str]:
    return re.findall(r"^    (\w+):$", function.__doc__, re.MULTILINE)


def documented(function: Any, heading: str) -> list[str]:
    """The names under a heading, in order."""
    section = re.search(rf"^    {heading}:\n((?:        .*\n)+)", function.__doc__, re.MULTILINE)
    return re.findall(r"^        (\w[\w, ]*):", section[1], re.MULTILINE) if section else []


FUNCTIONS = [name for name in rlk_torch.__all__ if inspect.isfunction(getattr(rlk_torch, name))]
CLASSES = [name for name in rlk_torch.__all__ if inspect.isclass(getattr(rlk_torch, name))]
PAIRS = [pytest.param(getattr(rlk_torch, name), getattr(rlk_jax, name, None), id=name) for name in FUNCTIONS]
EVERY_FUNCTION = [value for pair in PAIRS for value in pair.values]
EVERY_FUNCTION += [getattr(rlk_jax, name) for name in FUNCTIONS_ONLY_IN_JAX]


def qualified(function: Any) -> str:
    return f"{function.__module__}.{function.__name__}"


def members(cls: Any) -> set[str]:
    """What a class has itself, but for what it is made of, which a dataclass has and a module has not."""
    of_framework = OF_A_MODULE if issubclass(cls, torch.nn.Module) else OF_A_PYTREE
    made_of = set(inspect.signature(cls).parameters)
    return {name for name in dir(cls) if not name.startswith("_")} - of_framework - made_of


def methods(cls: Any) -> set[str]:
    """Those of a class of torch, whose modules have `forward` for a call."""
    found = {name for name in members(cls) if inspect.isfunction(getattr(cls, name))}
    return found | ({"__call__"} if {"forward", "__call__"} & set(vars(cls)) else set())


def method_of(cls: Any, name: str) -> Any:
    return getattr(cls, "forward" if name == "__call__" and issubclass(cls, torch.nn.Module) else name)


def test_the_same_modules():
    assert modules(rlk_torch) == modules(rlk_jax)


def test_the_same_public_names():
    assert rlk_torch.__all__ == [name for name in rlk_jax.__all__ if name not in FUNCTIONS_ONLY_IN_JAX]


def test_what_one_package_has_alone_is_there():
    assert MODULES_ONLY_IN_TORCH.issubset(set(every_module(rlk_torch)) - set(every_module(rlk_jax)))
    assert FUNCTIONS_ONLY_IN_JAX.issubset(set(rlk_jax.__all__) - set(rlk_torch.__all__))


@pytest.mark.parametrize(("ours", "twin"), [pair for pair in PAIRS if pair.id.startswith(("sharded", "row_parallel"))])
def test_a_sharded_function_names_its_shards_as_its_framework_does(ours, twin):
    torch, jax = (inspect.signature(function).parameters for function in (ours, twin))
    assert torch["group"].default is None and torch["check_shapes"].default is True
    assert jax["axis_name"].default is inspect.Parameter.empty
    assert "axis_name" not in torch and not {"group", "check_shapes"} & set(jax)


@pytest.mark.parametrize(("ours", "twin"), PAIRS)
def test_the_same_signature(ours, twin):
    assert signature(ours) == signature(twin)


@pytest.mark.parametrize(("ours", "twin"), PAIRS)
def test_the_same_summary(ours, twin):
    assert ours.__doc__.splitlines()[0] == twin.__doc__.splitlines()[0]


@pytest.mark.parametrize("function", EVERY_FUNCTION, ids=qualified)
def test_the_four_headings(function):
    assert headings(function) == ["Arguments", "Returns", "Raises", "Example"]


@pytest.mark.parametrize("function", EVERY_FUNCTION, ids=qualified)
def test_every_argument_is_documented_in_order(function):
    assert documented(function, "Arguments") == list(inspect.signature(function).parameters)


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
    ("name", "method"), [(name, method) for name in CLASSES for method in sorted(methods(getattr(rlk_torch, name)))]
)
def test_a_method_has_the_same_signature(name, method):
    ours, twin = (method_of(getattr(package, name), method) for package in (rlk_torch, rlk_jax))
    assert signature(ours) == signature(twin)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_same_documentation(name):
    ours, twin = (getattr(package, name) for package in (rlk_torch, rlk_jax))
    assert documented(ours, "Arguments") == documented(twin, "Arguments")
    assert documented(ours, "Raises") == documented(twin, "Raises")
    assert ours.__doc__.splitlines()[0] == twin.__doc__.splitlines()[0].removesuffix(" A pytree.")


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
