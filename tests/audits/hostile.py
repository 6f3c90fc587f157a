"""Attack a service over sockets, with and without a token, and measure the effect on other clients.

    python -m tests.audits.hostile
    python -m tests.audits.hostile --store sqlite --workers 2 --only tiny_chunks

Each check prints one line; the exit status is 0 if all of them hold.
"""

import contextlib
import json
import os
import selectors
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import cast

from tests.audits.bystander import new_id, plant
from tests.audits.clients import (
    CHUNKED,
    HEAD,
    MIB,
    Bystander,
    Crowd,
    Target,
    reset_on_close,
    running_service,
    sampled,
    service_of,
)
from tests.audits.report import Verdict, add_only_option, add_service_options, audit_parser, report
from tests.support.process import PATIENCE_SECONDS, comes_true
from tests.support.tls_client import Records12, Records13, TLSClient, make_certificate, trusting

TINY_CHUNK = b"1\r\nx\r\n"
# A worker may hold HELD_BODIES bodies of the largest size, and SLACK_BYTES of memory for everything else.
HELD_BODIES = 64
SLACK_BYTES = 32 * MIB
# A store may open this many files when it is first used. Their number must not depend on the number of clients.
STORE_FILES = 16
MALFORMED_TRAILERS = {
    "no colon": b"no colon",
    "an empty name": b": a",
    "NUL": b"X-A: a\0b",
    "a folded line": b"X-A: a\r\n b",
    "a request line": b"GET /livez HTTP/1.1",
    "a space before the colon": b"X-A : a",
    "a bare CR": b"X-A: a\rb",
    "a space before the name": b" X-A: a",
}


def unharmed(service: Target, check: Callable[[Target], Verdict]) -> Verdict:
    """Run a check. The service must retain its workers, log no errors, and still create plants."""
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
    return Verdict(verdict.holds and not faults, ", ".join([verdict.summary, *faults]))


# Checks that run against any service


def half_heads(service: Target, clients: int = 1500) -> Verdict:
    """Send half a head on many connections, and close them all when the first one receives its 408."""
    seen: Counter[str] = Counter()
    for reset in (False, True):
        with Crowd(service, clients) as crowd:
            crowd.send(HEAD)
            crowd.read_until_closed(PATIENCE_SECONDS, or_readable=True)
            for sock in crowd.sockets:
                # Some connections have their 408 by now, some have not, and some get it while they close.
                with contextlib.suppress(OSError):
                    seen[sock.recv(12)[9:].decode() or "closed"] += 1
            crowd.end(reset=reset)
    is_back = comes_true(lambda: not service.connections())
    return Verdict(is_back, f"of {2 * clients} clients {dict(seen)}, the rest disconnected without a response")


def resets_beside_creates(service: Target, seconds: float = 5, limit: float = 0.1) -> Verdict:
    """Reset connections, as some health checks do: before a request, in the middle of one, or after one."""
    sent = [
        b"",
        HEAD,
        service.head(b"Content-Length: 9\r\n"),
        b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ]
    number = 0
    with Bystander(service) as bystander:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), service.connect() as sock:
                reset_on_close(sock)
                if data := sent[number % len(sent)]:
                    sock.send(data)
                if number % 8 > 3 and data.startswith(b"GET"):
                    sock.recv(1)  # The reset arrives while the service finishes the response.
            number += 1
    verdict = bystander.verdict(limit)
    return Verdict(verdict.holds, f"{number:,} resets, {verdict.summary}")


