"""Gunicorn with the worker, in its own processes, and a client that sends raw bytes."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import parse_headers
from pathlib import Path
from typing import Self

from gunicorn import config

from tests.contract import Response
from tests.support.process import PATIENCE_SECONDS, Process, wait_for_workers

SUPPORT = Path(__file__).parent


class Client(AbstractContextManager["Client"]):
    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_SECONDS)
        self.sock = sock
        self._file = sock.makefile("rb")

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.sock.close()

    def send(self, data: bytes) -> Self:
        self.sock.sendall(data)
        return self

    def end(self) -> Self:
        """Shut down the sending side."""
        self.sock.shutdown(socket.SHUT_WR)
        return self

    def response(self) -> Response:
        line = self._file.readline()
        if not line:
            raise EOFError
        assert line.startswith(b"HTTP/1.1 ")
        status = int(line[9:12])
        headers = {name.lower(): value for name, value in parse_headers(self._file).items()}
        size = int(headers["content-length"]) if status != 100 else 0
        body = self._file.read(size)
        assert len(body) == size
        return Response(status, headers, body)

    def responses(self) -> list[Response]:
        """Read responses until the server closes the connection."""
        found = []
        with self:
            while self._file.peek(1):
                found.append(self.response())
        return found

    def is_closed(self) -> bool:
        """Wait for a byte or the end of the connection; return whether it was the end."""
        return self._file.read(1) == b""


class Server(Process):
    """A running Gunicorn. At the end, check that no worker has crashed.

    A test might not notice a crash, because Gunicorn replaces a crashed worker.
    """

    def __init__(self, command: list[str], cwd: Path) -> None:
        super().__init__(command, cwd=cwd, env=dict(os.environ))
        self.address = ""

    def client(self) -> Client:
        if self.address.startswith("/"):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(self.address)
        else:
            host, _, port = self.address.rpartition(":")
            sock = socket.create_connection((host, int(port)))
        return self.clients.enter_context(Client(sock))

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        assert not [line for line in self.lines if "exited with code" in line or line.endswith("[ERROR] \n")]


@contextmanager
def running_worker(folder: Path, *options: str, bind: str = "127.0.0.1:0") -> Iterator[Server]:
    """Run Gunicorn with the worker and the application of ``worker_app``, by default on a free port."""
    gunicorn = Path(sys.executable).with_name("gunicorn")
    command = [str(gunicorn), f"--bind={bind}", "--graceful-timeout=20"]
    command += ["--no-control-socket"] * hasattr(config, "ControlSocketDisable")  # Older versions have no such socket.
    command += ["--worker-class=worker_app.Worker", f"--pythonpath={SUPPORT}", *options, "worker_app:app"]
    with Server(command, folder) as server:
        server.address = server.wait_for(r"Listening at: (?:unix:|https?://)(\S+)")[1]
        wait_for_workers(server.process.pid, 1)
        yield server
