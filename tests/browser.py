"""A headless Chromium of its own, which tests ask over a pipe, in the DevTools protocol."""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13}
LIMIT = 60.0  # seconds for an answer
# The browser reads commands from descriptor 3 and answers on 4.
LAUNCHER = "import os, sys; [os.dup2(int(sys.argv[i]), i + 2) for i in (1, 2)]; os.execvp(sys.argv[3], sys.argv[3:])"


def chromium() -> str:
    """The program. Without one a test is skipped, with the reason; in CI it fails."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = f"no browser: expected one of {', '.join(NAMES)}, as in apt-get install chromium"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    assert found is not None
    return found


class Browser:
    """One process with an empty profile; a context manager."""

    def __init__(self) -> None:
        program = chromium()
        self.profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        commands, self.commands = map(_high, os.pipe())
        self.answers, answers = map(_high, os.pipe())
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(commands), str(answers), program, *FLAGS,
             f"--user-data-dir={self.profile.name}", "about:blank"],
            pass_fds=(commands, answers), start_new_session=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self.number, self.unread, self.events = 0, b"", []  # type: ignore[var-annotated]

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *exception: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.profile.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result; what happens meanwhile goes to `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser gave no answer within {LIMIT:g} s"
            part = os.read(self.answers, 2**20)
            assert part, f"the browser ended, with exit code {self.process.wait()}"
            self.unread += part
        line, _, self.unread = self.unread.partition(b"\0")
        return json.loads(line)

    def page(
        self,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
        fragment: str = "",
    ) -> "Page":
        """The file, loaded in a window of this size by somebody who wants it dark or not, and runs scripts or not."""
        page = Page(self)
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.load(f"{path.as_uri()}{fragment}")
        return page


class Page:
    """A loaded page, and everything that it asked for or complained of."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def load(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + LIMIT
        while self.evaluate("document.readyState + location.href") != f"complete{url}":
            assert time.monotonic() < deadline, f"{url} was not loaded within {LIMIT:g} s"
        # A fragment is scrolled to after the page has been laid out.
        self.call("Page.captureScreenshot")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript, awaited; what it throws fails the test."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def events(self, *methods: str) -> list[dict[str, Any]]:
        own = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in own if event["method"] in methods]

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def _high(descriptor: int) -> int:
    """The descriptor under a number that is out of the way of the browser's own two."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
