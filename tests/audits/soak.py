"""Run many broken clients against a service for a while, beside good ones.

    python -m tests.audits.soak
    python -m tests.audits.soak --store sqlite --workers 2 --seconds 60 --broken 100

The exit status is 0 if all of this is true:

- Each good request got the right response. A request on a connection that had been idle for more than 1.9 s may fail.
- Each broken client could connect.
- Each acknowledged plant is still stored.
- The workers are the same as before, no connection is left, and at most ``STORE_FILES`` more files are open.
- The memory of the largest worker hardly grew. Its peak in the last third of the run exceeds its peak in the middle
  third by less than 8 MiB plus 600 bytes for each plant that a good client stored in the whole run.
- Each line of the log matches ``EXPLAINED``.
"""

import contextlib
import random
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from tests.audits.bystander import new_id, plant
from tests.audits.clients import CHUNKED, HEAD, MIB, Bystander, Target, reset_on_close, sampled, service_of
from tests.audits.hostile import MALFORMED_TRAILERS, STORE_FILES, chunked_create
from tests.audits.report import Verdict, add_service_options, audit_parser, report
from tests.support.process import comes_true

# Most broken clients stay no longer than this.
LONGEST_SECONDS = 6.0
PLANT_BYTES = 600
KEEPALIVE_SECONDS = 1.9  # Slightly less than the service's keepalive, which starts when the response has been sent.
EXPLAINED = (
    r"Starting gunicorn|Listening at|Using worker|Booting worker|Control socket",  # the start
    r"Handling signal: term|Worker exiting|Shutting down",  # the end
    r"Current configuration|Arbiter booted|\d+ workers",  # Gunicorn's lines at level debug
    r"no token is set",
    r'"POST /|"GET /|"HEAD /',  # an access log
)
GET = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"

Broken = Callable[[Target, socket.socket], None]


def _sending(*data: bytes) -> Broken:
    """Return a client that sends the pieces a moment apart, reads for a moment, and disconnects."""

    def send(_service: Target, sock: socket.socket) -> None:
        for piece in data:
            sock.sendall(piece)
            time.sleep(random.random() / 10)
        _read_for(sock, random.random())

    return send


def _stalling(*data: bytes) -> Broken:
    """Return a client that sends the pieces, then stays silent for a while."""

    def stall(_service: Target, sock: socket.socket) -> None:
        sock.sendall(b"".join(data))
        _read_for(sock, random.random() * LONGEST_SECONDS)

    return stall


def _read_for(sock: socket.socket, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (rest := deadline - time.monotonic()) > 0:
        sock.settimeout(rest)
        if not sock.recv(65536):
            return


def _drip(service: Target, sock: socket.socket) -> None:
    body = plant(new_id())
    deadline = time.monotonic() + LONGEST_SECONDS
    for byte in service.head(b"Content-Length: %d\r\n" % len(body)) + body:
        if time.monotonic() < deadline:
            sock.sendall(bytes([byte]))
            time.sleep(random.choice([0, 0.001, 0.1]))
    _read_for(sock, 1)


def _request_and_reset(service: Target, sock: socket.socket) -> None:
    body = plant(new_id())
    sock.sendall(service.head(b"Content-Length: %d\r\n" % len(body)) + body)
    if random.random() < 0.5:
        sock.recv(1)
    reset_on_close(sock)


def _pipeline_and_go(service: Target, sock: socket.socket) -> None:
    bodies = [plant(new_id()) for _ in range(50)]
    sock.sendall(b"".join(service.head(b"Content-Length: %d\r\n" % len(body)) + body for body in bodies))
    sock.recv(random.choice([1, 1000, 100_000]))


def _pipeline_and_never_read(_service: Target, sock: socket.socket) -> None:
    sock.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        sock.sendall(GET % b"/openapi.json" * 5000)
    time.sleep(random.random() * LONGEST_SECONDS)


def _read_slowly(_service: Target, sock: socket.socket) -> None:
    sock.sendall(GET % b"/openapi.json" * 20)
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline and sock.recv(100):
        time.sleep(0.005)


def _upload_on_and_on(service: Target, sock: socket.socket) -> None:
    sock.sendall(random.choice([HEAD, service.head()[:-2]]) + random.choice([CHUNKED, b"Content-Length: 5000000\r\n"]))
    sock.sendall(b"\r\n")
    for _ in range(100):
        sock.sendall(b"c350\r\n" + b"x" * 50_000 + b"\r\n")


def _upload_and_a_byte(_service: Target, sock: socket.socket) -> None:
    sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % MIB + b"x" * MIB + b"P")
    _read_for(sock, 2)


