"""The documentation is true: its examples run, its links lead somewhere, its API table is the API."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from plugin_runs import in_subprocess

import crosscheck
import rlk_jax
import rlk_torch

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_EXAMPLES = [README, ROOT / "docs" / "chex.md", ROOT / "docs" / "pytest.md"]


def blocks(page: Path) -> dict[str, str]:
    """The Python blocks of a page by the page and the line that they begin in."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return {f"{page.name} line {text[: match.start()].count(chr(10)) + 2}": match[1] for match in found}


EXAMPLES = [
    pytest.param(block, id=place)
    for page in WITH_EXAMPLES
    for place, block in blocks(page).items()
    if "def test_" not in block
]
ONLY_IN_JAX = {"pad_vocab"}
MODULES = [
    module.name
    for package in (crosscheck, rlk_jax, rlk_torch)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_runs(example):
    exec(compile(example, "example", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_can_fail(example):
    assert "assert" in example


def test_the_tests_on_the_page_about_pytest_pass(pytester):
    """Those on the page about chex are tests/test_chex.py's."""
    tests = [block for block in blocks(ROOT / "docs" / "pytest.md").values() if "def test_" in block]
    result = in_subprocess(pytester, "\n".join(tests))
    assert set(result.parseoutcomes()) == {"passed"}


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
    assert listed - functions == (set() if package is rlk_jax else ONLY_IN_JAX)
    assert functions.issubset(listed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_make_targets_exist(page):
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^\$ |`)make (\w+)", page.read_text(), re.MULTILINE)) <= targets


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in PAGES if page.name != "index.md" and page.name not in index] == []
