"""Gunicorn with the worker, in processes of its own, and a client that sends bytes as they are given."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

PATIENCE_SECONDS = 30
TESTS = Path(__file__).parent


class Answer(NamedTuple):
    """One answer; names of header fields in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> int:
        """Give the code of an Error body, which this has to be in all it says."""
        document = json.loads(self.body)
        assert document.keys() == {"error", "message"}
        assert document["error"] // 100 == self.status
        assert 0 < len(document["message"]) < 500
        assert self.headers["content-type"] == "application/json"
        assert self.headers["cache-control"] == "no-store"
        assert self.headers["x-content-type-options"] == "nosniff"
        code: int = document["error"]
        return code


class Client:
    """A connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_SECONDS)
        self.sock = sock
        self._file = sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.sock.close()

    def send(self, data: bytes) -> Self:
        self.sock.sendall(data)
        return self

    def end(self) -> Self:
        """Send no more."""
        self.sock.shutdown(socket.SHUT_WR)
        return self

    def reset(self) -> None:
        """Break the connection off."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close()

    def answer(self, method: str = "GET") -> Answer:
        """Read one answer."""
        first, head = self._head()
        status = int(first.split()[1])
        if method == "HEAD" or status in {100, 204, 304}:
            body = b""
        else:
            body = self._file.read(int(head["content-length"]))
            assert len(body) == int(head["content-length"])
        return Answer(status, head, body)

    def _head(self) -> tuple[str, dict[str, str]]:
        first = self._line()
        fields = dict(line.split(": ", 1) for line in iter(self._line, ""))
        return first, {name.lower(): value for name, value in fields.items()}

    def _line(self) -> str:
        line = self._file.readline().decode("latin-1")
        if not line:
            raise EOFError
        assert line.endswith("\r\n")
        return line.removesuffix("\r\n")

    def answers(self) -> list[Answer]:
        """Read answers until the server closes the connection."""
        found = []
        with self:
            while self._file.peek(1):
                found.append(self.answer())
        return found

    def has_news(self) -> bool:
        """Tell whether there is something to read, if only that the connection is closed."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def is_closed(self) -> bool:
        """Wait for the server to close the connection, and tell whether it did without a further byte."""
        return self._file.read(1) == b""


class Server:
    """A running Gunicorn."""

    def __init__(self, process: "subprocess.Popen[str]", notes: Path) -> None:
        self.process = process
        self.log: list[str] = []
        self.clients: list[Client] = []
        self._notes = notes
        self._news = threading.Condition()
        threading.Thread(target=self._read_log, daemon=True).start()
        self.address = self.logged(r"Listening at: (?:unix:|https?://)(\S+)")[1]

    def _read_log(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            with self._news:
                self.log.append(line)
                self._news.notify_all()

    def logged(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Wait until so many lines of the log match, and give the last of them."""

        def matches() -> list[re.Match[str]]:
            return [match for line in self.log if (match := re.search(pattern, line))]

        with self._news:
            assert self._news.wait_for(lambda: len(matches()) >= times, PATIENCE_SECONDS), "".join(self.log)
            return matches()[times - 1]

    def notes(self) -> list[str]:
        """Give what the application noted."""
        return self._notes.read_text().splitlines()

    def client(self) -> Client:
        if self.address.startswith("/"):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(self.address)
        else:
            host, _, port = self.address.rpartition(":")
            sock = socket.create_connection((host, int(port)))
        self.clients.append(Client(sock))
        return self.clients[-1]

    def get(self, target: str = "/") -> Answer:
        with self.client() as client:
            return client.send(f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()).answer()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)


def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@contextmanager
def serving(
    folder: Path, *options: str, bind: str = "127.0.0.1:0", app: str = "app", **environ: str
) -> Iterator[Server]:
    """Run Gunicorn with the worker, on a free port, with the application of these tests."""
    notes = folder / "notes"
    notes.touch()
    gunicorn = Path(sys.executable).with_name("gunicorn")
    command = [str(gunicorn), f"--bind={bind}", "--no-control-socket", "--graceful-timeout=20"]
    command += ["--worker-class=plants.hosting.worker.Worker", f"--pythonpath={TESTS}", *options, f"worker_app:{app}"]
    settings = {"PLANTS_MAX_BODY_BYTES": "1000", "TEST_NOTES": str(notes)}
    with subprocess.Popen(
        command, env=os.environ | settings | environ, stderr=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        server = Server(process, notes)
        try:
            yield server
        finally:
            for client in server.clients:
                client.close()
            process.send_signal(signal.SIGTERM)
            server.ended()