def tiny_chunks(service: Target, clients: int = 500, size: int = 64 * 1024, limit: float = 1) -> Verdict:
    """Send bodies from many clients in chunks of one byte, whose framing costs more than their content."""
    with Bystander(service) as bystander, Crowd(service, clients) as crowd:
        sent = crowd.send(HEAD + CHUNKED + b"\r\n" + TINY_CHUNK * (size // len(TINY_CHUNK)))
        crowd.read_until_closed(2)
    accepted = Verdict(True, f"{sent // 1024:,} KiB were accepted, then {dict(crowd.statuses())}")
    return _together(bystander.verdict(limit), accepted)


def tiny_chunks_in_tiny_packets(service: Target, clients: int = 200, rounds: int = 50, limit: float = 1) -> Verdict:
    """Send three bytes at a time from many clients."""
    with Bystander(service) as bystander, Crowd(service, clients) as crowd:
        crowd.send(HEAD + CHUNKED + b"\r\n")
        for _ in range(rounds):
            crowd.send(TINY_CHUNK[:3])
            crowd.send(TINY_CHUNK[3:])
    return bystander.verdict(limit)


def large_heads(service: Target, clients: int = 400, size: int = 800_000, limit: float = 1) -> Verdict:
    """From each of many clients, send a head with about a hundred headers of 8,000 bytes."""
    fields = b"".join(b"X-%d: %b\r\n" % (number, b"a" * 7990) for number in range(99))
    with Bystander(service) as bystander, Crowd(service, clients) as crowd:
        crowd.send((HEAD + fields)[: size - 4] + b"\r\n\r\n")
        crowd.read_until_closed(PATIENCE_SECONDS)
    return _together(bystander.verdict(limit), _all_rejected(crowd))


def endless_heads(service: Target, clients: int = 400, size: int = 800_000, limit: float = 1) -> Verdict:
    """Send endless headers, an endless line or endless empty lines from many clients."""
    forms = [HEAD + b"X-A: a\r\n" * (size // 8), b"GET /" + b"a" * size, HEAD + b"X-A: " + b"a" * size, b"\r\n" * size]
    with Bystander(service) as bystander, Crowd(service, clients) as crowd:
        crowd.send_each(lambda number: forms[number % len(forms)])
        crowd.read_until_closed(PATIENCE_SECONDS)
    return _together(bystander.verdict(limit), _all_rejected(crowd))


def stalled_bodies(service: Target, bodies: int = HELD_BODIES, size: int = MIB, limit: float = 0.1) -> Verdict:
    """Fill the buffers of all workers with large bodies, and send a small one; each body lacks its last byte."""
    workers = max(1, len(service.workers()))
    stalled = service.head(b"Content-Length: %d\r\n" % size) + b"x" * (size - 1)
    with Crowd(service, bodies * workers) as crowd, Crowd(service, 1) as small:
        crowd.send(stalled)
        small.send(service.head(b"Content-Length: 50\r\n") + b"x" * 49)
        with Bystander(service) as bystander:
            crowd.read_until_closed(1)
        memory = service.memory()
    return _together(bystander.verdict(limit), Verdict(True, f"{memory // MIB} MiB resident"))


def byte_after_upload(service: Target, uploads: int = 600, size: int = MIB, slack: int = SLACK_BYTES) -> Verdict:
    """Upload without a token on many connections, and send one more byte on each after its 401."""
    before = service.memory()
    upload = HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size
    statuses: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for start in range(0, uploads, 4):
            crowd = stack.enter_context(Crowd(service, min(4, uploads - start)))
            crowd.send(upload)
            for sock in crowd.sockets:
                sock.settimeout(PATIENCE_SECONDS)
                with contextlib.suppress(OSError):
                    statuses[sock.recv(65536)[9:12].decode() or "closed"] += 1
                    sock.send(b"P")
        grown = service.memory() - before
    summary = f"{grown // MIB} MiB more resident after {dict(statuses)}"
    return Verdict(statuses["401"] == uploads and grown < HELD_BODIES * size + slack, summary)


def aborted_uploads(service: Target, uploads: int = 600, size: int = MIB, slack: int = SLACK_BYTES) -> Verdict:
    """Abort many uploads before their last byte, a few at a time."""
    before = service.memory()
    for start in range(0, uploads, 8):
        with Crowd(service, min(8, uploads - start)) as crowd:
            crowd.send(HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * (size - 1))
            crowd.end(reset=start % 16 == 0)
        comes_true(lambda: not service.connections())
    grown = service.memory() - before
    return Verdict(grown < slack, f"{grown // MIB} MiB more resident after {uploads} of {size // 1024} KiB")


def large_incomplete_parts(
    service: Target, clients: int = 3000, size: int = 90_000, largest: int = MIB, limit: float = 1
) -> Verdict:
    """From each of many clients, send a large head, body, chunk or trailer section that does not end."""
    head = HEAD + b"".join(b"X-%d: %b\r\n" % (number, b"a" * 7990) for number in range(7))
    forms = [
        head,
        HEAD + b"Content-Length: %d\r\n\r\n" % largest + b"x" * min(size, largest - 1),
        HEAD + CHUNKED + b"\r\n%x\r\n" % largest + b"x" * min(size, largest - 1),
        HEAD + CHUNKED + b"\r\n0\r\n" + head[len(HEAD) :],
    ]
    before = service.memory()
    with Crowd(service, clients) as crowd:
        sent = crowd.send_each(lambda number: forms[number % len(forms)], 5)
        with Bystander(service) as bystander:
            crowd.read_until_closed(1)
        grown = service.memory() - before
    # A buffered byte costs more than a byte, because of the objects around it.
    is_bounded = grown < 1.5 * HELD_BODIES * largest + SLACK_BYTES
    summary = f"{grown // MIB} MiB more resident for {sent // MIB} MiB sent, {dict(crowd.statuses())}"
    return _together(bystander.verdict(limit), Verdict(is_bounded, summary))


def connect(service: Target) -> Verdict:
    """Send creates behind a CONNECT, in the same packet or in the next; the service must not process them."""
    served = []
    for head in (b"CONNECT a:443 HTTP/1.1\r\n", b"CONNECT /livez HTTP/1.1\r\n", b"CONNECT http://a/ HTTP/1.1\r\n"):
        for fields in (b"", b"Content-Length: 0\r\n", b"Connection: keep-alive\r\n", CHUNKED):
            for pieces in (1, 2):
                plant_id = new_id()
                body = plant(plant_id)
                hidden = service.head(b"Content-Length: %d\r\n" % len(body)) + body
                authorization = b"Authorization: Bearer %b\r\n" % service.token.encode()
                first = head + b"Host: a:443\r\n" + authorization + fields + b"\r\n"
                responses = talk(service, *([first, hidden] if pieces == 2 else [first + hidden]))
                if responses.count(b"HTTP/1.1 ") > 1 or service.create(plant_id).status != 200:
                    served.append(
                        f"{head.decode().strip()} with {fields.decode().strip() or 'no more headers'}, {pieces} pieces"
                    )
    return Verdict(not served, f"served behind {served}" if served else "nothing behind a CONNECT is served")


def malformed_trailers(service: Target) -> Verdict:
    """Send malformed trailers; the service must reject each, and create nothing."""
    accepted = []
    for name, trailer in MALFORMED_TRAILERS.items():
        plant_id = new_id()
        responses = talk(
            service, chunked_create(service, plant_id, trailers=trailer + b"\r\n") + b"GET / HTTP/1.1\r\n\r\n"
        )
        if not responses.startswith(b"HTTP/1.1 400 ") or service.create(plant_id).status != 200:
            accepted.append(f"{name} ({responses[9:12].decode()})")
    good = talk(service, chunked_create(service, new_id(), trailers=b"X-A: a\r\nX-B:\r\n"))[9:12]
    rejected = len(MALFORMED_TRAILERS) - len(accepted)
    summary = f"a good trailer gets {good.decode()}, {rejected} malformed ones are rejected, accepted: {accepted}"
    return Verdict(good == b"200" and not accepted, summary)


def large_framing(service: Target, size: int = 8500) -> Verdict:
    """Send large chunk extensions and trailers; the service must reject them in one packet and in many."""
    faults = []
    for length, is_good in ((size, False), (100, True)):
        for where, filler in (("extension", b";a=" + b"a" * length), ("trailers", b"X-A: " + b"a" * length + b"\r\n")):
            for piece in (MIB, 8600, 1000):
                request = chunked_create(service, new_id(), **{where: filler})
                pieces = [request[start : start + piece] for start in range(0, len(request), piece)]
                status = talk(service, *pieces)[9:12].decode()
                if status != "200" if is_good else not status.startswith("4"):
                    faults.append(f"{where} of {length} in pieces of {piece}: {status or 'closed'}")
    return Verdict(not faults, f"{faults or 'rejected if large, in one packet and in many'}")


def stalled(service: Target, clients: int = 1000, seconds: float = 8, limit: float = 0.1) -> Verdict:
    """Connect many clients that send nothing, send part of a request, or never read; then disconnect them."""
    forms = [
        b"",
        HEAD,
        HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 1000,
        HEAD + CHUNKED + b"\r\n" + TINY_CHUNK * 100,
    ]
    requests = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 2000
    verdicts = []
    peak = 0
    memories = [service.memory()]
    descriptors = service.descriptors()
    for _ in range(2):
        with Bystander(service) as bystander:
            with (
                Crowd(service, clients * 4 // 5) as crowd,
                Crowd(service, clients // 5, receive_buffer=4096) as never_reading,
            ):
                crowd.send_each(lambda number: forms[number % len(forms)])
                never_reading.send(requests, seconds / 2)
                peak = max(peak, service.memory())
                closed = crowd.read_until_closed(seconds)
            comes_true(lambda: service.connections() <= 2)
        verdicts.append(bystander.verdict(limit))
        is_back = comes_true(lambda: not service.connections() and service.descriptors() <= descriptors + STORE_FILES)
        left = f"{service.connections()} connections and {service.descriptors() - descriptors} files left"
        verdicts.append(Verdict(is_back, f"{closed} connections closed by the service, {left}"))
        memories.append(service.memory())
    grown = memories[2] - memories[1]
    summary = f"resident {' -> '.join(str(memory // MIB) for memory in memories)} MiB, {peak // MIB} at most"
    is_flat = grown < 8 * MIB and peak - memories[0] < HELD_BODIES * MIB + SLACK_BYTES
    return _together(*verdicts, Verdict(is_flat, summary))


# Checks that start a service of their own, most of them with special settings


def few_descriptors(store: str, workers: int, files: int = 256, clients: int = 600, seconds: float = 3) -> Verdict:
    """Open more connections than the workers have descriptors.

    The service must reject or close the excess connections. It must respond to each later request, or close its
    connection.
    """

    def check(service: Target) -> Verdict:
        with Crowd(service, clients) as silent:
            silent.read_until_closed(seconds)
            rejected = silent.statuses()
            with Crowd(service, 20) as requesting:
                requesting.send(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                requesting.read_until_closed(PATIENCE_SECONDS)
                responses = requesting.statuses()
        comes_true(lambda: not service.connections())
        enough = rejected["503"] + rejected["closed"] >= clients - files * workers
        return Verdict(
            enough and not responses["nothing"],
            f"silent connections: {dict(rejected)}; of 20 requests: {dict(responses)}",
        )

    with running_service(store, workers, descriptors=files, environ={"PLANTS_REQUEST_TIMEOUT": "10"}) as service:
        return unharmed(service, check)


def no_descriptor_left(store: str, workers: int) -> Verdict:
    """Leave the workers no free descriptor, allow some, leave none again, and stop the service."""
    with running_service(store, workers) as service:

        def files(worker: int) -> list[str]:
            return [os.path.realpath(file) for file in Path(f"/proc/{worker}/fd").iterdir()]

        def has_selector(worker: int) -> bool:
            return any(file.endswith("[eventpoll]") for file in files(worker))

        def allow(more: int) -> None:
            for worker in service.workers():
                subprocess.run(["prlimit", f"--pid={worker}", f"--nofile={len(files(worker)) + more}:"], check=True)

        def check(service: Target) -> Verdict:
            allow(0)
            with Crowd(service, 10) as crowd:
                crowd.send(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                time.sleep(0.5)
                allow(50)
                crowd.read_until_closed(PATIENCE_SECONDS)
            return Verdict(not crowd.statuses()["nothing"], f"of 10 waiting requests {dict(crowd.statuses())}")

        # Wait for the selector, because a worker opens files until it has loaded the application and made its selector.
        comes_true(lambda: [has_selector(worker) for worker in service.workers()] == [True] * workers)
        verdict = unharmed(service, check)
        allow(0)
        with Crowd(service, 1):
            time.sleep(0.3)
            errors = service.stop()
    return Verdict(verdict.holds and not errors, f"{verdict.summary}, errors of the stop: {errors[-1:]}")


def stalled_handshakes(store: str, workers: int, clients: int = 200, allowed: int = 20, timeout: int = 5) -> Verdict:
    """Stall TLS handshakes, which must count as connections."""

    def check(service: Target) -> Verdict:
        before = service.descriptors()
        with Crowd(service, clients) as crowd:
            crowd.send_each(lambda number: b"\x16\x03\x01\x02\x00\x01" if number % 2 else b"")
            crowd.read_until_closed(timeout / 2)
            held = service.descriptors() - before
            crowd.read_until_closed(2 * timeout)
            statuses = crowd.statuses()
        is_back = comes_true(lambda: service.descriptors() <= before + STORE_FILES)
        # A rejected connection needs a descriptor, too, until it is closed.
        is_bounded = held <= 2 * allowed * len(service.workers())
        return Verdict(is_bounded and is_back, f"{held} of {clients} held, then {dict(statuses)}, closed: {is_back}")

    environ = {"PLANTS_REQUEST_TIMEOUT": str(timeout)}
    with serving_tls(store, workers, f"--worker-connections={allowed}", environ=environ) as service:
        return unharmed(service, check)


def key_updates(store: str, workers: int, seconds: float = 15, limit: float = 2) -> Verdict:
    """Flood the service with KeyUpdates of TLS 1.3, reconnecting when it closes the connection."""

    def flood(service: Target) -> int:
        with tls_client(service, ssl.TLSVersion.TLSv1_3) as (sock, client, keylog):
            records = Records13(client.ssl, keylog)
            return _send_without_reading(sock, lambda: b"".join(records.key_update() for _ in range(2000)))

    return _tls_flood(store, workers, flood, seconds, limit)


def renegotiations(store: str, workers: int, seconds: float = 15, limit: float = 2) -> Verdict:
    """Flood the service with renegotiations of TLS 1.2, reconnecting when it closes the connection."""

    def flood(service: Target) -> int:
        with tls_client(service, ssl.TLSVersion.TLSv1_2) as (sock, client, keylog):
            records = Records12(client.ssl, keylog, client.server_hello)
            return _send_without_reading(sock, lambda: b"".join(records.client_hello() for _ in range(2000)))

    return _tls_flood(store, workers, flood, seconds, limit)


def _tls_flood(store: str, workers: int, flood: Callable[[Target], int], seconds: float, limit: float) -> Verdict:
    def check(service: Target) -> Verdict:
        sent = connections = 0
        with Bystander(service) as bystander:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                sent += flood(service)
                connections += 1
        verdict = bystander.verdict(limit)
        return Verdict(verdict.holds, f"{sent // 1024:,} KiB on {connections} connections, {verdict.summary}")

    with serving_tls(store, workers) as service:
        return unharmed(service, check)


@contextlib.contextmanager
def serving_tls(
    store: str, workers: int, *options: str, environ: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Target]:
    with tempfile.TemporaryDirectory() as folder:
        certificate = make_certificate(Path(folder))
        options = (*options, f"--keyfile={certificate}", f"--certfile={certificate}")
        with running_service(store, workers, *options, scheme="https", environ=environ) as service:
            yield service


@contextlib.contextmanager
def tls_client(service: Target, version: ssl.TLSVersion) -> Iterator[tuple[socket.socket, TLSClient, Path]]:
    """Complete a handshake; yield the socket, the client and its key log."""
    with tempfile.TemporaryDirectory() as folder, service.connect() as sock:
        keylog = Path(folder, "keys")
        context = trusting(version)
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        context.keylog_filename = str(keylog)
        client = TLSClient(context)
        sent = client.step()
        while sent:
            sock.sendall(sent)
            received = sock.recv(65536)
            client.server_hello = client.server_hello or received
            sent = client.step(received)
        yield sock, client, keylog


def _send_without_reading(sock: socket.socket, make: Callable[[], bytes], seconds: float = 15) -> int:
    """Send, and read nothing, for at most ``seconds`` seconds; return the number of bytes sent.

    Stop earlier if the service closes the connection, or takes more than 1 s to read the data of one ``make()``.
    """
    sent = 0
    sock.settimeout(1)
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            data = make()
            sock.sendall(data)
            sent += len(data)
    return sent


def silent_clients(store: str, workers: int, clients: int = 4000, seconds: float = 10, first: bytes = b"") -> Verdict:
    """Occupy all connections, send one byte at most on each, and replace those that the service closes."""

    def check(service: Target) -> Verdict:
        renewed = 0
        with Crowd(service, 0) as crowd, selectors.DefaultSelector() as selector:

            def renew() -> None:
                sock = service.connect()
                crowd.sockets.append(sock)
                sock.sendall(first)
                selector.register(sock, selectors.EVENT_READ)

            for _ in range(clients):
                renew()
            with Bystander(service, fresh=True) as bystander:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    for key, _ in selector.select(0.1):
                        selector.unregister(key.fileobj)
                        cast(socket.socket, key.fileobj).close()
                        renew()
                        renewed += 1
        responded = bystander.responses.get("200", 0) / sum(bystander.responses.values())
        verdict = bystander.verdict(PATIENCE_SECONDS)
        return Verdict(
            responded >= 0.95, f"{responded:.1%} got 200, {renewed:,} connections renewed, {verdict.summary}"
        )

    with running_service(store, workers, f"--worker-connections={clients}", descriptors=clients + 200) as service:
        return unharmed(service, check)


def large_creates(store: str, workers: int, clients: int = 60, rounds: int = 4, most: int = 256 * MIB) -> Verdict:
    """Create plants of the largest size at once, and read some of the responses slowly."""

    # The dictionary store grows with each plant, so create only one plant in it.
    plant_id = 1 if store == "memory" else None

    def check(service: Target) -> Verdict:
        def request(number: int) -> bytes:
            return _large_create(service, plant_id or new_id(), number)

        statuses: Counter[str] = Counter()
        peaks = []
        for _ in range(rounds):
            with (
                Crowd(service, clients * 2 // 3) as good,
                Crowd(service, clients - clients * 2 // 3, 4096) as slow,
                sampled(service.total_memory, 0.02) as samples,
            ):
                threads = [
                    threading.Thread(target=good.send_each, args=[request]),
                    threading.Thread(target=slow.send_each, args=[request]),
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                good.read_until_closed(PATIENCE_SECONDS)
                slow.read_until_closed(PATIENCE_SECONDS)
                statuses += good.statuses() + slow.statuses()
            peaks.append(max(samples))
            comes_true(lambda: not service.connections())
        summary = f"{' '.join(str(peak // MIB) for peak in peaks)} MiB in total at most, {dict(statuses)}"
        return Verdict(max(peaks) <= most and not statuses["nothing"], summary)

    with running_service(store, workers) as service:
        return unharmed(service, check)


def clients_that_send_a_byte(store: str, workers: int) -> Verdict:
    """Run `silent_clients` with the first byte of a request."""
    return silent_clients(store, workers, first=b"P")


def more_large_creates(store: str, workers: int) -> Verdict:
    """Run `large_creates` with more clients than the number of bodies that a worker buffers."""
    return large_creates(store, workers, clients=200)


def _large_create(service: Target, plant_id: int, number: int) -> bytes:
    """Return a create of 1 MiB. If ``number`` is even, its decoded text needs four times as much memory."""
    start = json.dumps({"id": plant_id, "name": ""}).encode()[:-2]
    end = b'"}' if number % 2 else '🌵"}'.encode()
    body = start + b"x" * (MIB - len(start) - len(end)) + end
    return service.head(b"Content-Length: %d\r\n" % len(body), b"Connection: close\r\n") + body


def talk(service: Target, *pieces: bytes) -> bytes:
    """Send each piece as a packet; return the bytes received until the service is silent for a while."""
    received = b""
    with service.connect() as sock:
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(0.02)
            try:
                sock.sendall(piece)
            except OSError:
                break
        with contextlib.suppress(OSError):
            while data := sock.recv(65536):
                received += data
                sock.settimeout(0.3)
    return received


def chunked_create(service: Target, plant_id: int, *, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    body = plant(plant_id)
    return service.head(CHUNKED) + b"%x%b\r\n%b\r\n0\r\n%b\r\n" % (len(body), extension, body, trailers)


def _together(*verdicts: Verdict) -> Verdict:
    return Verdict(all(verdict.holds for verdict in verdicts), "; ".join(verdict.summary for verdict in verdicts))


def _all_rejected(crowd: Crowd) -> Verdict:
    statuses = crowd.statuses()
    return Verdict(not statuses.keys() & {"nothing", "200", "401", "500"}, f"{dict(statuses)}")


# Each check, and the option that limits its slowest response. A flood keeps the service busy, so its limit is higher.
CHECKS: dict[Callable[..., Verdict], str] = {
    half_heads: "",
    resets_beside_creates: "limit",
    tiny_chunks: "flood_limit",
    tiny_chunks_in_tiny_packets: "flood_limit",
    large_heads: "flood_limit",
    endless_heads: "flood_limit",
    stalled_bodies: "limit",
    byte_after_upload: "",
    aborted_uploads: "",
    large_incomplete_parts: "flood_limit",
    connect: "",
    malformed_trailers: "",
    large_framing: "",
    stalled: "limit",
}
OWN_CHECKS: tuple[Callable[[str, int], Verdict], ...] = (
    few_descriptors,
    no_descriptor_left,
    stalled_handshakes,
    key_updates,
    renegotiations,
    silent_clients,
    clients_that_send_a_byte,
    large_creates,
    more_large_creates,
)


def main() -> int:
    parser = audit_parser(__doc__)
    add_service_options(parser)
    parser.add_argument(
        "--limit", type=float, default=0.1, help="the limit for the slowest response, in seconds (%(default)s)"
    )
    parser.add_argument("--flood-limit", type=float, default=1, help="the same limit during a flood (%(default)s)")
    add_only_option(parser, [check.__name__ for check in (*CHECKS, *OWN_CHECKS)])
    options = parser.parse_args()
    holds = []
    for check, limit in CHECKS.items():
        if not options.only or check.__name__ in options.only:
            limited = partial(check, limit=getattr(options, limit)) if limit else check
            with service_of(options) as service:
                holds.append(report(check.__name__, unharmed(service, limited)))
    holds += [
        report(own_check.__name__, own_check(options.store, options.workers))
        for own_check in OWN_CHECKS
        if not options.only or own_check.__name__ in options.only
    ]
    return int(not all(holds))


if __name__ == "__main__":
    sys.exit(main())
