"""A headless Chromium that the page tests drive over its debugging pipe."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli_support import PROGRAMS

# ---- the browser

_NO_BROWSER = "AMPCHECK_NO_BROWSER"
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
)


class Browser:
    """One Chromium page. `problems`: each uncaught exception, console error and failed or foreign load since `open`."""

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        launch = [sys.executable, "-c", PROGRAMS["report-launch"], str(theirs_in), str(theirs_out)]
        self._process = subprocess.Popen(
            [*launch, program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out = os.fdopen(ours_out, "wb", buffering=0)
        self._in = os.fdopen(ours_in, "rb", buffering=0)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.problems: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self._out.close()
        self._in.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a page from disk and wait until its scripts have run."""
        self.send("Page.navigate", url="about:blank")  # so that a new fragment alone is a new load too
        self.problems = []
        self._loaded = False
        self.send("Page.navigate", url=page.as_uri() + (f"#{fragment}" if fragment else ""))
        deadline = time.monotonic() + 60
        while self.evaluate("document.readyState + location.protocol") != "completefile:":
            if time.monotonic() > deadline:
                raise TimeoutError(f"{page} did not load in a minute")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is awaited."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def text(self, selector: str = "main") -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def show(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        phone = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], text=text
            )

    def fill(self, name: str, value: str) -> None:
        self.evaluate(
            f"{{ const f = document.forms[0].elements[{json.dumps(name)}]; f.value = {json.dumps(value)};"
            " f.dispatchEvent(new Event('input', {bubbles: true})); }"
        )

    def texts(self, selector: str) -> list[str]:
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(n => n.innerText)")

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = self._in.read(1 << 16)
            if not chunk:
                raise RuntimeError("chromium ended while it was driven")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.problems.append(f"console.{about['type']}: {about['args']}")
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"log: {about['entry']}")
            case "Network.requestWillBeSent":
                url = about["request"]["url"]
                if not url.startswith(("file:", "data:", "about:")):
                    self.problems.append(f"loads {url}")


def chromium() -> str:
    """The browser's program. Without one the page tests fail, unless AMPCHECK_NO_BROWSER=1 says that none is wanted."""
    if os.environ.get(_NO_BROWSER) == "1":
        pytest.skip(f"{_NO_BROWSER}=1: pages are not opened in a browser")
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if program := shutil.which(name):
            return program
    pytest.fail(f"no chromium was found, and pages are tested in a real one; {_NO_BROWSER}=1 leaves them out", False)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(chromium(), tmp_path_factory.mktemp("chromium"))
    try:
        yield found
    finally:
        found.close()
