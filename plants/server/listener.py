"""A listening socket and the application behind it."""

import socket
from collections.abc import Callable, Iterable
from typing import Any

Environ = dict[str, Any]
WSGIApplication = Callable[[Environ, Any], Iterable[bytes]]


class Listener:
    """A listening socket, and the WSGI application that responds to the requests that arrive there.

    When a client connects to this socket, the worker allows ``reserved_connections`` connections above its maximum.
    """

    def __init__(self, sock: socket.socket, application: WSGIApplication, *, reserved_connections: int = 0) -> None:
        self.sock = sock
        self.application = application
        self.reserved_connections = reserved_connections
