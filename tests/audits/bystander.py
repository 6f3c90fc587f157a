"""A well-behaved client that runs in its own process beside an attack; few imports keep its start fast.

    python -m tests.audits.bystander 127.0.0.1:8000 TOKEN

This creates plants at that address until its standard input ends. It prints ``begun`` after the first response, and
at the end a summary as JSON.
"""

import argparse
import http.client
import json
import random
import select
import ssl
import sys
import threading
import time
from collections import Counter
from typing import Any, NamedTuple

PATIENCE_SECONDS = 60


class Response(NamedTuple):
    """A response, with its times.

    Without a complete JSON response, ``status`` is 0, ``body`` is empty, and ``reason`` describes the exception.
    """

    status: int
    body: dict[str, Any]
    retry_after: str | None
    began: float
    ended: float
    reason: str = ""

    @property
    def error(self) -> int | None:
        """The code of an Error body."""
        return self.body.get("error")


def http_client(scheme: str, host: str, port: int) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=PATIENCE_SECONDS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=PATIENCE_SECONDS, context=context)


def exchange(
    client: http.client.HTTPConnection, method: str, path: str, token: str, body: bytes | None = None
) -> Response:
    """Make a request. If the token is empty, send none.

    If the request fails, close the connection; the next request reconnects.
    """
    fields = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    began = time.monotonic()
    try:
        client.request(method, path, body, fields)
        response = client.getresponse()
        document = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        client.close()
        return Response(0, {}, None, began, time.monotonic(), repr(error))
    return Response(response.status, document, response.headers["Retry-After"], began, time.monotonic())


def plant(plant_id: int) -> bytes:
    return json.dumps({"id": plant_id, "name": f"plant {plant_id}"}).encode()


def new_id() -> int:
    return random.getrandbits(62)


class _GoodClient:
    """The well-behaved client, and its responses."""

    def __init__(self, address: str, token: str, scheme: str, *, fresh: bool, probe: bool) -> None:
        host, _, port = address.rpartition(":")
        self._persistent, self._fresh = (http_client(scheme, host, int(port)) for _ in range(2))
        self._persistent_share = 0 if fresh else 0.5
        self._token = token
        self._probe = probe
        self.slowest = 0.0
        self.responses: Counter[str] = Counter()
        self.faults: list[str] = []
        self._last_persistent_response_at = 0.0

    def create(self) -> None:
        client = self._persistent if random.random() < self._persistent_share else self._fresh
        connection = "a new connection"
        if client.sock:
            closed = bool(select.select([client.sock], [], [], 0)[0])
            paused = time.monotonic() - self._last_persistent_response_at
            state = "closed" if closed else "open"
            connection = f"a persistent connection, idle for {paused:.3f} s, {state} when used"
        plant_id = new_id()
        expected = {"status": "live"} if self._probe else {"name": f"plant {plant_id}"}
        if self._probe:
            response = exchange(client, "GET", "/livez", "")
        else:
            response = exchange(client, "POST", "/plants", self._token, plant(plant_id))
        took = response.ended - response.began
        self.slowest = max(self.slowest, took)
        if client is self._persistent:
            self._last_persistent_response_at = response.ended
        self.responses[str(response.error or response.status)] += 1
        self._fresh.close()
        if (response.status, response.body) != (200, expected):
            found = response.error or response.status or response.reason
            self.faults.append(f"a request got {found} after {took:.3f} s on {connection}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="HOST:PORT")
    parser.add_argument("token")
    parser.add_argument(
        "--pause", type=float, default=0.002, help="the pause between two requests, in seconds (%(default)s)"
    )
    parser.add_argument("--fresh", action="store_true", help="make each request on a new connection")
    parser.add_argument("--probe", action="store_true", help="get /livez instead of creating plants")
    parser.add_argument("--scheme", default="http", choices=["http", "https"])
    options = parser.parse_args()
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    good = _GoodClient(options.address, options.token, options.scheme, fresh=options.fresh, probe=options.probe)
    good.create()
    print("begun", flush=True)
    longest_delay = 0.0
    while not over.is_set():
        began = time.monotonic()
        over.wait(options.pause)
        longest_delay = max(longest_delay, time.monotonic() - began - options.pause)
        good.create()
    summary = {
        "slowest": good.slowest,
        "longest_delay": longest_delay,
        "responses": good.responses,
        "faults": good.faults,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
