"""Attack a service over loopback, with and without a token, and measure what other clients notice and what is held.

    python -m tests.audits.hostile
    python -m tests.audits.hostile --only single_bytes

Each check starts a service of its own, with SQLite and one worker. After an attack, the same worker must still create
plants, and must hold no connection; its log must have no error.
"""

import contextlib
import itertools
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.audits.bystander import new_id
from tests.audits.clients import HEAD, MIB, Bystander, Crowd, Target, create_head
from tests.audits.report import Verdict, run_checks, together
from tests.contract import TOKEN
from tests.support.process import wait_until
from tests.support.tls_client import Records13, make_certificate, trusting

KIB = 1024
# Escapes, and as many values as are allowed: no accepted body of this size takes longer to parse.
SMALL_BODY, LARGE_BODY = (
    b'{"id":1,"name":"%b","more":[%b{}]}' % (rb"\\," * escapes, b"{}," * 990) for escapes in (9_900, 348_000)
)


@contextlib.contextmanager
def beside(service: Target, limit: float) -> Iterator[list[Verdict]]:
    """Create plants and get /livez in two other processes meanwhile; each response must arrive within ``limit``."""
    verdicts: list[Verdict] = []
    with Bystander(service.url, TOKEN) as creates, Bystander(service.url) as probes:
        yield verdicts
    verdicts += [creates.verdict(limit), probes.verdict(limit)]


@contextlib.contextmanager
def repeating(act: Callable[[], None], threads: int) -> Iterator[None]:
    """Call ``act`` in this many threads again and again; a lost connection is no failure."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                act()

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run) for _ in range(threads)]
        yield
        over.set()
    for thread in running:
        thread.result()


def memory_of(service: Target, data: bytes, clients: int, most: int) -> Verdict:
    """Send the same on many connections, without its end; none of them may take more than ``most`` bytes of memory."""
    before = service.memory()
    with Crowd(service, clients) as crowd:
        crowd.send(data)
        is_held = crowd.is_held()
        each = (service.memory() - before) / clients
    return Verdict(is_held and each < most, f"{each / KIB:.0f} KiB for each of {clients} clients, all held: {is_held}")


def memory_of_heads(service: Target, clients: int = 800, most: int = 40 * KIB) -> Verdict:
    """Hold the largest part of a head on many connections."""
    return memory_of(service, (HEAD + b"X-A: %b\r\n" % (b"a" * 7900) * 2 + b"X-B: b"), clients, most)


def memory_of_handshakes(service: Target, clients: int = 400, most: int = 104 * KIB) -> Verdict:
    """Hold the largest part of a ClientHello on many connections."""
    hello = b"\x16\x03\x01\x40\x00\x01\x01\x40\x00\x03\x03"
    return memory_of(service, hello.ljust(16_000, b"\0"), clients, most)


def unread_responses(service: Target, clients: int = 150, unread: int = 400_000, most: int = 220 * MIB) -> Verdict:
    """Read responses of 3 MB on many connections with a token, but not to their ends."""
    before = service.memory()
    name = ("\N{CACTUS}" * 250_000).encode()
    with Crowd(service, clients, receive_buffer=4096) as crowd:
        for sock in crowd.sockets:
            sock.setblocking(True)
            body = b'{"id":%d,"name":"%b"}' % (new_id(), name)
            with contextlib.suppress(OSError):
                sock.sendall(create_head(b"Content-Length: %d\r\n" % len(body)) + body)
        for sock in crowd.sockets:
            with contextlib.suppress(OSError):
                sock.recv(3_000_000 - unread, socket.MSG_WAITALL)
        grown = service.memory() - before
    return Verdict(grown < most, f"{grown // MIB} MiB more resident for {clients} responses of 3 MB, read in part")


NAMES = [b"X-A", b"Accept", b"Connection", b"Cookie", b"Authorization", b"Expect", b"traceparent", b"X-Request-ID"]
UNITS = [b"a", b",", b"/,", b" \t", b"%41", b"&a", b"a=b;", b"\xe9", b"a;q=0.1,", b"0"]


def dear_field(name: bytes, unit: bytes) -> bytes:
    """Return two header lines that are as long as they may be, but for the number that replaces NUMBER."""
    return b"%b: NUMBER%b\r\n" % (name, unit * (7900 // len(unit))) * 2


def dear_heads() -> Iterator[bytes]:
    """Yield heads that are almost as large as they may be, without their ends."""
    for name, unit in itertools.product(NAMES, UNITS):
        yield b"GET / HTTP/1.1\r\nHost: a\r\n" + dear_field(name, unit)
    for unit in (b"%41", b"/", b"?a=b&", b"&a"):
        yield b"GET /NUMBER?%b HTTP/1.1\r\nHost: a\r\n" % (unit * (3900 // len(unit)))
    yield b"GET / HTTP/1.1\r\nHost: NUMBER\r\n" + b"".join(b"X-%d: %b \r\n" % (n, b"a" * 140) for n in range(98))


def cost_of(service: Target, head: bytes, count: int) -> float:
    """Send a request of a stranger this often, and return the median of its processor times in ms."""
    costs = []
    for number in range(count):
        before = service.cpu_seconds()
        with service.connect() as sock, contextlib.suppress(OSError):
            own = head.replace(b"NUMBER", b"%d" % number)  # No value may be in a cache.
            sock.sendall(own + b"Connection: close\r\n\r\n")
            sock.recv(1000)
        costs.append(service.cpu_seconds() - before)
    return statistics.median(costs) * 1000


def dear_requests(service: Target, count: int = 60, most: float = 0.5) -> Verdict:
    """Send the dearest heads of strangers; none may cost more than ``most`` ms of processor time."""
    memory = service.memory()
    costs = {cost_of(service, head, count): head for head in dear_heads()}
    grown = service.memory() - memory
    dearest = max(costs)
    summary = f"{dearest:.2f} ms for {costs[dearest][:60]!r}, {grown // MIB} MiB more resident"
    return Verdict(dearest < most and grown < 32 * MIB, summary)


def single_bytes(service: Target, clients: int = 1400, dear: int = 60, seconds: float = 8, limit: float = 2) -> Verdict:
    """Send single bytes of heads on many connections, beside clients whose requests are dear."""
    head = b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n" % dear_field(b"Accept", b"/,")
    body = create_head(b"Content-Length: %d\r\n" % len(SMALL_BODY)) + SMALL_BODY

    def dear_client() -> None:
        with service.connect() as sock:
            sock.sendall(random.choice([head.replace(b"NUMBER", b"%d" % new_id()), body]))
            sock.recv(1000)

    with Crowd(service, clients) as crowd:
        crowd.send(b"GET /")
        with repeating(dear_client, dear), beside(service, limit) as verdicts:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for sock in crowd.sockets:
                    with contextlib.suppress(OSError):
                        sock.send(b"a")
    return together(*verdicts)


def tiny_records(service: Target, clients: int = 300, seconds: float = 5, limit: float = 0.7) -> Verdict:
    """Send TLS records of one byte each on many connections."""
    with Crowd(service, clients) as crowd:
        flood = [b"".join(records.data(b"a") for _ in range(1000)) for records in map(handshake, crowd.sockets)]
        with beside(service, limit) as verdicts:
            crowd.send(*flood, seconds=seconds)
            time.sleep(seconds)  # The service still reads.
    return together(*verdicts)


def handshake(sock: socket.socket) -> Records13:
    """Complete a handshake, and return what encrypts the client's records."""
    sock.setblocking(True)
    context = trusting()
    with tempfile.NamedTemporaryFile() as keys:
        context.keylog_filename = keys.name
        with context.wrap_socket(sock.dup()) as client:
            records = Records13(client, Path(keys.name))
    sock.setblocking(False)
    return records


