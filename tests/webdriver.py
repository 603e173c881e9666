"""A headless Chromium that tests can click in, by the WebDriver protocol of chromedriver."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

DRIVER = shutil.which("chromedriver")
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    "--hide-scrollbars",
    # nothing but this machine can be reached
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Browser:
    """A browser with one page. `run` executes the body of a JavaScript function."""

    def __init__(self, driver: str) -> None:
        self._driver, self._session = driver, ""

    def call(self, method: str, path: str, **body: Any) -> Any:
        data = json.dumps(body).encode() if method == "POST" else None
        url = f"{self._driver}{self._session}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def start(self, size: tuple[int, int]) -> None:
        arguments = [*ARGUMENTS, f"--window-size={size[0]},{size[1]}"]
        wanted = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = f"/session/{self.call('POST', '/session', capabilities={'alwaysMatch': wanted})['sessionId']}"

    def open(self, url: str) -> None:
        self.call("POST", "/url", url=url)

    def run(self, script: str) -> Any:
        return self.call("POST", "/execute/sync", script=script, args=[])

    def wait(self, script: str, seconds: float = 60) -> Any:
        """The first true result of the script."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := self.run(script):
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{script}\n{self.run('return document.body.innerText')}")

    def stroke(self, points: Sequence[tuple[int, int]]) -> None:
        """Presses the mouse at the first point, moves it over the others, and releases it."""
        moves = [{"type": "pointerMove", "duration": 20, "x": x, "y": y} for x, y in points]
        steps = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}]
        self.call("POST", "/actions", actions=[{"type": "pointer", "id": "mouse", "actions": steps}])

    def upload(self, selector: str, path: str) -> None:
        """Gives a file to an input element."""
        (element,) = self.call("POST", "/element", using="css selector", value=selector).values()
        self.call("POST", f"/element/{element}/value", text=path)

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("GET", "/screenshot"))

    def complaints(self) -> list[str]:
        """Warnings and errors of the console since the last call."""
        log = self.call("POST", "/se/log", type="browser")
        return [line["message"] for line in log if line["level"] in ("WARNING", "SEVERE")]

    def requests_elsewhere(self, address: str) -> list[str]:
        """What the page has loaded that is not below the address."""
        names = self.run("return performance.getEntriesByType('resource').map((one) => one.name)")
        return [name for name in names if not name.startswith((address, "data:", "blob:"))]


@contextmanager
def browser(size: tuple[int, int] = (1400, 1000)) -> Iterator[Browser]:
    """A browser that is closed at the end."""
    assert DRIVER is not None
    port = free_port()
    with subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        one = Browser(f"http://127.0.0.1:{port}")
        try:
            for _ in range(200):
                try:
                    one.call("GET", "/status")
                    break
                except OSError:
                    time.sleep(0.05)
            one.start(size)
            yield one
            one.call("DELETE", "")
        finally:
            process.terminate()
