"""A service to be attacked, crowds of bad clients, and a good client beside them in a process of its own."""

import contextlib
import itertools
import json
import re
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self, cast

from tests.audits.bystander import Response, exchange, http_client, new_id, plant
from tests.audits.report import Verdict
from tests.contract import TOKEN
from tests.support.hosted import CHECKOUT, SERVE, Service
from tests.support.process import (
    NO_SUBPROCESS_COVERAGE,
    PATIENCE_SECONDS,
    children,
    kill,
    resident_bytes,
    start,
    wait_for_workers,
    wait_until,
)

MIB = 1 << 20
HEAD = b"POST /plants HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
# A log line with one of these texts reports an error of the service. No client may cause such a line.
_LOG_ERROR = re.compile(r"Traceback|WORKER TIMEOUT|Worker \(pid|SIGKILL|Exception|Error\b")


class Target(Service):
    """A service with one worker and the default limits, unless an option or a setting changes them."""

    def __init__(self, *options: str, **env: str) -> None:
        command = [*NO_SUBPROCESS_COVERAGE, *SERVE, "--bind=127.0.0.1:0", *options]
        super().__init__(command, CHECKOUT, {"PLANTS_TOKENS": TOKEN} | env)

    def wait_until_it_serves(self) -> None:
        _, self.url, port = self.wait_for(r"Listening at: (https?://127\.0\.0\.1:(\d+))").group(0, 1, 2)
        self.port = int(port)
        wait_for_workers(self.process.pid, 1)
        wait_until(lambda: self.create().status == 200)
        [self.worker] = children(self.process.pid)
        self.descriptors = self.count_descriptors()

    def connect(self, host: str = "127.0.0.1", receive_buffer: int = 0) -> socket.socket:
        sock = socket.socket()
        sock.settimeout(PATIENCE_SECONDS)
        sock.bind((host, 0))
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        return sock

    def create(self) -> Response:
        """Create a plant on a connection of its own."""
        with contextlib.closing(http_client(self.url)) as client:
            return exchange(client, "POST", "/plants", TOKEN, plant(new_id()))

    def memory(self) -> int:
        return resident_bytes(self.worker)

    def cpu_seconds(self) -> float:
        return time.clock_gettime(~self.worker << 3 | 2)  # Linux's clock of a process, as of clock_getcpuclockid(3)

    def count_descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.worker}/fd").iterdir()))

    def faults(self) -> list[str]:
        """Return what an attack has changed, once it is over."""
        found = [line.rstrip() for line in self.lines if _LOG_ERROR.search(line)]
        if children(self.process.pid) != [self.worker]:
            return [*found, "the worker has ended"]
        if (response := self.create()).status != 200:
            found.append(f"a create afterward gets {response}")
        wait_until(lambda: self.count_descriptors() <= self.descriptors)
        return found


def create_head(*fields: bytes) -> bytes:
    """Return the head of a create with a valid token and more header lines."""
    return b"%bAuthorization: Bearer %b\r\n%b\r\n" % (HEAD, TOKEN.encode(), b"".join(fields))


class Crowd(contextlib.AbstractContextManager["Crowd"]):
    """Many connections, none of which waits for another."""

    def __init__(self, service: Target, size: int, receive_buffer: int = 0) -> None:
        self.sockets = [service.connect(receive_buffer=receive_buffer) for _ in range(size)]
        for sock in self.sockets:
            sock.setblocking(False)

    def __exit__(self, *_: object) -> None:
        for sock in self.sockets:
            sock.close()

    def send(self, *data: bytes, seconds: float = PATIENCE_SECONDS) -> None:
        """Send the data on each connection, or each its own, as fast as the service reads it."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for sock, own in zip(self.sockets, itertools.cycle(data), strict=False):
                selector.register(sock, selectors.EVENT_WRITE, memoryview(own))
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(0.1):
                    sock = cast(socket.socket, key.fileobj)
                    selector.unregister(sock)
                    with contextlib.suppress(OSError):
                        if rest := key.data[sock.send(key.data[:65536]) :]:
                            selector.register(sock, selectors.EVENT_WRITE, rest)

    def is_held(self) -> bool:
        """Return whether the service, for a second, responds to none of the connections and closes none."""
        with selectors.DefaultSelector() as selector:
            for sock in self.sockets:
                selector.register(sock, selectors.EVENT_READ)
            return not selector.select(1)


class Bystander:
    """A good client in a process of its own, so that the attackers in this process do not slow it down.

    Without a token, it gets /livez and creates no plant.
    """

    def __init__(self, url: str, token: str = "") -> None:
        command = [*NO_SUBPROCESS_COVERAGE, sys.executable, "-m", "tests.audits.bystander", url, token]
        self._requests = "creates" if token else "/livez"
        self._process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=CHECKOUT)

    def __enter__(self) -> Self:
        assert self._process.stdout
        self._process.stdout.readline()  # The good client has received its first response.
        return self

    def __exit__(self, *_: object) -> None:
        output, _ = self._process.communicate()
        kill(self._process)
        self.slowest, self.responses, self.faults = json.loads(output)

    def verdict(self, limit: float) -> Verdict:
        """Return whether each request got the right response within ``limit`` seconds."""
        summary = f"{self._requests}: slowest of {self.responses:,} responses {self.slowest * 1000:.0f} ms"
        return Verdict(not self.faults and self.slowest < limit, ", ".join([summary, *self.faults[:3]]))
