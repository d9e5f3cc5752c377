"""The pytest plugin: cases and backends as fixtures, a marker for GPU tests, differences in words.

docs/pytest.md shows its use. pytest imports this module in every run where crosscheck is installed, so what it needs of
crosscheck is imported where a test or an option asks for it, and no framework ever.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from crosscheck.pytest_backends import BackendPool, CallableBackend
    from crosscheck.pytest_cases import DrawnCase

MARKERS = (
    "crosscheck(op=None, filter='*', golden=None): which cases crosscheck_case has: of an operator or of several, with "
    "ids that match, of a golden in place of the suite",
    "crosscheck_gpu: needs a CUDA device; skipped, with the reason, where there is none",
)
SUITES = ("default", "full")
OF_MARKER = ("op", "filter", "golden")
_GPU = pytest.StashKey[str | None]()


# Options -----------------------------------------------------------------------------------------------
def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("crosscheck", "crosscheck: bits across frameworks")
    options = (
        ("backends", "NAMES", "Backends for crosscheck_backend, with commas (numpy)."),
        ("suite", "SUITE", "The cases of crosscheck_case: default or full."),
        ("filter", "GLOB", "Only cases of crosscheck_case whose id matches."),
    )
    for name, metavar, text in options:
        group.addoption(f"--crosscheck-{name}", metavar=metavar, help=text)
        parser.addini(f"crosscheck_{name}", text, default="")
    text = "Tests marked crosscheck_gpu fail where there is no CUDA device."
    group.addoption("--crosscheck-require-gpu", action="store_true", help=text)
    parser.addini("crosscheck_require_gpu", text, type="bool", default=False)


def _said(config: pytest.Config, name: str, otherwise: str) -> str:
    """An option as it was typed, or as the ini file has it."""
    typed = config.getoption(f"crosscheck_{name}")
    return str(config.getini(f"crosscheck_{name}") or otherwise if typed is None else typed)


def _backend_names(config: pytest.Config) -> list[str]:
    return [name.strip() for name in _said(config, "backends", "numpy").split(",")]


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    suite, names = _said(config, "suite", "default"), _backend_names(config)
    if suite not in SUITES:
        raise pytest.UsageError(f"--crosscheck-suite is {suite!r}; expected one of {', '.join(SUITES)}")
    if names != ["numpy"]:
        _check_backends(names)
    if (pattern := _said(config, "filter", "*")) != "*":
        from crosscheck.pytest_cases import suite_cases

        if not suite_cases(suite, pattern):
            raise pytest.UsageError(
                f"--crosscheck-filter: no case of the {suite} suite matches {pattern!r}; crosscheck run --list shows "
                "the ids"
            )


def _check_backends(names: list[str]) -> None:
    from crosscheck.registry import BACKENDS

    for name in names:
        if name not in BACKENDS:
            raise pytest.UsageError(f"--crosscheck-backends names {name!r}; expected some of {', '.join(BACKENDS)}")
        if names.count(name) > 1:
            raise pytest.UsageError(f"--crosscheck-backends names {name} twice; expected each once")


# Cases and backends ------------------------------------------------------------------------------------
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "crosscheck_case" in metafunc.fixturenames:
        cases = _cases(metafunc)
        metafunc.parametrize("crosscheck_case", cases, indirect=True)
    if "crosscheck_backend" in metafunc.fixturenames:
        metafunc.parametrize("crosscheck_backend", _backend_names(metafunc.config), indirect=True)


def _cases(metafunc: pytest.Metafunc) -> list[Any]:
    """Parameters; where the options leave none of a test's cases, one that is skipped."""
    from crosscheck.pytest_cases import NoSuchCase, cases_of

    chosen: dict[str, Any] = {}
    for marker in metafunc.definition.iter_markers("crosscheck"):  # the closest first
        unknown = [*map(repr, marker.args), *(name for name in marker.kwargs if name not in OF_MARKER)]
        if unknown:
            pytest.fail(
                f"the marker crosscheck has {unknown[0]}; expected {', '.join(OF_MARKER)} by name", pytrace=False
            )
        chosen = {**marker.kwargs, **chosen}
    config, wrong = metafunc.config, ""
    pattern = _said(config, "filter", "*")
    try:
        cases = cases_of(_said(config, "suite", "default"), config.rootpath, pattern, **chosen)
    except NoSuchCase as error:
        cases, wrong = [], str(error)
    if wrong:
        pytest.fail(f"nothing compared in {metafunc.definition.nodeid}: {wrong}", pytrace=False)
    if not cases:
        reason = f"not run: no case of this test matches --crosscheck-filter {pattern!r}"
        return [pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(case, id=case.id) for case in cases]


@pytest.fixture
def crosscheck_case(request: pytest.FixtureRequest) -> "DrawnCase":
    """A built-in case, or one of a golden: `id`, `op`, `digits`, `options`, `inputs`, `arrays()` and `expected()`."""
    case: DrawnCase = _parameter(request).drawn()
    return case


@pytest.fixture
def crosscheck_backend(request: pytest.FixtureRequest, _crosscheck_pool: "BackendPool") -> "CallableBackend":
    """A backend of --crosscheck-backends in a process of its own: called with a case, it gives its result in NumPy.

    A backend that cannot run here is an error of the test.
    """
    from crosscheck.runner import BackendMissing

    try:
        return _crosscheck_pool.backend(_parameter(request))
    except BackendMissing as error:
        missing = str(error)
    pytest.fail(f"{missing}; --crosscheck-backends asks for it", pytrace=False)


def _parameter(request: pytest.FixtureRequest) -> Any:
    if not hasattr(request, "param"):
        name = request.fixturename
        pytest.fail(
            f"{name} is asked for by getfixturevalue; expected it among the arguments of the test", pytrace=False
        )
    return request.param


@pytest.fixture(scope="session")
def _crosscheck_pool(pytestconfig: pytest.Config) -> Iterator["BackendPool"]:
    from crosscheck.pytest_backends import BackendPool

    pool = BackendPool(_backend_names(pytestconfig))
    yield pool
    pool.close()


# GPU ---------------------------------------------------------------------------------------------------
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Whether there is a GPU is asked once, when the first test needs one. pytest itself then skips by the mark."""
    if item.get_closest_marker("crosscheck_gpu") is None:
        return
    config = item.config
    if _GPU not in config.stash:
        from crosscheck.gpu_probe import missing_gpu

        config.stash[_GPU] = missing_gpu()
    reason = config.stash[_GPU]
    if reason is None:
        return
    if config.getoption("crosscheck_require_gpu") or config.getini("crosscheck_require_gpu"):
        pytest.fail(f"{reason}, and --crosscheck-require-gpu asks for one", pytrace=False)
    item.add_marker(pytest.mark.skip(reason=f"not run: {reason}"))


# Words -------------------------------------------------------------------------------------------------
def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """`assert compare(a, b) is None` fails with the sentence of the difference."""
    bits = sys.modules.get("crosscheck.bits")
    if bits is not None and right is None and op in ("is", "==") and isinstance(left, bits.Difference):
        return [f"the bits differ: {left.describe()}"]
    return None
