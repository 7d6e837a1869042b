"""A headless Chromium, driven through its remote debugging protocol.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.request import Request, urlopen

from websocket import WebSocket, WebSocketTimeoutException, create_connection

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--lang=en-US",
    "--accept-lang=en-US",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)

T = TypeVar("T")

DEADLINE = 20.0
"""Seconds for anything a test waits for."""


class Browser:
    """One browser, as a context manager. Every page has its own cookies and cache."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None, "chromium is missing"
        self._command = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._port_file = profile / "DevToolsActivePort"

    def __enter__(self) -> Self:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=quiet, stderr=quiet, start_new_session=True)
        until(self._port_file.exists, "chromium does not start")
        self._port = until(self._read_port, "chromium tells no port")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The whole session: its helpers would go on writing to the profile for a while.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def page(self) -> Page:
        """A new tab."""
        ask = Request(f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT")
        with urlopen(ask, timeout=DEADLINE) as answer:
            return Page(json.load(answer)["webSocketDebuggerUrl"])

    def _read_port(self) -> str:
        return self._port_file.read_text().partition("\n")[0]


class Page:
    """One tab."""

    def __init__(self, address: str) -> None:
        self._socket: WebSocket = create_connection(address, timeout=DEADLINE)
        self._last = 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command; events that come in between are kept."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._last:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def open(self, address: str) -> None:
        """Go there and wait until everything is loaded that the document names."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        until(lambda: self._heard("Page.loadEventFired"), f"{address} does not load")

    def evaluate(self, script: str) -> Any:
        """The value of an expression, also that of a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The value of an expression as soon as it is true."""
        return until(lambda: self.evaluate(script), f"never true: {script}")

    def text(self, selector: str) -> str:
        """What an element says."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    def rendered(self) -> str:
        """All text that is visible, also without scripts."""
        tree = self.call("DOMSnapshot.captureSnapshot", computedStyles=[])
        shown = tree["documents"][0]["layout"]["text"]
        return " ".join(tree["strings"][index] for index in shown if index >= 0)

    def resize(self, width: int, height: int = 900, *, scale: float = 1) -> None:
        """Be as large as a device."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )

    def prefer(self, **features: str) -> None:
        """What the reader prefers: ``prefer(color_scheme="dark", reduced_motion="reduce")``."""
        wanted = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()
        ]
        self.call("Emulation.setEmulatedMedia", features=wanted)

    def speak(self, locale: str) -> None:
        """Be that of a reader who writes numbers and dates as in ``de-DE``."""
        self.call("Emulation.setLocaleOverride", locale=locale)

    def begin_with(self, script: str) -> None:
        """Run a script in every document before its own."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Pull the mouse from one point to another."""
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def transferred(self) -> int:
        """Bytes received since :meth:`open`, headers and all."""
        return sum(int(one["encodedDataLength"]) for one in self._heard("Network.loadingFinished"))

    def complaints(self) -> list[str]:
        """Errors of scripts and of the content security policy since :meth:`open`."""
        thrown = [one["exceptionDetails"]["text"] for one in self._heard("Runtime.exceptionThrown")]
        said = self._heard("Runtime.consoleAPICalled") + self._heard("Log.entryAdded")
        return thrown + [
            str(one) for one in said if one.get("entry", one).get("level", one.get("type")) == "error"
        ]

    def _heard(self, kind: str) -> list[dict[str, Any]]:
        """What the events of one kind said since :meth:`open`."""
        self._gather()
        return [event["params"] for event in self.events if event.get("method") == kind]

    def _gather(self) -> None:
        """Take in the events that have arrived."""
        self._socket.settimeout(0.05)
        try:
            while True:
                self.events.append(json.loads(self._socket.recv()))
        except (WebSocketTimeoutException, BlockingIOError):
            pass
        finally:
            self._socket.settimeout(DEADLINE)


def until(condition: Callable[[], T], message: str) -> T:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, message
        time.sleep(0.02)
    return value
