"""Attack a service over loopback, with and without a token, and measure what other clients notice and what is held.

    python -m tests.audits.hostile
    python -m tests.audits.hostile --store sqlite --workers 2 --only single_bytes

Each check starts a service of its own and prints one line; the exit status is 0 if all of them hold.
"""

import contextlib
import json
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from plants.server.request import HTTPError, Listener, Request
from tests.audits.bystander import new_id, plant
from tests.audits.clients import HEAD, MIB, Bystander, Crowd, Target, running_service
from tests.audits.report import Verdict, add_only_option, audit_parser, report
from tests.support.loop_driver import CONFIG
from tests.support.process import comes_true
from tests.support.tls_client import Records13, TLSClient, make_certificate, trusting

KIB = 1024
DEAR_ACCEPT = b"Accept: %b\r\n" % (b"/," * 3900) * 7
TINY_OBJECTS = b'{"id":1,"name":"x","more":[' + b"{}," * 8650 + b"{}]}"  # 26 KB that take milliseconds to parse
LARGE_OBJECTS = b'{"id":1,"name":"x","more":[' + b"{}," * 349_000 + b"{}]}"  # 1 MiB


def unharmed(service: Target, check: Callable[[Target], Verdict]) -> Verdict:
    """Run a check. The service must retain its workers, log no errors, still create plants, and hold no connection."""
    workers = service.workers()
    service.new_log_errors()
    verdict = check(service)
    faults = []
    if service.create(new_id()).status != 200:
        faults.append("a create afterward does not get 200")
    if service.workers() != workers:
        faults.append(f"the workers {workers} are now {service.workers()}")
    if errors := service.new_log_errors():
        faults.append(f"{len(errors)} log lines such as {errors[0]!r}")
    if not comes_true(lambda: not service.connections()):
        faults.append(f"{service.connections()} connections are left")
    return Verdict(verdict.holds and not faults, ", ".join([verdict.summary, *faults]))


@contextlib.contextmanager
def beside(service: Target, limit: float) -> Iterator[list[Verdict]]:
    """Create plants and get /livez in two other processes meanwhile; each response must arrive within ``limit``."""
    verdicts: list[Verdict] = []
    with Bystander(service) as creates, Bystander(service, probe=True) as probes:
        yield verdicts
    for name, bystander in (("creates", creates), ("/livez", probes)):
        verdict = bystander.verdict(limit)
        verdicts.append(Verdict(verdict.holds, f"{name}: {verdict.summary}"))


def together(*verdicts: Verdict) -> Verdict:
    return Verdict(all(verdict.holds for verdict in verdicts), "; ".join(verdict.summary for verdict in verdicts))


@contextlib.contextmanager
def repeating(act: Callable[[int], None], threads: int) -> Iterator[None]:
    """Call ``act`` in this many threads, with the thread's number, again and again; a lost connection is no failure."""
    over = threading.Event()

    def run(number: int) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                act(number)

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run, number) for number in range(threads)]
        yield
        over.set()
    assert [thread.result() for thread in running] == [None] * threads