def large_bodies(
    service: Target, clients: int = 12, seconds: float = 6, limit: float = 0.25, body: bytes = LARGE_BODY
) -> Verdict:
    """Send bodies of 1 MiB that take long to parse; small requests must not wait behind them."""
    request = create_head(b"Content-Length: %d\r\n" % len(body), b"Connection: close\r\n") + body
    times: list[float] = []

    def client() -> None:
        began = time.monotonic()
        with service.connect() as sock:
            sock.sendall(request)
            if b"40003" in sock.recv(1000):  # The body was accepted, but its id is in use.
                times.append(time.monotonic() - began)

    with repeating(client, clients), beside(service, limit) as verdicts:
        time.sleep(seconds)
    large = f"{len(times)} large ones, median {statistics.median(times):.2f} s"
    return together(*verdicts, Verdict(bool(times), large))


def many_bodies(service: Target, clients: int = 400, seconds: float = 6, limit: float = 0.5) -> Verdict:
    """Send bodies of 32 KB that take long to parse, from many clients with a token."""
    return large_bodies(service, clients, seconds, limit, SMALL_BODY)


def full_is_fair(service: Target, seconds: float = 6, limit: float = 1) -> Verdict:
    """Take all connections from one address, again and again; clients from another one must not notice."""
    crowd: list[socket.socket] = []

    def attack() -> None:
        crowd.append(service.connect("127.0.0.2"))
        crowd[-1].sendall(b"P")
        if len(crowd) > 600:
            crowd.pop(0).close()

    with repeating(attack, 1):
        wait_until(lambda: len(crowd) > 400)
        with beside(service, limit) as verdicts:
            time.sleep(seconds)
    for sock in crowd:
        sock.close()
    return together(*verdicts)


# The checks, and the options with which the service of each is started
MANY = "--worker-connections=1500"
TLS = ("--keyfile=FOLDER/certificate.pem", "--certfile=FOLDER/certificate.pem")
CHECKS: dict[Callable[..., Verdict], tuple[str, ...]] = {
    memory_of_heads: (MANY,),
    memory_of_handshakes: (MANY, *TLS),
    unread_responses: (),
    dear_requests: (),
    single_bytes: (MANY,),
    tiny_records: (MANY, *TLS),
    large_bodies: (),
    many_bodies: (),
    full_is_fair: ("--worker-connections=300",),
}


def run(checks: Mapping[Callable[..., Verdict], dict[str, Any]]) -> Verdict:
    """Start a service with the options of these checks, and run each with its arguments."""
    [options] = {CHECKS[check] for check in checks}
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        make_certificate(Path(folder))
        options = tuple(option.replace("FOLDER", folder) for option in options)
        with Target(*options, PLANTS_STORE=f"sqlite:///{folder}/plants.db") as service:
            service.wait_until_it_serves()
            for check, sizes in checks.items():
                verdict = check(service, **sizes)
                faults = service.faults()
                verdicts.append(Verdict(verdict.holds and not faults, ", ".join([verdict.summary, *faults[:3]])))
    return together(*verdicts)


if __name__ == "__main__":
    sys.exit(run_checks(__doc__, {check.__name__: partial(run, {check: {}}) for check in CHECKS}))