def _end_in_the_middle(service: Target, sock: socket.socket) -> None:
    body = plant(new_id())
    request = service.head(b"Content-Length: %d\r\n" % len(body)) + body
    sock.sendall(request[: random.randrange(len(request))])
    sock.shutdown(socket.SHUT_WR)
    _read_for(sock, 1)


def _urgent(_service: Target, sock: socket.socket) -> None:
    sock.sendall(HEAD)
    sock.send(b"!", socket.MSG_OOB)
    _read_for(sock, 1)


def _garbage(_service: Target, sock: socket.socket) -> None:
    sock.sendall(random.randbytes(random.choice([1, 100, 100_000])))
    _read_for(sock, 1)


def _mutate(service: Target, sock: socket.socket) -> None:
    request = bytearray(chunked_create(service, new_id(), trailers=b"X-A: a\r\n"))
    for _ in range(random.randint(1, 5)):
        request[random.randrange(len(request))] = random.randrange(256)
    sock.sendall(request)
    _read_for(sock, 1)


BROKEN: tuple[Broken, ...] = (
    _stalling(),
    _stalling(b"\r\n"),
    _stalling(b"P"),
    _stalling(HEAD),
    _stalling(HEAD, b"Content-Length: 100000\r\n\r\n", b"x" * 99_999),
    _stalling(HEAD, CHUNKED, b"\r\n", b"1\r\nx\r\n" * 200),
    _stalling(HEAD, CHUNKED, b"\r\n1"),
    _stalling(HEAD, b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n"),
    _stalling(GET % b"/livez"),
    _sending(),
    _sending(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    _sending(b"GET / HTTP/2.0\r\n\r\n"),
    _sending(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    _sending(b"GET /\r\n"),
    _sending(HEAD, b"X-A: a\r\n" * 20_000),
    _sending(HEAD, b"X-A: " + b"a" * 200_000),
    _sending(b"POST /" + b"a" * 200_000),
    _sending(HEAD, CHUNKED, b"\r\n", b"1\r\nx\r\n" * 20_000),
    _sending(HEAD, CHUNKED, b"\r\n", b"1;" + b"a" * 20_000),
    _sending(HEAD, CHUNKED, b"Content-Length: 4\r\n\r\n0\r\n\r\n", GET % b"/livez"),
    _sending(HEAD, b"Content-Length: 5\r\n\r\nbody"),
    _sending(HEAD, b"Content-Length: -1\r\n\r\n"),
    _sending(HEAD, CHUNKED, b"\r\nffffffffffffffff\r\n"),
    _sending(HEAD, CHUNKED, b"\r\n-1\r\n"),
    _sending(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", GET % b"/livez"),
    _sending(b"CONNECT /livez HTTP/1.1\r\nHost: a:1\r\n\r\n", GET % b"/livez"),
    _sending(b"GET /livez HTTP/1.0\r\n\r\n", b"more"),
    _sending(GET % b"/livez" * 100, b"X"),
    *[_sending(HEAD, CHUNKED, b"\r\n0\r\n", trailer, b"\r\n\r\n") for trailer in MALFORMED_TRAILERS.values()],
    _drip,
    _request_and_reset,
    _pipeline_and_go,
    _pipeline_and_never_read,
    _read_slowly,
    _upload_on_and_on,
    _upload_and_a_byte,
    _end_in_the_middle,
    _urgent,
    _garbage,
    _mutate,
)


class BrokenClients:
    """Broken clients of random kinds, started at a fixed rate. Each disconnects in a random way."""

    def __init__(self, service: Target, per_second: float) -> None:
        self.number = 0
        self.refused = 0
        self._service = service
        self._pause = 1 / per_second

    def run(self, seconds: float) -> None:
        threads: list[threading.Thread] = []
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            threads = [thread for thread in threads if thread.is_alive()]
            threads.append(threading.Thread(target=self._run_one))
            threads[-1].start()
            self.number += 1
            time.sleep(max(0, began + self.number * self._pause - time.monotonic()))
        for thread in threads:
            thread.join()

    def _run_one(self) -> None:
        try:
            sock = self._service.connect(random.choice([0, 0, 0, 4096]))
        except OSError:
            self.refused += 1
            return
        with sock:
            sock.settimeout(LONGEST_SECONDS)
            if random.random() < 0.3:
                reset_on_close(sock)
            with contextlib.suppress(OSError):
                random.choice(BROKEN)(self._service, sock)


def soak(service: Target, seconds: float, broken: float, good: int) -> list[tuple[str, Verdict]]:
    descriptors, workers = service.descriptors(), service.workers()
    broken_clients = BrokenClients(service, broken)
    bystanders = [Bystander(service, pause=0.05, mixed=True, again=True) for _ in range(good)]
    with sampled(service.memory, min(2, seconds / 30)) as samples, contextlib.ExitStack() as stack:
        for bystander in bystanders:
            stack.enter_context(bystander)
        broken_clients.run(seconds)
    is_back = comes_true(lambda: not service.connections() and service.descriptors() <= descriptors + STORE_FILES)
    unexplained = [line for line in service.new_lines() if not re.search("|".join(EXPLAINED), line)]

    # RFC 9112, section 9.5: the service may close an idle connection just as its client uses it again.
    idle = re.compile(r"on a persistent connection, idle for ([\d.]+) s, \w+ when used$")
    responses = sum((Counter(bystander.responses) for bystander in bystanders), Counter())
    faults = [fault for bystander in bystanders for fault in bystander.faults]
    paused = [fault for fault in faults if (found := idle.search(fault)) and float(found[1]) > KEEPALIVE_SECONDS]
    faults = [fault for fault in faults if fault not in paused]
    third = max(1, len(samples) // 3)
    middle, last = max(samples[third:-third], default=0), max(samples[-third:], default=0)
    grown = last - middle - PLANT_BYTES * responses["200"]
    slowest = max(bystander.slowest for bystander in bystanders) * 1000
    left = f"{service.connections()} connections and {service.descriptors() - descriptors} files are left"
    return [
        (
            "broken clients",
            Verdict(
                not broken_clients.refused, f"{broken_clients.number:,}, {broken_clients.refused} could not connect"
            ),
        ),
        (
            "good clients",
            Verdict(
                not faults,
                f"{dict(responses)}, slowest {slowest:.0f} ms; faults: {faults}, "
                f"and {len(paused)} on connections that had been idle: {paused[:5]}",
            ),
        ),
        ("memory", Verdict(grown < 8 * MIB, f"{middle / MIB:.1f} MiB in the middle, {last / MIB:.1f} at the end")),
        ("connections and files", Verdict(is_back, left)),
        ("processes", Verdict(service.workers() == workers, f"{workers}, at the end {service.workers()}")),
        ("the log", Verdict(not unexplained, f"{len(unexplained)} unexplained lines: {unexplained[:10]}")),
    ]


def main() -> int:
    parser = audit_parser(__doc__)
    add_service_options(parser)
    parser.add_argument("--seconds", type=float, default=600, help="(%(default)s)")
    parser.add_argument("--broken", type=float, default=30, help="broken clients per second (%(default)s)")
    parser.add_argument("--good", type=int, default=3, help="good clients (%(default)s)")
    options = parser.parse_args()
    with service_of(options) as service:
        found = soak(service, options.seconds, options.broken, options.good)
    holds = [report(name, verdict) for name, verdict in found]
    return int(not all(holds))


if __name__ == "__main__":
    sys.exit(main())
