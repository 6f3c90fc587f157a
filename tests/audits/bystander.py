"""A well-behaved client that runs in its own process beside an attack; few imports keep its start fast.

Its arguments are the service's URL and a token; with an empty token, it gets /livez instead of creating plants. It
prints ``begun`` after the first response, and, once its standard input ends, a summary as JSON.
"""

import http.client
import json
import random
import select
import ssl
import sys
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PATIENCE_SECONDS = 60
PAUSE_SECONDS = 0.01  # between two requests


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


def http_client(url: str) -> http.client.HTTPConnection:
    scheme, address, *_ = urlsplit(url)
    if scheme == "http":
        return http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(address, timeout=PATIENCE_SECONDS, context=context)


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


class GoodClient:
    """The well-behaved client, and its responses. Half of its requests are on one persistent connection."""

    def __init__(self, url: str, token: str) -> None:
        self._clients = [http_client(url) for _ in range(2)]
        self._token = token
        self.slowest = 0.0
        self.responses = 0
        self.faults: list[str] = []

    def request(self) -> None:
        client = random.choice(self._clients)
        plant_id = new_id()
        if self._token:
            response = exchange(client, "POST", "/plants", self._token, plant(plant_id))
            expected = {"name": f"plant {plant_id}"}
        else:
            response, expected = exchange(client, "GET", "/livez", ""), {"status": "live"}
        took = response.ended - response.began
        self.slowest = max(self.slowest, took)
        self.responses += 1
        self._clients[1].close()
        if (response.status, response.body) != (200, expected):
            found = response.error or response.status or response.reason
            kind = "new" if client is self._clients[1] else "persistent"
            self.faults.append(f"a request got {found} after {took:.3f} s on a {kind} connection")


def main() -> None:
    good = GoodClient(*sys.argv[1:])
    good.request()
    print("begun", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
        good.request()
    print(json.dumps([good.slowest, good.responses, good.faults]))


if __name__ == "__main__":
    main()
