"""Headless Chromium, driven over the WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

import http.client
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.support.process import end, free_port, start

# Chromium's sandbox does not work as root, and a container has little shared memory.
_ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--force-device-scale-factor=1"]
_OPTIONS = {"args": _ARGUMENTS, "perfLoggingPrefs": {"enableNetwork": True}}
_CAPABILITIES = {
    "browserName": "chrome",
    "goog:chromeOptions": _OPTIONS,
    "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
}
ENTER, TAB = "\ue007", "\ue004"


class Browser:
    """One window."""

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

    def requested_hosts(self) -> set[str]:
        """Return the hosts that the pages sent requests to since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.post("se/log", type="performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in urls if not url.startswith("data:")}


@contextmanager
def browsing() -> Iterator[Browser]:
    """Start a browser."""
    # With --port=0, chromedriver picks a free IPv6 port, and exits if the same IPv4 port is in use.
    port = free_port()
    driver = start(["chromedriver", f"--port={port}"], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout
        with driver.stdout as lines:
            assert any("started successfully" in line for line in lines)
            browser = Browser(port)
            yield browser
            browser.close()
    finally:
        driver.terminate()
        end(driver)
