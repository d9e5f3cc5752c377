"""Programs that need a process of their own: flags read at start, devices, what is imported."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def run_alone(program: str, **environment: str) -> str:
    """What the program prints; it can import the tests, and its warnings are errors."""
    __tracebackhide__ = True
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
