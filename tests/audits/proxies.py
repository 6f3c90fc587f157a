"""Clients with idle pauses, behind nginx, Caddy and HAProxy with the recipes in deploy/: no create may fail.

    python -m tests.audits.proxies
    python -m tests.audits.proxies --only haproxy

A relay between the proxy and the service delays all data by 10 ms, so the proxy may send a request while the service
closes the connection.
"""

import http.client
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import chain
from pathlib import Path

from tests.audits.bystander import exchange, new_id, plant
from tests.audits.report import Verdict, run_checks
from tests.contract import TOKEN
from tests.support.hosted import serving
from tests.support.loop_driver import is_readable
from tests.support.proxies import COMMANDS, running_proxy

SECONDS = 90
DELAY_SECONDS = 0.01
CLIENTS_PER_PAUSE = 4
PAUSES = (0.5, 1.0, 1.9, 2.0, 2.1, 2.6, 5.0, 10.0, 30.0, 55.0, 59.9, 60.0, 60.1, 65.0, 70.0, 74.9, 75.0, 75.1, 80.0)
DIRECT = "no proxy"  # The pauses of such a client must be shorter than the service's keepalive.
MIN_CREATES = 300


def delayed(target: int) -> int:
    """Relay connections to the port ``target`` until this process ends, and return the relay's port."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                time.sleep(DELAY_SECONDS)
                sink.sendall(data)
            time.sleep(DELAY_SECONDS)
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            upstream = socket.create_connection(("127.0.0.1", target))
            for pair in ((client, upstream), (upstream, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def create_with_pauses(port: int, path: str, until: float, pause: float) -> list[str]:
    """Create plants on a persistent connection, and return the status of each response."""
    results = []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        while time.monotonic() < until:
            if client.sock and is_readable(client.sock):  # It is closed. The pools of clients check this, too.
                client.close()
            response = exchange(client, "POST", path, TOKEN, plant(new_id()))
            results.append("200" if response.status == 200 else f"{response.status} {response.reason} after {pause} s")
            time.sleep(pause)
    return results


def creates_through(proxy: str) -> Verdict:
    with ExitStack() as stack:
        service = stack.enter_context(serving(GUNICORN_CMD_ARGS=""))
        port, path, pauses = delayed(service.port), "/plants", [pause for pause in PAUSES if pause < 74]
        if proxy != DIRECT:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            port = stack.enter_context(running_proxy(proxy, port, Path(folder)))
            path, pauses = "/v1/plants", list(PAUSES)
        clients = pauses * CLIENTS_PER_PAUSE
        threads = stack.enter_context(ThreadPoolExecutor(len(clients)))
        create = partial(create_with_pauses, port, path, time.monotonic() + SECONDS)
        counts = Counter(chain.from_iterable(threads.map(create, clients)))
    return Verdict(counts.keys() == {"200"} and counts.total() >= MIN_CREATES, f"creates: {dict(counts)}")


if __name__ == "__main__":
    sys.exit(run_checks(__doc__, {name: partial(creates_through, name) for name in (*COMMANDS, DIRECT)}))
