"""Change a service under load, as operators do, and check that no client notices.

    python -m tests.audits.changes
    python -m tests.audits.changes --creates 2000 --only hup --only usr2

Clients create plants, and retry a create only if it got no complete response. A change passes if each accepted request
got its response in time and, with SQLite, every acknowledged plant is stored. Each change prints one line; the exit
status is 0 if all pass.
"""

import contextlib
import itertools
import os
import random
import select
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from plants import Plant, open_store
from tests.audits.bystander import new_id, plant
from tests.audits.clients import Crowd, Target, reset_on_close, running_service
from tests.audits.deployment import read_plant
from tests.audits.report import Verdict, add_only_option, audit_parser, report
from tests.contract import TOKEN
from tests.support.hosted import SERVE
from tests.support.process import children, comes_true

# The service promises a response within RESPONSE_SECONDS. It may close an idle connection just as a client sends a
# request, but a close more than CLOSE_SECONDS after the request is a fault of the service.
RESPONSE_SECONDS = 5.0
CLOSE_SECONDS = 0.5
TOKEN_SECONDS = 3.0  # A change of the token file has taken effect after this time.


class Load:
    """Clients that create plants one after the other, until ``creates`` are acknowledged.

    With ``lasts``, they go on until the ``with`` block ends, so that there are requests during each change. A refused
    connection is a fault; with ``service_may_stop``, the load ends instead.

    ``seen`` counts the 200s, and the connections that the service closed as a request arrived. ``faults`` counts each
    other result.
    """

    def __init__(
        self,
        service: Target,
        creates: int,
        clients: int = 16,
        *,
        service_may_stop: bool = False,
        pause: float = 0,
        reuses_connections: bool = True,
        lasts: bool = False,
    ) -> None:
        self.service = service
        self.acknowledged: list[int] = []
        self.seen: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.slowest = 0.0
        self._without_response: list[int] = []
        self._creates = creates
        self._service_may_stop = service_may_stop
        self._pause = pause
        self._reuses_connections = reuses_connections
        self._lasts = lasts
        self._first = new_id()
        self._numbers = itertools.count()
        self.over = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._lasts = False
        for thread in self._threads:
            thread.join()
        self.over.set()

    def has_created_enough(self) -> bool:
        return len(self.acknowledged) >= self._creates

    def is_over(self) -> bool:
        return self.over.is_set() or not any(thread.is_alive() for thread in self._threads)

    def verdict(self, *more: str, database: str = "") -> Verdict:
        """Return the result of all requests; with a database, also check what it has stored."""
        if database:
            with contextlib.closing(open_store(database)) as store:
                lost = [
                    number
                    for number in self.acknowledged
                    if read_plant(store, number) != Plant(number, f"plant {number}")
                ]
                self.faults["acknowledged and lost"] += len(lost)
                stored = [number for number in self._without_response if read_plant(store, number)]
                self.faults["stored, but no response was sent"] += len(stored)
        self.faults += Counter()  # This removes the zeros.
        faults = [f"{number} x {fault}" for fault, number in self.faults.items()]
        seen = [f"{number:,} x {what}" for what, number in self.seen.items()]
        slowest = f"slowest {self.slowest * 1000:.0f} ms"
        return Verdict(not faults and not more, ", ".join([*seen, slowest, *(f"! {fault}" for fault in faults), *more]))

    def _work(self) -> None:
        sock: socket.socket | None = None
        while (self._lasts or not self.has_created_enough()) and not self.over.is_set():
            number = self._first + next(self._numbers)
            was_sent = False
            time.sleep(self._pause)
            while True:
                began = time.monotonic()
                if sock is None and not (sock := self._connect()):
                    break
                if _is_closed(sock):
                    # The connection was closed before the client sent the request on it, so try again on a new one.
                    sock.close()
                    sock = None
                    continue
                status, error, stays_open = self._request(sock, number)
                self.slowest = max(self.slowest, time.monotonic() - began)
                if not (stays_open and self._reuses_connections):
                    sock.close()
                    sock = None
                if status == 200:
                    self.acknowledged.append(number)
                    self.seen["200"] += 1
                elif status == 0:
                    was_sent = True
                    continue
                elif error == 40003 and was_sent:
                    self.faults["accepted, then closed without a response"] += 1
                else:
                    self.faults[f"{error or status}"] += 1
                was_sent = False
                break
            if was_sent:
                self._without_response.append(number)
            if sock is None and self.over.is_set():
                break
        if sock:
            sock.close()

    def _connect(self) -> socket.socket | None:
        try:
            return self.service.connect()
        except OSError as error:
            if self._service_may_stop:
                self.over.set()
            else:
                self.faults[f"no connection ({error.strerror})"] += 1
                time.sleep(0.05)
            return None

    def _request(self, sock: socket.socket, number: int) -> tuple[int, int, bool]:
        """Return the status (0 without a response), the code of the error, and whether the connection stays open."""
        body = plant(number)
        began = time.monotonic()
        received = b""
        try:
            sock.settimeout(2 * RESPONSE_SECONDS)
            sock.sendall(self.service.head(b"Content-Length: %d\r\n" % len(body)) + body)
            while b"\r\n\r\n" not in received or len(received) < _length(received):
                if not (data := sock.recv(65536)):
                    break
                received += data
        except TimeoutError:
            self.faults["timed out without a complete response"] += 1
            return 0, 0, False
        except OSError:
            pass
        elapsed = time.monotonic() - began
        if b"\r\n\r\n" not in received or len(received) < _length(received):
            if received:
                self.faults["a part of a response"] += 1
            elif elapsed > CLOSE_SECONDS:
                self.faults[f"closed without a response, more than {CLOSE_SECONDS} s after the request"] += 1
            else:
                self.seen["closed as the request arrived"] += 1
            return 0, 0, False
        if elapsed > RESPONSE_SECONDS:
            self.faults[f"a response after more than {RESPONSE_SECONDS:.0f} s"] += 1
        head, _, content = received.partition(b"\r\n\r\n")
        status = int(head[9:12])
        if status == 200 and content != b'{"name": "plant %d"}' % number and content != b'{"name":"plant %d"}' % number:
            self.faults["the response of another request"] += 1
        error = int(content[content.index(b":") + 1 :].split(b",")[0]) if status != 200 else 0
        return status, error, b"\r\nconnection: close" not in head.lower()


