"""A hosted service under test and its clients, for the audits and the benchmarks."""

import contextlib
import http.client
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from plants import Plant, PlantStore, StoreUnavailable
from tests.audits.bystander import Response, exchange, http_client
from tests.support.process import children, free_port, kill, start, wait_until

TOKEN = "audit"
GUNICORN = shlex.quote(str(Path(sys.executable).with_name("gunicorn")))
SERVE = f"{GUNICORN} --config python:plants.hosting.gunicorn_conf --log-level error"
ID_IN_USE = 40003


def read_plant(store: PlantStore, plant_id: int) -> Plant | None:
    """Return the plant with this id, or None; retry while the machine is too busy for the store's timeout."""
    results = []

    def is_read() -> bool:
        with contextlib.suppress(StoreUnavailable):
            results.append(store.get(plant_id))
        return bool(results)

    wait_until(is_read)
    return results[0]


class Deployment:
    """A service that a command runs in the foreground, with Gunicorn's master and workers."""

    def __init__(self, store_url: str, options: str = "", command: str = "", url: str = "", token: str = TOKEN) -> None:
        self.url = url or f"http://127.0.0.1:{free_port()}"
        self.token = token
        default = f"{SERVE} --bind {urlsplit(self.url).netloc} {options}"
        self._command = shlex.split(command or default)
        self._environ = os.environ | {"PLANTS_STORE": store_url, "PLANTS_TOKENS": token}
        self._master: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service if it does not run, and wait until it is ready."""
        deadline = time.monotonic() + 60
        while not self.workers() or self.status("/readyz") != 200:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.url}: not ready within 60 s")
            if self._master is None or self._master.poll() is not None:
                # As systemd does, kill the workers of a dead master before starting a new one.
                self.kill()
                # Discard the access log, because during an outage it has a line for each failed request.
                self._master = start(self._command, env=self._environ, stdout=subprocess.DEVNULL)
            time.sleep(0.05)

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

    def status(self, path: str) -> int:
        with contextlib.closing(http_client(self.url)) as client:
            return exchange(client, "GET", path, self.token).status

    def add(self, client: http.client.HTTPConnection, plant: Plant) -> Response:
        """Create a plant on a connection that stays open."""
        members = {"id": plant.id, "name": plant.name} | ({} if plant.tag is None else {"tag": plant.tag})
        return exchange(client, "POST", "/plants", self.token, json.dumps(members).encode())
