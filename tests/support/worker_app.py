"""The server's worker with patient timeouts, and a WSGI application whose paths return different responses."""

import json
import sys
import time
from collections.abc import Callable, Iterable
from inspect import isfunction
from pathlib import Path
from typing import Any
from wsgiref.validate import validator

from plants.server import worker

Environ = dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
LARGE_BODY = bytes(range(250)) * 32_000


class Worker(worker.Worker):
    """A worker with a small limit, and with timeouts that no busy machine exceeds."""

    max_body_bytes = 1000
    request_timeout = 600.0
    response_timeout = 60.0


def echo(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Respond with the body, and with the strings and booleans of the environ."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(length)
    plain = {key: value for key, value in environ.items() if isinstance(value, bool | str)}
    response = json.dumps({"environ": plain, "body": body.decode("latin-1")}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(response)))])
    return [response]


def wait(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Log a line, and respond once the file named in the query exists."""
    print("waiting for the file", file=environ["wsgi.errors"])
    while not Path(environ["QUERY_STRING"]).exists():
        time.sleep(0.01)
    return echo(environ, start_response)


def late(_environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Call start_response only when the server asks for the first block of the body."""
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
    yield b"late"


def large(_environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Respond with more than a socket buffer holds."""
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "8000000")])
    return [LARGE_BODY]


def written(_environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Replace an unsent response with an error response, whose first part is written with write()."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    try:
        raise KeyError("fault")
    except KeyError:
        write = start_response("503 Service Unavailable", [("Content-Type", "text/plain")], sys.exc_info())
    write(b"written ")
    return [b"and returned"]


def in_the_middle(_environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Raise after the first part of the response."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"begun"
    raise SystemExit("a fault in the middle")


RESPONSES = {name: each for name, each in globals().items() if isfunction(each) and name != "echo"}
checked_echo = validator(echo)


def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Dispatch on the last part of the path; by default, echo the request under the validator of PEP 3333."""
    return RESPONSES.get(environ["PATH_INFO"].rpartition("/")[2], checked_echo)(environ, start_response)
