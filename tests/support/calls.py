"""Calling an application in the process."""

import io
from typing import Any
from wsgiref.util import setup_testing_defaults

from webtest import TestApp as WebTestApp

from tests.contract import TOKEN, Answer, Headers, Send


def sender(app: Any, prefix: str = "") -> Send:
    """What makes a request through WebTest, with its lint on, to an application that is mounted under a prefix."""
    webtest = WebTestApp(app, lint=True)

    def send(body: bytes = b"", *, method: str = "POST", path: str = "/plants", headers: Headers) -> Answer:
        joined: dict[str, str] = {}
        for name, value in headers:
            # RFC 3875, section 4.1.18: fields of one name are given to the application as one.
            joined[name] = f"{joined[name]},{value}" if name in joined else value
        answer = webtest.request(prefix + path, method=method, headers=joined, body=body, expect_errors=True)
        return Answer(answer.status_int, {name.lower(): value for name, value in answer.headers.items()}, answer.body)

    return send


class Stream(io.RawIOBase):
    """A ``wsgi.input`` that gives these chunks, one a read, and raises those that are exceptions."""

    def __init__(self, *chunks: bytes | Exception) -> None:
        self.chunks = list(chunks)
        self.sizes: list[int] = []

    def read(self, size: int = -1) -> bytes:
        self.sizes.append(size)
        chunk = self.chunks.pop(0) if self.chunks else b""
        if isinstance(chunk, Exception):
            raise chunk
        return chunk


def call(app: Any, stream: Any, **environ: Any) -> Answer:
    """Call a WSGI application the way a server does; keys with underscores stand for those with a point."""
    environ = {key.replace("wsgi_", "wsgi."): value for key, value in environ.items()}
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/plants",
        "CONTENT_TYPE": "application/json",
        "HTTP_AUTHORIZATION": f"Bearer {TOKEN}",
        "wsgi.input": stream,
    } | environ
    setup_testing_defaults(environ)
    started: list[Any] = []
    body = b"".join(app(environ, lambda status, headers: started.extend([status, headers])))
    status, headers = started
    return Answer(int(status[:3]), {name.lower(): value for name, value in headers}, body)
