"""A service to be audited, crowds of bad clients, and a good client beside them in a process of its own."""

import contextlib
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Self, cast

from tests.audits.bystander import Response, exchange, http_client, new_id, plant
from tests.audits.deployment import Deployment
from tests.audits.report import Verdict
from tests.contract import TOKEN
from tests.support import hosted
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


class Target:
    """A running service: its address, a valid token, and the process id of its master."""

    def __init__(self, process: hosted.Service, port: int, token: str, scheme: str = "http") -> None:
        self.host, self.port, self.token = "127.0.0.1", port, token
        self.url = f"{scheme}://{self.host}:{port}"
        self.master = process.process.pid
        self._process = process
        self._lines_read = 0

    def connect(self, receive_buffer: int = 0, host: str = "127.0.0.1") -> socket.socket:
        """Connect from this address."""
        sock = socket.socket()
        sock.bind((host, 0))
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(PATIENCE_SECONDS)
        try:
            sock.connect((self.host, self.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            raise
        return sock

    def head(self, *fields: bytes) -> bytes:
        """Return the head of a create with a valid token and more header lines."""
        return b"%bAuthorization: Bearer %b\r\n%b\r\n" % (HEAD, self.token.encode(), b"".join(fields))

    def create(self, plant_id: int) -> Response:
        """Create a plant on a connection of its own."""
        with contextlib.closing(http_client(self.url)) as client:
            return exchange(client, "POST", "/plants", self.token, plant(plant_id))

    def workers(self) -> list[int]:
        return children(self.master)

    def memory(self) -> int:
        """Return the resident memory of the largest worker, in bytes."""
        return max((resident_bytes(worker) for worker in self.workers()), default=0)

    def cpu_seconds(self) -> float:
        """Return the processor time of all workers."""
        stats = [Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split() for worker in self.workers()]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")

    def connections(self) -> int:
        """Return the number of the service's open connections, including those that it has not accepted yet."""
        port = f":{self.port:04X}"
        # The file may have thousands of lines for other sockets, so split only the lines with this port.
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines() if port in line]
        states = [(row[3], row[9]) for row in rows if row[1].endswith(port)]
        # Count each row in state ESTABLISHED or CLOSE_WAIT. In any other state except LISTEN, count a row only if it
        # still has a socket (an inode).
        return sum(state in {"01", "08"} or (state != "0A" and inode != "0") for state, inode in states)

    def new_log_errors(self) -> list[str]:
        """Return the log lines since the last call that report an error."""
        lines = self._process.lines[self._lines_read :]
        self._lines_read += len(lines)
        return [line.rstrip() for line in lines if _LOG_ERROR.search(line)]


class Crowd:
    """Many connections, none of which waits for another."""

    def __init__(self, service: Target, size: int, receive_buffer: int = 0) -> None:
        self.sockets = [service.connect(receive_buffer) for _ in range(size)]
        self.received = dict.fromkeys(self.sockets, b"")
        self.closed_by_service: set[socket.socket] = set()
        for sock in self.sockets:
            sock.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self.sockets:
            sock.close()

    def send(self, *data: bytes, seconds: float = PATIENCE_SECONDS) -> None:
        """Send the data on each connection, or each its own, as fast as the service reads it."""
        rest = {sock: memoryview(data[number % len(data)]) for number, sock in enumerate(self.sockets)}

        def send_more(sock: socket.socket) -> bool:
            rest[sock] = rest[sock][sock.send(rest[sock][:65536]) :]
            return bool(rest[sock])

        self._repeat(send_more, selectors.EVENT_WRITE, seconds)

    def read_until_closed(self, seconds: float) -> None:
        """Read until the service has closed every connection, or ``seconds`` have passed.

        ``received`` has the first 64 KiB of each.
        """

        def read_more(sock: socket.socket) -> bool:
            data = sock.recv(65536)
            self.received[sock] = (self.received[sock] + data)[:65536]
            return bool(data)

        self.closed_by_service |= self._repeat(read_more, selectors.EVENT_READ, seconds)

    def _repeat(self, act: Callable[[socket.socket], bool], event: int, seconds: float) -> set[socket.socket]:
        """Call ``act`` on each socket that is ready, until it returns False or raises OSError; return those sockets."""
        deadline = time.monotonic() + seconds
        done = set()
        with selectors.DefaultSelector() as selector:
            for sock in self.sockets:
                selector.register(sock, event)
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(0.1):
                    sock = cast(socket.socket, key.fileobj)
                    with contextlib.suppress(OSError):
                        if act(sock):
                            continue
                    selector.unregister(sock)
                    done.add(sock)
        return done

    def statuses(self) -> Counter[str]:
        """Count the connections by the status of their first response.

        A connection without a response counts as ``closed`` if the service has closed it, and as ``nothing`` otherwise.
        """
        return Counter(
            self.received[sock][9:12].decode() or ("closed" if sock in self.closed_by_service else "nothing")
            for sock in self.sockets
        )


class Bystander:
    """A good client in a process of its own, so that the attackers in this process do not slow it down.

    With ``probe``, it gets /livez and creates no plant.
    """

    pause: ClassVar[float] = 0.002  # between two requests, in seconds

    def __init__(self, service: Target | Deployment, *, probe: bool = False, pause: float = 0.0) -> None:
        options = json.dumps({"url": service.url, "token": service.token, "pause": pause or self.pause, "probe": probe})
        command = [*NO_SUBPROCESS_COVERAGE, sys.executable, "-m", "tests.audits.bystander", options]
        self._process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=hosted.CHECKOUT)

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
        summary = f"slowest of {sum(self.responses.values()):,} responses {self.slowest * 1000:.0f} ms"
        return Verdict(not self.faults and self.slowest < limit, ", ".join([summary, *self.faults[:3]]))


@contextlib.contextmanager
def running_service(
    store: str = "memory",
    workers: int = 1,
    *options: str,
    scheme: str = "http",
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Target]:
    """Run ``plants serve`` on a free port with the default limits."""
    command = [*NO_SUBPROCESS_COVERAGE, *hosted.SERVE]
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/plants.db" if store == "sqlite" else f"{store}:"
        command += ["--bind=127.0.0.1:0", f"--workers={workers}", *options]
        with hosted.Service(
            command, hosted.CHECKOUT, {"PLANTS_STORE": url, "PLANTS_TOKENS": TOKEN, **environ}
        ) as process:
            port = int(process.wait_for(rf"Listening at: {scheme}://127\.0\.0\.1:(\d+)")[1])
            service = Target(process, port, TOKEN, scheme)
            wait_for_workers(process.process.pid, workers)
            wait_until(lambda: service.create(new_id()).status == 200)
            wait_until(lambda: not service.connections())
            process.wait_for("Booting worker")
            yield service