def upload(service: Target, size: int, pieces: int = 2, pause: float = 0.05) -> int:
    """Create a plant with a body of this size in several packets; return the status, or 0."""
    body = json.dumps({"id": new_id(), "name": "x" * (size - 60)}).encode()
    data = service.head(b"Content-Length: %d\r\n" % len(body)) + body
    step = -(-len(data) // pieces)
    with service.connect() as sock, contextlib.suppress(OSError):
        for start in range(0, len(data), step):
            sock.sendall(data[start : start + step])
            time.sleep(pause)
        return int(sock.recv(100)[9:12] or 0)
    return 0


# What a stranger holds


def strangers_with_bodies(service: Target, strangers: int = 900, uploads: int = 5) -> Verdict:
    """Hold 20 KB of a body on many connections without a token; uploads with a token must succeed."""
    with Crowd(service, strangers) as crowd:
        crowd.send(HEAD + b"Content-Length: 250000\r\n\r\n" + b"x" * 20_000, seconds=5)
        statuses = Counter(upload(service, 200_000) for _ in range(uploads))
        crowd.read_until_closed(0.5)
        refused = crowd.statuses()
    return Verdict(statuses == {200: uploads}, f"uploads {dict(statuses)}, strangers {dict(refused)}")


def memory_of_heads(service: Target, clients: int = 800, most: int = 40 * KIB) -> Verdict:
    """Hold the largest part of a head on many connections."""
    forms = [HEAD + b"X-A: %b\r\n" % (b"a" * 7900) * count for count in (1, 7)]
    verdicts = []
    for form in forms:
        before = service.memory()
        with Crowd(service, clients) as crowd:
            crowd.send(form[: 16_000 * len(form) // 8000], seconds=10)
            crowd.read_until_closed(1)
            each = (service.memory() - before) / clients
        verdicts.append(Verdict(each < most, f"{each / KIB:.0f} KiB for each head of {len(form) // KIB} KiB"))
        comes_true(lambda: not service.connections())
    return together(*verdicts)


def memory_of_handshakes(service: Target, clients: int = 400, most: int = 104 * KIB) -> Verdict:
    """Hold TLS handshakes whose ClientHello of 80 KiB does not end."""
    hello = b"\x16\x03\x01\x40\x00\x01\x01\x40\x00\x03\x03" + bytes(16_384 - 6)
    more = b"\x16\x03\x01\x40\x00" + bytes(16_384)
    before = service.memory()
    with Crowd(service, clients) as crowd:
        crowd.send(hello + more * 3 + more[:-1], seconds=10)
        crowd.read_until_closed(1)
        each = (service.memory() - before) / clients
    return Verdict(each < most, f"{each / KIB:.0f} KiB for each of {clients} ClientHellos of 80 KiB")


def health_checks(service: Target, count: int = 9000) -> Verdict:
    """End many TLS connections together with the handshake, as load balancers do; an upload must succeed."""
    context = trusting()
    for _ in range(count):
        with service.connect() as sock:
            client = TLSClient(context)
            sock.sendall(client.step())
            sock.send(client.step(sock.recv(65536)), socket.MSG_MORE)  # The end arrives in the same packet.
            sock.shutdown(socket.SHUT_WR)
    comes_true(lambda: not service.connections())
    body = plant(new_id())
    with service.connect() as plain, trusting().wrap_socket(plain) as sock:
        sock.sendall(service.head(b"Content-Length: %d\r\n" % len(body)) + body[:-1])
        time.sleep(0.1)
        with contextlib.suppress(OSError):
            sock.sendall(body[-1:])
        status = sock.recv(100)[9:12].decode()
    return Verdict(status == "200", f"an upload in two pieces gets {status} after {count:,} health checks")


def unread_responses(service: Target, clients: int = 150, unread: int = 400_000, most: int = 220 * MIB) -> Verdict:
    """Read responses of 3 MB on many connections with a token, but not to their ends."""
    before = service.memory()
    name = ("\N{CACTUS}" * 250_000).encode()
    crowd = Crowd(service, clients, receive_buffer=4096)
    with crowd:
        for sock in crowd.sockets:
            sock.setblocking(True)
            body = b'{"id":%d,"name":"%b"}' % (new_id(), name)
            with contextlib.suppress(OSError):
                sock.sendall(service.head(b"Content-Length: %d\r\n" % len(body)) + body)
        for sock in crowd.sockets:
            left = 3_000_000 - unread
            with contextlib.suppress(OSError):
                while left > 0 and (data := sock.recv(min(left, 65536))):
                    left -= len(data)
        grown = service.memory() - before
    return Verdict(grown < most, f"{grown // MIB} MiB more resident for {clients} responses of 3 MB, read in part")


# What a request costs


def cost_of(service: Target, head: bytes, count: int) -> float:
    """Send a request of a stranger this often, and return its processor time in ms."""
    before = service.cpu_seconds()
    body = b"x" * 15_000 if b"Content-Length" in head else b""
    for number in range(count):
        with service.connect() as sock, contextlib.suppress(OSError):
            own = head.replace(b"/,", b"a%d/b," % number, 1)  # No value may be in a cache.
            sock.sendall(own + b"X-Own: %d\r\nConnection: close\r\n\r\n" % number + body)
            sock.recv(1000)
    return (service.cpu_seconds() - before) / count * 1000


def dear_requests(service: Target, count: int = 150, most: float = 1.0, rounds: int = 3000) -> Verdict:
    """Send the dearest heads and bodies of strangers; none may cost more than ``most`` ms of processor time."""
    start = b"GET / HTTP/1.1\r\nHost: a\r\n"
    fields = b"".join(b"X-%d: %b \r\n" % (number, b"a" * 140) for number in range(98))
    heads = {
        "Accept of 57 KiB": start + DEAR_ACCEPT,
        "Accept of 8 KiB": start + b"Accept: %b\r\n" % (b"/," * 4000),
        "Connection of 57,000 commas": start + b"Connection: %b\r\n" % (b"," * 8000) * 7,
        "Connection of 8,000 commas": start + b"Connection: %b\r\n" % (b"," * 8000),
        "100 headers": start + fields,
        "escapes in the path": b"GET /%b HTTP/1.1\r\nHost: a\r\n" % (b"%41" * 1300),
        "4,000 query parameters": b"GET /?%b HTTP/1.1\r\nHost: a\r\n" % (b"&a" * 2000),
        "a token of 8 KiB": start + b"Authorization: Bearer %b\r\n" % (b"a" * 8000),
        "Cookie of 8 KiB": start + b"Cookie: %b\r\n" % (b"a=b;" * 2000),
        "Accept-Language": start + b"Accept-Language: %b\r\n" % (b"a;q=0.1," * 1000),
        "a body of 15 KB": HEAD + b"Content-Length: 15000\r\n",
        "found by search": dearest_head(rounds),
    }
    memory = service.memory()
    costs = {name: cost_of(service, head, count) for name, head in heads.items()}
    grown = service.memory() - memory
    table = ", ".join(f"{name} {cost:.2f}" for name, cost in sorted(costs.items(), key=lambda item: -item[1]))
    return Verdict(max(costs.values()) < most and grown < 32 * MIB, f"ms: {table}; {grown // MIB} MiB more resident")


NAMES = [b"X-%d", b"Accept", b"Connection", b"Cookie", b"Authorization", b"Expect", b"traceparent", b"X-Request-ID"]
UNITS = [b"a", b",", b"/,", b" \t", b"%41", b"&a", b"a=b;", b"\xe9", b"a;q=0.1,", b"0"]


def dearest_head(rounds: int) -> bytes:
    """Search for the head that costs the parser most: change one part at random, and keep what is dearer."""
    pick = random.Random(1)

    def part() -> tuple[bytes, bytes]:
        return pick.choice(NAMES), pick.choice(UNITS) * pick.choice([1, 10, 100, 1000, 4000])

    def head_of(parts: list[tuple[bytes, bytes]]) -> bytes:
        (_, path), *fields = parts
        lines = [b"GET /%b HTTP/1.1\r\nHost: a\r\n" % path[:8000].replace(b" \t", b"").replace(b"\xe9", b"")]
        lines += [name.replace(b"%d", b"%d" % number) + b": " + value for number, (name, value) in enumerate(fields)]
        return b"\r\n".join(lines).replace(b"\r\n\r\n", b"\r\n") + b"\r\n"

    def cost(head: bytes) -> int:
        costs = []
        for _ in range(3):
            request = Request(Listener(unused, lambda *_: []), {"SCRIPT_NAME": ""}, 0.0)
            began = time.process_time_ns()
            with contextlib.suppress(HTTPError):
                request.parse_head((head + b"\r\n").decode("latin-1"), CONFIG)
            costs.append((time.process_time_ns() - began) * request.head_parsed)
        return min(costs)

    with socket.socket() as unused:
        dearest = [part()]
        highest = cost(head_of(dearest))
        for _ in range(rounds):
            parts = dearest.copy()
            parts[pick.randrange(len(parts))] = part()
            parts += [part()] * (pick.random() < 0.3)
            if (found := cost(head_of(parts))) > highest:
                dearest, highest = parts, found
    return head_of(dearest)


# Time


def single_bytes(service: Target, clients: int = 1400, dear: int = 60, seconds: float = 8, limit: float = 2) -> Verdict:
    """Send single bytes of heads on many connections, beside clients whose requests are dear."""
    body = service.head(b"Content-Length: %d\r\n" % len(TINY_OBJECTS)) + TINY_OBJECTS

    def dear_client(number: int) -> None:
        head = b"GET / HTTP/1.1\r\nHost: a\r\nAccept: a%d/b\r\n%b\r\n" % (new_id(), DEAR_ACCEPT)
        with service.connect() as sock:
            sock.sendall(head if number % 2 else body)
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
    flood = []
    with Crowd(service, 0) as crowd:
        for _ in range(clients):
            with tls_client(service) as (sock, records):
                flood.append(b"".join(records.data(b"a") for _ in range(8000)))
                crowd.sockets.append(sock.dup())
        for sock in crowd.sockets:
            sock.setblocking(False)
        with beside(service, limit) as verdicts:
            crowd.send(*flood, seconds=seconds)
    return together(*verdicts)


@contextlib.contextmanager
def tls_client(service: Target) -> Iterator[tuple[socket.socket, Records13]]:
    """Complete a handshake; yield the socket, and what encrypts the client's records."""
    with tempfile.TemporaryDirectory() as folder, service.connect() as sock:
        context = trusting()
        context.keylog_filename = f"{folder}/keys"
        client = TLSClient(context)
        sent = client.step()
        while sent:
            sock.sendall(sent)
            sent = client.step(sock.recv(65536))
        yield sock, Records13(client.ssl, Path(folder, "keys"))


def large_bodies(
    service: Target, clients: int = 12, seconds: float = 6, limit: float = 0.25, body: bytes = LARGE_OBJECTS
) -> Verdict:
    """Send bodies of 1 MiB that take long to parse; small requests must not wait behind them."""
    request = service.head(b"Content-Length: %d\r\n" % len(body), b"Connection: close\r\n") + body
    times: list[float] = []

    def client(_number: int) -> None:
        began = time.monotonic()
        with service.connect() as sock:
            sock.sendall(request)
            sock.recv(1000)
        times.append(time.monotonic() - began)

    with repeating(client, clients), beside(service, limit) as verdicts:
        time.sleep(seconds)
    large = f"{len(times)} large ones, median {statistics.median(times):.2f} s"
    return together(*verdicts, Verdict(bool(times), large))


def many_bodies(service: Target, clients: int = 400, seconds: float = 6, limit: float = 1) -> Verdict:
    """Send bodies of 26 KB that take long to parse, from many clients with a token."""
    return large_bodies(service, clients, seconds, limit, TINY_OBJECTS)


# Places


def full_is_fair(service: Target, seconds: float = 6) -> Verdict:
    """Take all connections from one address, again and again; slow uploads from another one must succeed."""
    opened = 0
    crowd: list[socket.socket] = []

    def attack(_number: int) -> None:
        nonlocal opened
        if len(crowd) > 600:
            crowd.pop(0).close()
        crowd.append(service.connect(host="127.0.0.2"))
        crowd[-1].sendall(b"P")
        opened += 1

    statuses: Counter[int] = Counter()
    with repeating(attack, 1):
        comes_true(lambda: opened > 400)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            statuses[upload(service, 2000, pieces=4, pause=0.3)] += 1
    for sock in crowd:
        sock.close()
    return Verdict(statuses.keys() == {200}, f"uploads {dict(statuses)} beside {opened:,} connections of one address")


# The checks, and how the service of each is started
CHECKS: dict[Callable[..., Verdict], tuple[str, ...]] = {
    strangers_with_bodies: ("--worker-connections=1500", "PLANTS_MAX_BODY_BYTES=262144"),
    memory_of_heads: ("--worker-connections=1500",),
    memory_of_handshakes: ("--worker-connections=1500", "tls"),
    health_checks: ("PLANTS_MAX_BODY_BYTES=1024", "tls"),
    unread_responses: (),
    dear_requests: (),
    single_bytes: ("--worker-connections=1500",),
    tiny_records: ("tls",),
    large_bodies: (),
    many_bodies: (),
    full_is_fair: ("--worker-connections=300",),
}


def run(check: Callable[..., Verdict], store: str, workers: int, **options: float) -> Verdict:
    """Start the service of a check, and run the check with these options."""
    settings = CHECKS[check]
    store = "sqlite" if check is unread_responses else store  # The dictionary would hold the plants, too.
    arguments = [setting for setting in settings if setting.startswith("--")]
    environ = dict(setting.split("=") for setting in settings if setting.startswith("PLANTS_"))
    with tempfile.TemporaryDirectory() as folder:
        if "tls" in settings:
            certificate = make_certificate(Path(folder))
            arguments += [f"--keyfile={certificate}", f"--certfile={certificate}"]
        scheme = "https" if "tls" in settings else "http"
        with running_service(store, workers, *arguments, scheme=scheme, environ=environ) as service:
            return unharmed(service, partial(check, **options))


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument("--store", default="memory", choices=["memory", "sqlite"], help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="(%(default)s)")
    add_only_option(parser, [check.__name__ for check in CHECKS])
    options = parser.parse_args()
    selected = [check for check in CHECKS if not options.only or check.__name__ in options.only]
    verdicts = [report(check.__name__, run(check, options.store, options.workers)) for check in selected]
    return int(not all(verdicts))


if __name__ == "__main__":
    sys.exit(main())
