"""A Gunicorn worker: the event loop with Gunicorn's settings, signals, heartbeat and listeners."""

import io
import os
from collections.abc import Sequence
from functools import lru_cache
from ssl import SSLContext
from types import FrameType
from typing import Any

from gunicorn import SERVER_SOFTWARE
from gunicorn.http.message import MAX_HEADERS
from gunicorn.sock import ssl_context
from gunicorn.workers import base

from plants.server.config import Config
from plants.server.hooks import Hooks
from plants.server.loop import Loop
from plants.server.request import HEAD_BYTES, Listener
from plants.server.tls import restricted


@lru_cache(maxsize=4)
def tls_context(cfg: Any) -> SSLContext:
    """Return the TLS context of a configuration.

    If the master calls this before it forks, its workers use the same context, and start even if the certificate files
    have changed.
    """
    return restricted(ssl_context(cfg))


class ErrorLog(io.TextIOBase):
    """``wsgi.errors`` (PEP 3333), which logs each text that is written to it."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def write(self, text: str) -> int:
        """Log the text as an error, without the white space at its end."""
        if text.strip():
            self._log.error("%s", text.rstrip())
        return len(text)


class Worker(base.Worker):
    """A worker for WSGI applications with small responses. Each response is sent whole, so do not use it for streaming.

    A subclass may set ``max_body_bytes``, and ``request_timeout`` and ``response_timeout`` (seconds for a request to
    arrive completely, and for its response), and override ``may_block``, ``make_hooks`` and ``make_listeners``.
    """

    max_body_bytes: int = 1_048_576
    request_timeout: float = 10.0
    response_timeout: float = 30.0

    loop: Loop

    def may_block(self) -> bool:
        """Return whether threads must call the application, because it may block."""
        return bool(self.cfg.threads > 1)

    def make_hooks(self) -> Hooks:
        """Return the object whose methods the event loop calls."""
        return Hooks()

    def make_listeners(self) -> Sequence[Listener]:
        """Return the listening sockets and their applications."""
        return [Listener(listener.sock, self.wsgi) for listener in self.sockets]

    def load_wsgi(self) -> None:
        """Load the application and create the event loop."""
        super().load_wsgi()
        cfg = self.cfg
        config = Config(
            line_bytes=cfg.limit_request_line or HEAD_BYTES,
            field_bytes=cfg.limit_request_field_size or HEAD_BYTES,
            max_fields=cfg.limit_request_fields or MAX_HEADERS,
            body_bytes=self.max_body_bytes,
            request_seconds=self.request_timeout,
            response_seconds=self.response_timeout,
            keepalive_seconds=cfg.keepalive,
            connections=cfg.worker_connections,
            max_requests=self.max_requests,
            threads=max(cfg.threads, 1) if self.may_block() else 0,
            tls=tls_context(cfg) if cfg.is_ssl else None,
            environ={
                "SERVER_SOFTWARE": SERVER_SOFTWARE,
                "wsgi.errors": ErrorLog(self.log),
                "wsgi.multiprocess": cfg.workers > 1,
            },
        )
        self.loop = Loop(config, self.make_listeners(), self.make_hooks(), self.log, self.PIPE)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """Stop as after ``TERM`` (``INT``, ``QUIT``). Gunicorn's own handler ends the process without responses."""
        self.cfg.worker_int(self)
        self.alive = False

    def run(self) -> None:
        """Serve until a signal, ``max_requests`` or the end of the master stops the worker."""
        self.loop.on_sweep = self._sweep
        self.loop.run(self.cfg.graceful_timeout)

    def _sweep(self) -> None:
        self.notify()
        if not self.alive or self.ppid != os.getppid():
            self.loop.stop()
