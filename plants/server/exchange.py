"""A request with its call of the application (PEP 3333), from its first byte until its response is sent."""

import threading
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

from plants.server.request import Environ, Listener, Request
from plants.server.response import Headers, Response, make_response

current: Final = threading.local()  # ``request`` is the exchange that this thread works for, or None.


class Exchange(Request):
    """A request, its call and the pending work that the call has left.

    ``client`` is the client's address. ``trusted``, ``public``, ``blocks`` and ``route`` are for the hooks to set:
    whether the client has shown valid credentials; whether the request needs none, and reads no body; whether the call
    may block; and a name for the log and the metrics. ``response`` is what the call has returned, or None if it failed;
    it may wait for ``pending`` work. ``over`` is set once a response is sent, which may be another one if the call is
    late, or the client has gone: then no call and no pending work begins.
    """

    trusted: bool = False
    public: bool = False
    blocks: bool = True
    route: str = ""
    over: bool = False
    response: Response | None = None
    fail: Any = None  # returns the error response for a failure of the pending work that has begun
    _status: str = ""
    _headers: Headers = ()

    def __init__(self, connection: Any, listener: Listener, base: Environ, started: float) -> None:
        """Start from ``base``, the environ keys that all requests of a connection share."""
        self.connection = connection
        self.listener = listener
        self.environ = base.copy()
        self.client: str = base["REMOTE_ADDR"]
        self.started = started
        self.pending: list[Any] = []
        self._blocks: list[bytes] = []

    def call(self, body: bytes | bytearray) -> Response:
        """Call the application, and read its response."""
        environ = self.environ
        errors: list[tuple[int, str]] = []
        environ["wsgi.input"] = BytesIO(body)
        environ["server.pending"] = self.pending
        environ["server.errors"] = errors
        iterable: Any = self.listener.application(environ, self._start_response)
        try:
            self._blocks.extend(iterable)
        finally:
            if hasattr(iterable, "close"):
                iterable.close()
            environ.pop("wsgi.input", None)  # Drop the body.
        return make_response(self, self._status, self._headers, b"".join(self._blocks), errors[-1] if errors else None)

    def _start_response(self, status: str, headers: Headers, _exc_info: Any = None) -> Callable[[bytes], None]:
        # No byte has been sent yet, so another call, such as that of an error handler, may replace the response.
        self._status = status
        self._headers = tuple(headers)
        return self._blocks.append
