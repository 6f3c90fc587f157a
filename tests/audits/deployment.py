"""A hosted service that is killed and started again."""

import shlex
import subprocess
from typing import Self

from tests.contract import TOKEN
from tests.support.hosted import SERVE, environment
from tests.support.process import children, free_port, kill, start, wait_until
from tests.support.servers import is_ready


class Deployment:
    """A service that a command runs in the foreground, with Gunicorn's master and workers."""

    def __init__(self, store_url: str, options: str = "") -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        bind = f"--bind=127.0.0.1:{self._port}"
        self._command = [*SERVE, "--log-level=error", bind, *shlex.split(options)]
        self._environ = environment(PLANTS_STORE=store_url, PLANTS_TOKENS=TOKEN)
        self._start_master()

    def _start_master(self) -> None:
        # Discard the access log, because during an outage it has a line for each failed request.
        self.master = start(self._command, env=self._environ, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        """Start the service if it does not run, and wait until it is ready."""
        wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        if self.master.poll() is not None:
            # As systemd does, kill the workers of a dead master before starting a new one.
            self.kill()
            self._start_master()
        return bool(self.workers()) and is_ready(self._port)

    def workers(self) -> list[int]:
        """Return the workers of the master, if it runs."""
        return children(self.master.pid) if self.master.poll() is None else []

    def kill(self) -> None:
        """Kill the master and all workers."""
        kill(self.master)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
