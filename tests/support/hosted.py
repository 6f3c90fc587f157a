"""A hosted service in a process of its own, and a plain HTTP client for it."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

from tests.contract import LIMIT, TOKEN, Answer, Headers

CHECKOUT = Path(__file__).parents[2]
SERVE = [sys.executable, "-m", "plants", "serve"]
# What the tests send as a token, in bodies and in queries, and no log has.
_END = "(end)"
NEVER_LOGGED = re.compile(rf"{TOKEN}|Fern|access_token|\?a=1")


class Service:
    """A running service, at the most talkative level if nothing else is said.

    What it logs is read all the time, so that it never waits for a reader: ``lines`` is what came on standard error,
    and ``access`` on standard output. When it has ended, every line must be one that a log may have.
    """

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str], stdin: int | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(**{"GUNICORN_CMD_ARGS": "--log-level=debug"} | env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            stdin=stdin,
        )
        self.lines: list[str] = []
        self.access: list[str] = []
        self.is_json = env.get("PLANTS_LOG_FORMAT") != "text"
        self._changed = threading.Condition()
        pairs = ((self.process.stderr, self.lines), (self.process.stdout, self.access))
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in pairs]
        for reader in self._readers:
            reader.start()

    def wait_until_it_serves(self) -> None:
        self.port = int(self.wait_for(r"Listening at: http://127\.0\.0\.1:(\d+)")[1])
        # A worker that is stopped before it has set up its signals is killed only after Gunicorn's graceful timeout.
        assert self.send(method="GET", path="/livez", headers=[]).status == 200

    def _read(self, file: IO[str], lines: list[str]) -> None:
        with file:
            for line in file:
                with self._changed:
                    lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            lines.append(_END)
            self._changed.notify_all()

    def wait_for(self, pattern: str, after: int = 0) -> re.Match[str]:
        """Wait until a line of the log, not before line ``after``, has the pattern."""
        with self._changed:
            while True:
                found = [match for line in self.lines[after:] if (match := re.search(pattern, line))]
                if found:
                    return found[0]
                more = self.lines[-1:] != [_END] and self._changed.wait(10)
                assert more, f"{pattern!r} is not in the log:\n{''.join(self.lines)}"

    def line_of(self, request_id: str) -> dict[str, Any]:
        """Wait for the line about a request, and give it."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(request_id in line for line in self.access), 10), self.access
            (found,) = [line for line in self.access if request_id in line]
        members: dict[str, Any] = json.loads(found)
        return members

    def check_log(self) -> None:
        """Look at every line, once the service has ended."""
        lines = [line for line in (*self.lines, *self.access) if line != _END]
        assert not [line for line in lines if NEVER_LOGGED.search(line)]
        # Before it has a log, a service that cannot be started says in a line why.
        for line in lines if self.is_json else ():
            assert line.startswith("plants: ") or {"ts", "level", "logger"} < json.loads(line).keys()

    def send(self, body: bytes = b"", *, method: str = "POST", path: str = "/plants", headers: Headers) -> Answer:
        return send_to(self.port, body, method=method, path=path, headers=headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        patience = threading.Timer(10, self.process.kill)
        patience.start()
        self.process.terminate()
        self.process.wait()
        patience.cancel()
        for reader in self._readers:
            reader.join()
        self.check_log()

    def stop(self) -> int:
        """Stop it, and give its exit status."""
        self.process.terminate()
        return self.process.wait(10)


def send_to(port: int, body: bytes = b"", *, method: str = "POST", path: str = "/plants", headers: Headers) -> Answer:
    """Make a request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if body or method == "POST":
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    finally:
        connection.close()


def environment(**env: str) -> dict[str, str]:
    """The environment of a service: of our own settings only these."""
    ours = ("PLANTS_", "GUNICORN_", "WEB_CONCURRENCY", "PORT", "FORWARDED_ALLOW_IPS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | env


@contextmanager
def serving(*options: str, command: list[str] = SERVE, cwd: Path = CHECKOUT, **env: str) -> Iterator[Service]:
    """A service on a free port, with ``TOKEN`` and ``LIMIT`` unless ``env`` says otherwise."""
    settings = {"PLANTS_TOKENS": TOKEN, "PLANTS_MAX_BODY_BYTES": str(LIMIT)} | env
    with Service([*command, "--bind", "127.0.0.1:0", *options], cwd, settings) as service:
        service.wait_until_it_serves()
        yield service
