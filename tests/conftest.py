"""What all tests share: strict promotion in JAX, the GPU skip, a header of versions, a real model."""

import os
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distributions, version

import hypothesis
import pytest
from pages import browser, opened, reports, seen  # noqa: F401 (fixtures)
from real_model import MiniLM, installed_model

pytest_plugins = ["pytester"]
if not any(entry.value == "crosscheck.pytest_plugin" for found in distributions() for entry in found.entry_points):
    # The checkout is on the path and not installed, so pytest has not found its plugin.
    pytest_plugins.append("crosscheck.pytest_plugin")

# Two workers share two cores, so no test has a deadline; in CI the examples are the same in every run.
hypothesis.settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("default")


def _installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} not installed"


@cache
def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_report_header() -> list[str]:
    packages = ("numpy", "ml_dtypes", "torch", "jax", "jaxlib", "chex", "safetensors")
    variables = sorted(name for name in os.environ if name.startswith(("JAX_", "XLA_", "TORCH", "OPENBLAS_", "MKL_")))
    return [
        "frameworks: " + ", ".join(map(_installed, packages)),
        "environment: " + (" ".join(f"{name}={os.environ[name]}" for name in variables) or "no framework variable set"),
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not _has_cuda():
            item.add_marker(pytest.mark.skip(reason="not run: no CUDA device"))
    # Workers take what is last from each other; most of this file's time goes into compilations that its tests share.
    items.sort(key=lambda item: item.path.name != "test_vectors.py")


@pytest.fixture(scope="session", autouse=True)
def strict_promotion() -> Iterator[None]:
    """An accidental float64 or broadcast in JAX code is an error, in the product as in the tests."""
    import jax

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="session")
def minilm() -> MiniLM:
    return installed_model()
