"""Headless Chromium, driven over the WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.process import Process, accepts_connections, free_port, wait_until

# Chromium's sandbox does not work as root, and a container has little shared memory.
_ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--force-device-scale-factor=1"]
_CAPABILITIES = {
    "browserName": "chrome",
    "goog:chromeOptions": {"args": _ARGUMENTS},
    "goog:loggingPrefs": {"browser": "ALL"},
}
ENTER, TAB = "\ue007", "\ue004"


class Browser:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        session = self._call("POST", "/session", capabilities={"alwaysMatch": _CAPABILITIES})
        self._session = f"/session/{session['sessionId']}"

    def _call(self, method: str, path: str, **parameters: Any) -> Any:
        self._connection.request(method, path, json.dumps(parameters) if method == "POST" else None)
        response = json.load(self._connection.getresponse())["value"]
        assert not (isinstance(response, dict) and "error" in response), response
        return response

    def post(self, command: str, **parameters: Any) -> Any:
        return self._call("POST", f"{self._session}/{command}", **parameters)

    def close(self) -> None:
        self._call("DELETE", self._session)
        self._connection.close()

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script, and return its result, or the value of a promise that it returns."""
        return self.post("execute/sync", script=script, args=arguments)

    def open(self, url: str) -> None:
        self.post("url", url=url)
        self.wait_for("!document.querySelector('main').hidden")

    def wait_for(self, condition: str) -> None:
        script = """
            return new Promise((fulfilled, rejected) => {
                const look = () => (%s) ? fulfilled() : requestAnimationFrame(look);
                setTimeout(() => rejected(document.documentElement.innerText), 20000);
                look();
            });"""
        self.run(script % condition)

    def press(self, keys: str) -> None:
        """Press keys one by one in the focused element."""
        presses = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.post("actions", actions=[{"type": "key", "id": "keyboard", "actions": presses}])

    def console_errors(self) -> list[str]:
        """Return the errors, and the violations of the Content-Security-Policy, since the last call."""
        return [entry["message"] for entry in self.post("se/log", type="browser")]


@contextmanager
def browsing() -> Iterator[Browser]:
    # With --port=0, chromedriver picks a free IPv6 port, and exits if the same IPv4 port is in use.
    port = free_port()
    with Process(["chromedriver", f"--port={port}"], cwd=Path(), env=dict(os.environ)):
        wait_until(lambda: accepts_connections(port))
        browser = Browser(port)
        yield browser
        browser.close()
