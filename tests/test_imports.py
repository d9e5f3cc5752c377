"""No module of crosscheck imports a framework: each backend does so in a process of its own."""

import pkgutil
import subprocess
import sys

import pytest

import crosscheck

FRAMEWORKS = ("jax", "torch", "rlk_jax", "rlk_torch")
MODULES = [module.name for module in pkgutil.walk_packages(crosscheck.__path__, "crosscheck.")]


def frameworks_after(statement: str) -> list[str]:
    """Which of the frameworks are imported after the statement, in a process of its own."""
    program = f"{statement}\nimport sys\nprint(*(name for name in {FRAMEWORKS} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_crosscheck_imports_no_framework():
    assert frameworks_after("import crosscheck") == []


def test_no_module_of_crosscheck_imports_a_framework():
    assert frameworks_after("import " + ", ".join(MODULES)) == []


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_the_check_itself_can_fail(framework):
    assert frameworks_after(f"import crosscheck, {framework}") == [framework]
