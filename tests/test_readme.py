"""The documentation is true: its examples run, its links lead somewhere, its API table is the API."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import crosscheck
import rlk_jax
import rlk_torch

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(match[1], id=f"line {README.read_text()[: match.start()].count(chr(10)) + 2}")
    for match in re.finditer(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
]
MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (crosscheck, rlk_jax, rlk_torch)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_runs(example):
    exec(compile(example, str(README), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_can_fail(example):
    assert "assert" in example


@pytest.mark.parametrize("name", MODULES)
def test_the_docstring_examples_run(name):
    if name.endswith("_triton"):
        pytest.importorskip("triton", reason="not run: triton is not installed; it comes with torch for CUDA")
    # By its full name: in a package, the attribute `embedding` is the function, not the module.
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_lead_to_files(page):
    targets = [target for target in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("package", [rlk_jax, rlk_torch], ids=lambda package: package.__name__)
def test_the_api_table_names_the_functions_of_each_package(package):
    listed = set(re.findall(r"^\| `(\w+)\(", README.read_text(), re.MULTILINE))
    functions = {name for name in package.__all__ if not isinstance(getattr(package, name), type)}
    assert listed == functions


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_make_targets_exist(page):
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^\$ |`)make (\w+)", page.read_text(), re.MULTILINE)) <= targets


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in PAGES if page.name != "index.md" and page.name not in index] == []
