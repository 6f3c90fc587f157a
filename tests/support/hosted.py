"""A hosted service in a process of its own, a plain HTTP client for it, and the command ``plants``."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract import LIMIT, TOKEN, Headers, Response
from tests.support.process import (
    END,
    PATIENCE_SECONDS,
    Process,
    accepts_connections,
    free_port,
    wait_for_workers,
    wait_until,
)
from tests.support.worker_server import Client

CHECKOUT = Path(__file__).parents[2]
SERVE = [sys.executable, "-m", "plants", "serve"]
# Secrets that the tests send in headers, bodies and queries; no log line may contain them.
NEVER_LOGGED = re.compile(rf"{TOKEN}|Fern|access_token|\?a=1")


class Service(Process):
    """A running service, which logs at debug level unless ``env`` sets another one.

    ``access`` has the lines of standard output. At the end, every line is checked.
    """

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str], stdin: int | None = None) -> None:
        settings = environment(**{"GUNICORN_CMD_ARGS": "--log-level=debug"} | env)
        super().__init__(command, cwd=cwd, env=settings, stdin=stdin)
        self.access = self.output
        self.is_json = env.get("PLANTS_LOG_FORMAT") != "text"

    def wait_until_it_serves(self) -> None:
        self.wait_until_it_responds_on(int(self.wait_for(r"Listening at: http://127\.0\.0\.1:(\d+)")[1]))

    def wait_until_it_responds_on(self, port: int) -> None:
        self.port = port
        wait_until(lambda: accepts_connections(port) or self.process.poll() is not None)
        # Wait until the worker responds. Before it has installed its signal handlers, a signal to stop ends it at once,
        # without a graceful stop.
        assert self.send(method="GET", path="/livez", headers=[]).status == 200

    def line_of(self, request_id: str) -> dict[str, Any]:
        """Wait for the line about a request, and return it."""
        [found] = wait_until(lambda: [line for line in self.access if request_id in line])
        members: dict[str, Any] = json.loads(found)
        return members

    def send(self, body: bytes = b"", *, method: str = "POST", path: str = "/plants", headers: Headers) -> Response:
        return send_to(self.port, body, method=method, path=path, headers=headers)

    def client(self) -> Client:
        return self.clients.enter_context(Client(socket.create_connection(("127.0.0.1", self.port))))

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        lines = [line for line in (*self.lines, *self.access) if line != END]
        assert not [line for line in lines if NEVER_LOGGED.search(line)]
        # A service that cannot start prints one plain line, because it has no log yet.
        for line in [line for line in lines if not line.startswith("plants: ")] if self.is_json else ():
            assert {"ts", "level", "logger"} < json.loads(line).keys()
            assert " " not in re.sub(r'"(\\.|[^"\\])*"', "", line)  # Each line is compact JSON.

    def stop(self) -> int:
        self.process.terminate()
        return self.wait_for_exit()


def send_to(port: int, body: bytes = b"", *, method: str = "POST", path: str = "/plants", headers: Headers) -> Response:
    """Make a request on a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if body or method == "POST":
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, found, response.read())


def environment(**env: str) -> dict[str, str]:
    """Return the environment of a service: that of this process, but with ``env`` as the only settings."""
    prefixes = ("PLANTS_", "GUNICORN_", "WEB_CONCURRENCY", "PORT", "FORWARDED_ALLOW_IPS")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)} | env


def run(*command: str | Path, cwd: str | Path = CHECKOUT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would, and wait until it exits."""
    return subprocess.run(
        command, cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def output_of(*command: str | Path, cwd: str | Path = CHECKOUT, **env: str) -> str:
    """Run a command that must succeed, and return its output."""
    result = run(*command, cwd=cwd, **env)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test on a machine that lacks one of these programs, for a reason that names it."""
    missing = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def call(*arguments: str, cwd: str | Path = CHECKOUT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command ``plants``, again if a check times out, because the machine may be busy."""
    while "timed out" in (result := run(sys.executable, "-m", "plants", *arguments, cwd=cwd, **env)).stderr:
        pass
    return result


def error_line(result: subprocess.CompletedProcess[str], status: int = 1) -> str:
    """Check that a command failed with one line, and return the line."""
    assert result.returncode == status
    assert result.stdout == ""
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("plants: ")
    return result.stderr.removeprefix("plants: ").rstrip()


@contextmanager
def serving(
    *options: str, workers: int = 1, command: list[str] = SERVE, cwd: Path = CHECKOUT, **env: str
) -> Iterator[Service]:
    """A service on a free port, with ``TOKEN`` and ``LIMIT`` unless ``env`` overrides them."""
    settings = {"PLANTS_TOKENS": TOKEN, "PLANTS_MAX_BODY_BYTES": str(LIMIT)} | env
    workers_option = [f"--workers={workers}"] if workers > 1 else []
    port = free_port()
    with Service([*command, f"--bind=127.0.0.1:{port}", *workers_option, *options], cwd, settings) as service:
        service.wait_until_it_responds_on(port)
        wait_for_workers(service.process.pid, workers)
        yield service