def _length(received: bytes) -> int:
    head, _, _ = received.partition(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return len(head) + 4 + int(length.split(b":")[1])


def _is_closed(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _ends_in_time(master: int) -> bool:
    """Wait for a master to end, and return whether it did."""
    return comes_true(lambda: not Target("", 0, "", master).runs())


def errors_during_stop(service: Target) -> list[str]:
    """Stop a service (``TERM``), and return the lines of its log that report errors."""
    os.kill(service.master, signal.SIGTERM)
    ended = _ends_in_time(service.master)
    return service.new_log_errors() + ["it does not end"] * (not ended)


@contextlib.contextmanager
def _store_in_folder(store: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the URL of a database ("" for the dictionary store), and the environment of a service that uses it."""
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/plants.db" if store == "sqlite" else ""
        yield database, {"PLANTS_STORE": database} if database else {}


def _repeat(load: Load, change: Callable[[int], object], seconds: float, at_least: int = 1) -> int:
    """Repeat a change every ``seconds`` seconds while the load creates plants, and return the number of changes.

    Stop when the load is over, or when it has created enough plants and there were ``at_least`` changes.
    """
    number = 0
    while not load.is_over() and (number < at_least or not load.has_created_enough()):
        change(number)
        number += 1
        load.over.wait(seconds)
    return number


def hup(store: str, workers: int, creates: int) -> Verdict:
    """Reload the configuration and replace the workers repeatedly (``HUP``)."""
    with _store_in_folder(store) as (database, environ), running_service(store, workers, environ=environ) as service:
        with Load(service, creates, pause=0.02, lasts=True) as load:
            # Wait 1 s between two signals, because each makes the master stop its workers with TERM. TERM would kill a
            # worker that has not installed its signal handlers yet.
            number = _repeat(load, lambda _: os.kill(service.master, signal.SIGHUP), 1)
        verdict = load.verdict(*service.new_log_errors()[:1], database=database)
    return Verdict(verdict.holds, f"{number} times: {verdict.summary}")


def term(store: str, workers: int, creates: int, each: int = 1000) -> Verdict:
    """Stop and restart the service after about ``each`` plants, while health checks connect and reset."""
    starts = 0
    verdicts: list[Verdict] = []
    acknowledged = 0
    slowest_stop = 0.0
    with _store_in_folder(store) as (database, environ):
        while acknowledged < creates and starts < 100:
            starts += 1
            with running_service(store, workers, environ=environ) as service:
                with Load(service, creates, service_may_stop=True) as load, _resets(service):
                    comes_true(lambda: len(load.acknowledged) >= min(each, creates // 2) or load.is_over())
                    began = time.monotonic()
                    os.kill(service.master, signal.SIGTERM)
                    ended = _ends_in_time(service.master)
                    slowest_stop = max(slowest_stop, time.monotonic() - began)
                    load.over.set()
                verdicts.append(load.verdict(*service.new_log_errors()[:1], database=database))
                acknowledged += len(load.acknowledged)
            if not ended:
                break
    faults = [verdict.summary for verdict in verdicts if not verdict.holds]
    if slowest_stop > 2 * RESPONSE_SECONDS:
        faults.append("a stop took too long")
    summary = f"{acknowledged:,} x 200 with {starts} starts, the slowest stop {slowest_stop:.1f} s"
    return Verdict(not faults, f"{summary}, {len(faults)} with faults: {faults[:2]}" if faults else summary)


def term_in_the_middle(store: str, workers: int, _creates: int) -> Verdict:
    """Stop the service while some requests arrive and others wait for the database; each must get its response."""
    with _store_in_folder(store) as (database, environ), running_service(store, workers, environ=environ) as service:
        bodies = [plant(new_id()) for _ in range(16)]
        requests = [service.head(b"Content-Length: %d\r\n" % len(body)) + body for body in bodies]
        with Crowd(service, 8) as late, Crowd(service, 8) as waiting, contextlib.ExitStack() as locked:
            late.send_each(lambda number: requests[number][:-5])
            if database:
                locker = sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None)
                locked.enter_context(contextlib.closing(locker))
                locker.execute("BEGIN IMMEDIATE")
            waiting.send_each(lambda number: requests[8 + number])
            time.sleep(0.2)
            os.kill(service.master, signal.SIGTERM)
            time.sleep(2)
            locked.close()
            late.send_each(lambda number: requests[number][-5:])
            for crowd in (late, waiting):
                crowd.read_until_closed(RESPONSE_SECONDS)
            statuses = late.statuses() + waiting.statuses()
        ended = _ends_in_time(service.master)
        errors = service.new_log_errors()
    summary = f"of 16 {dict(statuses)}, ended: {ended}, in the log: {errors[-1:]}"
    return Verdict(statuses["200"] == 16 and ended and not errors, summary)


def term_of_one_of_two(store: str, workers: int, creates: int) -> Verdict:
    """Drain one of two services, as a load balancer does, and then stop it."""
    if store == "memory":
        return Verdict(True, "skipped: processes cannot share a memory: store")
    with (
        _store_in_folder(store) as (database, environ),
        running_service(store, workers, environ=environ) as first,
        running_service(store, workers, environ=environ) as second,
    ):
        with Load(first, creates, pause=0.005, reuses_connections=False) as load:
            comes_true(lambda: len(load.acknowledged) >= creates // 2)
            load.service = second
            comes_true(lambda: not first.connections())  # The first service is drained.
            errors = errors_during_stop(first)
        verdict = load.verdict(*errors, *second.new_log_errors()[:1], database=database)
    cut_off = load.seen["closed as the request arrived"]
    return Verdict(verdict.holds and not cut_off, verdict.summary)


@contextlib.contextmanager
def _resets(service: Target) -> Iterator[None]:
    """Send readiness checks that reset their connection, most of them after the response has begun."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            try:
                sock = service.connect()
            except OSError:
                return
            with sock, contextlib.suppress(OSError):
                reset_on_close(sock)
                sock.send(b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                if random.random() < 0.9:
                    sock.recv(1)  # The reset then arrives after the response has begun.

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def usr2(store: str, workers: int, creates: int) -> Verdict:
    """Start a new master beside the old one, and stop the old one, repeatedly (``USR2``, then ``TERM``)."""
    if store == "memory":
        return Verdict(True, "skipped: processes cannot share a memory: store")
    with _store_in_folder(store) as (database, environ), tempfile.TemporaryDirectory() as folder:
        pid_file = Path(folder, "pid")
        with running_service(store, workers, f"--pid={pid_file}", environ=environ) as service:
            masters = [service.master]
            faults: list[str] = []

            def change(_: int) -> None:
                if faults:
                    return
                old, new_file = masters[-1], Path(f"{pid_file}.2")
                os.kill(old, signal.SIGUSR2)
                if not comes_true(lambda: new_file.exists() and new_file.read_text().strip()):
                    faults.append("no new master")
                    return
                masters.append(int(new_file.read_text()))
                if not comes_true(lambda: len(children(masters[-1])) >= workers):
                    faults.append("a new master without workers")
                time.sleep(1)  # As operators do, wait a second for the new workers to start.
                os.kill(old, signal.SIGTERM)
                if not _ends_in_time(old):
                    faults.append("the old master does not end")
                comes_true(lambda: pid_file.exists() and pid_file.read_text().strip() == str(masters[-1]))

            with Load(service, creates, pause=0.02, lasts=True) as load:
                _repeat(load, change, 0.5)
            for master in masters[1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(master, signal.SIGTERM)
            _ends_in_time(masters[-1])
            verdict = load.verdict(*faults, *service.new_log_errors()[:1], database=database)
    return Verdict(verdict.holds, f"{len(masters) - 1} new masters: {verdict.summary}")


def usr2_keeps_the_token(store: str, workers: int, _creates: int) -> Verdict:
    """Check that a new master inherits the generated token of the old one."""
    with _store_in_folder(store) as (_, environ), tempfile.TemporaryDirectory() as folder:
        pid_file = Path(folder, "pid")
        options = [f"--pid={pid_file}"]
        # Pass SERVE, so that coverage measures the service; with the default command, it would not.
        with running_service(store, workers, *options, token="", command=SERVE, environ=environ) as service:
            os.kill(service.master, signal.SIGUSR2)
            new_file = Path(f"{pid_file}.2")
            if not comes_true(lambda: new_file.exists() and new_file.read_text().strip()):
                return Verdict(False, "no new master")
            master = int(new_file.read_text())
            comes_true(lambda: len(children(master)) >= workers)
            time.sleep(1)
            os.kill(service.master, signal.SIGTERM)
            ended = _ends_in_time(service.master)
            status = service.create(new_id()).status
            with contextlib.suppress(ProcessLookupError):
                os.kill(master, signal.SIGTERM)
            _ends_in_time(master)
    return Verdict(ended and status == 200, f"a create with the old master's token: {status}")


def workers_more_and_fewer(store: str, workers: int, creates: int) -> Verdict:
    """Change the number of workers repeatedly (``TTIN``, ``TTOU``)."""
    if store == "memory":
        return Verdict(True, "skipped: processes cannot share a memory: store")
    changes = [signal.SIGTTIN, signal.SIGTTIN, signal.SIGTTOU, signal.SIGTTOU]
    with _store_in_folder(store) as (database, environ), running_service(store, workers, environ=environ) as service:
        with Load(service, creates, pause=0.02, lasts=True) as load:
            number = _repeat(load, lambda number: os.kill(service.master, changes[number % 4]), 0.7, len(changes))
        verdict = load.verdict(*service.new_log_errors()[:1], database=database)
    return Verdict(verdict.holds, f"{number} times: {verdict.summary}")


def token_rotation(store: str, workers: int, creates: int) -> Verdict:
    """Add a new token to the file, switch the clients to the new token, and remove the old one, repeatedly."""
    with _store_in_folder(store) as (database, environ), tempfile.TemporaryDirectory() as folder:
        file, new = Path(folder, "tokens"), Path(folder, "new")
        file.write_text(f"{TOKEN}\n")
        faults: list[str] = []

        def write(*tokens: str) -> None:
            new.write_text("".join(f"{token}\n" for token in tokens))
            new.replace(file)
            load.over.wait(TOKEN_SECONDS)

        def change(number: int) -> None:
            old, token = service.token, f"token-{number}"
            write(old, token)
            service.token = token
            load.over.wait(0.3)  # Wait for the responses to requests with the old token.
            write(token)
            removed = Target(service.host, service.port, old)
            if any(removed.create(new_id()).error != 40101 for _ in range(4)):
                faults.append(f"a removed token is accepted after {TOKEN_SECONDS} s")

        with running_service(store, workers, environ={"PLANTS_TOKENS_FILE": str(file), **environ}) as service:
            with Load(service, creates, pause=0.02, lasts=True) as load:
                number = _repeat(load, change, 0.1)
            verdict = load.verdict(*faults[:1], *service.new_log_errors()[:1], database=database)
    return Verdict(verdict.holds, f"{number} times: {verdict.summary}")


CHANGES: tuple[Callable[[str, int, int], Verdict], ...] = (
    hup,
    term,
    term_in_the_middle,
    term_of_one_of_two,
    usr2,
    usr2_keeps_the_token,
    workers_more_and_fewer,
    token_rotation,
)


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument("--store", default="sqlite", choices=["memory", "sqlite"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--creates", type=int, default=20_000, help="acknowledged plants for each change (%(default)s)")
    add_only_option(parser, [change.__name__ for change in CHANGES])
    options = parser.parse_args()
    holds = [
        report(change.__name__, change(options.store, options.workers, options.creates))
        for change in CHANGES
        if not options.only or change.__name__ in options.only
    ]
    return int(not all(holds))


if __name__ == "__main__":
    sys.exit(main())
