"""Call an application in this process."""

import asyncio
import io
from typing import Any
from urllib.parse import unquote
from wsgiref.util import setup_testing_defaults

from webtest import TestApp as WebTestApp

from tests.contract import TOKEN, Headers, Response, Send


def sender(app: Any, prefix: str = "") -> Send:
    """Return a function that makes a request through WebTest, which also checks the application against PEP 3333.

    ``prefix`` is prepended to each path.
    """
    webtest = WebTestApp(app, lint=True)

    def send(body: bytes = b"", *, method: str = "POST", path: str = "/plants", headers: Headers) -> Response:
        joined: dict[str, str] = {}
        for name, value in headers:
            # RFC 3875, section 4.1.18: headers with the same name are joined.
            joined[name] = f"{joined[name]},{value}" if name in joined else value
        response = webtest.request(prefix + path, method=method, headers=joined, body=body, expect_errors=True)
        return Response(
            response.status_int, {name.lower(): value for name, value in response.headers.items()}, response.body
        )

    return send


def asgi_sender(app: Any, prefix: str = "") -> Send:
    """Return a function that makes a request to an ASGI application; ``prefix`` is prepended to each path."""

    def send(body: bytes = b"", *, method: str = "POST", path: str = "/plants", headers: Headers) -> Response:
        raw_path, _, query = f"{prefix}{path}".partition("?")
        fields = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        if ("transfer-encoding", "chunked") not in headers:
            fields.append((b"content-length", str(len(body)).encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(raw_path),
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": fields,
            "client": ("127.0.0.1", 12345),
            "server": ("127.0.0.1", 80),
        }
        parts = [{"type": "http.request", "body": part, "more_body": True} for part in (body[:9], body[9:])]
        parts.append({"type": "http.request", "body": b"", "more_body": False})
        messages: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return parts.pop(0)

        async def send_message(message: dict[str, Any]) -> None:
            messages.append(message)

        asyncio.run(app(scope, receive, send_message))
        response = {name.decode().lower(): value.decode() for name, value in messages[0]["headers"]}
        return Response(messages[0]["status"], response, b"".join(message.get("body", b"") for message in messages))

    return send


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
    """Call a WSGI application as a server does; a keyword ``wsgi_name`` stands for the key ``wsgi.name``."""
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
    return Response(int(status[:3]), {name.lower(): value for name, value in headers}, body)
