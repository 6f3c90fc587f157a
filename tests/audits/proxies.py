"""Clients with idle pauses, behind nginx, Caddy and HAProxy with the recipes in deploy/: no create may fail.

A relay between the proxy and the service delays all data by 10 ms, so the proxy may send a request while the service
closes the connection.
"""

import asyncio
import contextlib
import http.client
import selectors
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import which

from tests.audits.bystander import exchange, new_id, plant
from tests.audits.report import Verdict, add_only_option, audit_parser, report
from tests.contract import TOKEN
from tests.support.hosted import serving
from tests.support.process import free_port, wait_until
from tests.support.proxies import COMMANDS, running_proxy

DELAY_SECONDS = 0.01
PAUSES = (0.5, 1.0, 1.9, 2.0, 2.1, 2.6, 5.0, 10.0, 30.0, 55.0, 59.9, 60.0, 60.1, 65.0, 70.0, 74.9, 75.0, 75.1, 80.0)
DIRECT = "no proxy"  # The pauses of such a client must be shorter than the service's keepalive.
MIN_CREATES = 300


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            await asyncio.sleep(DELAY_SECONDS)
            writer.write(data)
        await asyncio.sleep(DELAY_SECONDS)
        writer.write_eof()


async def _relay(port: int, target: int) -> None:
    tasks = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.add(task)  # The references of asyncio to a task and to its reader are weak.
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", target)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(_pump(reader, upstream_writer), _pump(upstream_reader, writer))
        upstream_writer.close()
        writer.close()
        tasks.discard(task)

    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()


@contextmanager
def delayed(target: int) -> Iterator[int]:
    """Relay connections to the port ``target``, and yield the relay's port."""
    port, loop = free_port(), asyncio.new_event_loop()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner, contextlib.suppress(asyncio.CancelledError):
            runner.run(_relay(port, target))

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(cancel)
        thread.join()


def is_closed(client: http.client.HTTPConnection) -> bool:
    """Return whether the peer has closed the connection, as the pools of clients check before each use."""
    if not client.sock:
        return False
    with selectors.DefaultSelector() as selector:
        selector.register(client.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def create_with_pauses(port: int, path: str, pause: float, until: float, results: list[str]) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() < until:
        if is_closed(client):
            client.close()
        response = exchange(client, "POST", path, TOKEN, plant(new_id()))
        results.append("200" if response.status == 200 else f"{response.status} {response.reason} after {pause} s")
        time.sleep(pause)
    client.close()


def creates_through(proxy: str, seconds: float, clients: int) -> Verdict:
    """Create plants through a proxy for this long, with ``clients`` clients for each pause."""
    results: list[str] = []
    with ExitStack() as stack:
        service = stack.enter_context(serving(GUNICORN_CMD_ARGS=""))
        port = stack.enter_context(delayed(service.port))
        wait_until(lambda: exchange(http.client.HTTPConnection("127.0.0.1", port), "GET", "/livez", "").status == 200)
        path, pauses = "/plants", [pause for pause in PAUSES if pause < 74]
        if proxy != DIRECT:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            port = stack.enter_context(running_proxy(proxy, port, Path(folder)))
            path, pauses = "/v1/plants", list(PAUSES)
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=create_with_pauses, args=(port, path, pause, until, results))
            for pause in pauses * clients
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    counts = Counter(results)
    holds = set(counts) == {"200"} and len(results) >= MIN_CREATES
    return Verdict(holds, f"{len(results)} creates: {dict(counts)}")


def main() -> None:
    parser = audit_parser(__doc__)
    add_only_option(parser, [*COMMANDS, DIRECT])
    parser.add_argument("--seconds", type=float, default=90, help="how long clients create plants (default: 90)")
    parser.add_argument("--clients", type=int, default=4, help="clients for each pause (default: 4)")
    options = parser.parse_args()
    verdicts = []
    for name in options.only or [*COMMANDS, DIRECT]:
        if name != DIRECT and not which(name):
            print(f"skipped: {name} is not installed")
            continue
        verdicts.append(report(name, creates_through(name, options.seconds, options.clients)))
    sys.exit(not all(verdicts))


if __name__ == "__main__":
    main()
