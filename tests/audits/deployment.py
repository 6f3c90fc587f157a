"""A hosted service that is killed and started again, for the audits and the benchmarks."""

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.audits.bystander import exchange, http_client
from tests.support.process import children, free_port, kill, start, wait_until

TOKEN = "audit"
GUNICORN = str(Path(sys.executable).with_name("gunicorn"))
SERVE = [GUNICORN, "--config=python:plants.hosting.gunicorn_conf", "--log-level=error"]


class Deployment:
    """A service that a command runs in the foreground, with Gunicorn's master and workers."""

    def __init__(self, store_url: str, options: str = "", token: str = TOKEN) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.token = token
        self._command = [*SERVE, f"--bind={urlsplit(self.url).netloc}", *shlex.split(options)]
        self._environ = os.environ | {"PLANTS_STORE": store_url, "PLANTS_TOKENS": token}
        self._master: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service if it does not run, and wait until it is ready."""
        wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        if self._master is None or self._master.poll() is not None:
            # As systemd does, kill the workers of a dead master before starting a new one.
            self.kill()
            # Discard the access log, because during an outage it has a line for each failed request.
            self._master = start(self._command, env=self._environ, stdout=subprocess.DEVNULL)
        with contextlib.closing(http_client(self.url)) as client:
            return bool(self.workers()) and exchange(client, "GET", "/readyz", "").status == 200

    def workers(self) -> list[int]:
        """Return the workers of the master, if it runs."""
        return [] if self._master is None or self._master.poll() is not None else children(self._master.pid)

    def kill_master(self) -> None:
        assert self._master is not None
        self._master.kill()

    def kill(self) -> None:
        """Kill the master and all workers."""
        if self._master:
            kill(self._master)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
