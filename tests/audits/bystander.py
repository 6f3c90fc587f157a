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


def request(client: http.client.HTTPConnection, token: str) -> tuple[float, str]:
    """Make a request, and return the seconds that it took, and what was wrong with the response."""
    plant_id = new_id()
    if token:
        response = exchange(client, "POST", "/plants", token, plant(plant_id))
        expected = {"name": f"plant {plant_id}"}
    else:
        response, expected = exchange(client, "GET", "/livez", ""), {"status": "live"}
    took = response.ended - response.began
    if (response.status, response.body) == (200, expected):
        return took, ""
    return took, f"a request got {response.error or response.status or response.reason} after {took:.3f} s"


def main() -> None:
    url, token = sys.argv[1:]
    times: list[float] = []
    faults: list[str] = []
    clients = {"persistent": http_client(url), "new": http_client(url)}
    while not times or not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
        kind = random.choice([*clients])
        took, fault = request(clients[kind], token)
        clients["new"].close()
        times.append(took)
        if fault:
            faults.append(f"{fault} on a {kind} connection")
        if len(times) == 1:
            print("begun", flush=True)
    print(json.dumps([max(times), len(times), faults]))


if __name__ == "__main__":
    main()
