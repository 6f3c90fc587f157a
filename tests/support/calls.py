"""Call an application in this process."""

import gc
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.util import setup_testing_defaults

from webtest import TestApp as WebTestApp

from tests.contract import TOKEN, Headers, Response, Send


def sender(app: Any) -> Send:
    """Return a function that makes a request through WebTest, which also checks the application against PEP 3333."""
    webtest = WebTestApp(app, lint=True)

    def send(body: bytes = b"", *, method: str = "POST", path: str = "/plants", headers: Headers) -> Response:
        joined: dict[str, str] = {}
        for name, value in headers:
            # RFC 3875, section 4.1.18: headers with the same name are joined.
            joined[name] = f"{joined[name]},{value}" if name in joined else value
        response = webtest.request(path, method=method, headers=joined, body=body, expect_errors=True)
        return _response(response.status_int, response.headerlist, response.body)

    return send


def _response(status: int, headers: list[tuple[str, str]], body: bytes) -> Response:
    response = Response(status, {name.lower(): value for name, value in headers}, body)
    assert len(response.headers) == len(headers), "a header is there twice"
    return response


class Stream(io.RawIOBase):
    """A ``wsgi.input``. Each read returns the next chunk; if the chunk is an exception, the read raises it."""

    def __init__(self, *chunks: bytes | Exception) -> None:
        self.chunks = list(chunks)
        self.sizes: list[int] = []

    def read(self, size: int = -1) -> bytes:
        self.sizes.append(size)
        chunk = self.chunks.pop(0) if self.chunks else b""
        if isinstance(chunk, Exception):
            raise chunk
        return chunk


def call(app: Any, stream: Any, **environ: Any) -> Response:
    """Call a WSGI application as a server does.

    A keyword ``wsgi_name`` stands for the key ``wsgi.name``.
    """
    environ = {key.replace("wsgi_", "wsgi."): environ[key] for key in environ}
    environ = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/plants",
        "CONTENT_TYPE": "application/json",
        "HTTP_AUTHORIZATION": f"Bearer {TOKEN}",
        "wsgi.input": stream,
    } | environ
    setup_testing_defaults(environ)
    started: list[tuple[str, list[tuple[str, str]]]] = []
    body = b"".join(app(environ, lambda *head: started.append(head)))
    [(status, headers)] = started
    return _response(int(status[:3]), headers, body)


@contextmanager
def no_reference_cycle() -> Iterator[None]:
    """Check that the block leaves no reference cycle, which would hold its memory until the garbage collector runs."""
    gc.collect()
    gc.disable()
    try:
        yield
        assert gc.collect() == 0
    finally:
        gc.enable()
