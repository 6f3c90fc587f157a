"""The hooks by which a service extends the server."""

from http import HTTPStatus

from plants.server.request import HTTPError, Request
from plants.server.response import Response, make_response


class Service:
    """A service without extensions, and the base class of services with extensions. No hook may block."""

    __slots__ = ()  # so that a compiled class can be a subclass

    # The application responds to requests for these paths without blocking, so they need no thread.
    non_blocking_paths: frozenset[str] = frozenset()
    # The application checks Content-Length itself. Otherwise the server responds to a body above its limit with 413.
    checks_body_size: bool = False

    def after_head(self, request: Request) -> None:
        """Handle a request whose head was parsed or rejected; called once for each request."""

    def before_body(self, request: Request) -> Response | None:
        """Decide whether the body of a request may arrive; called once, unless a small one came with its head.

        Return the response to send instead, or None. In both cases this may set ``request.trusted``; in the second one
        it may also call ``request.drop_body()``.
        """

    def error_response(self, error: HTTPError, request: Request) -> Response:
        """Return the response to a rejected request, or to a request whose application failed (500)."""
        status = HTTPStatus(error.status)
        body = f"{error.message or status.phrase}\n".encode()
        headers = [("Content-Type", "text/plain")]
        return make_response(f"{status} {status.phrase}", headers, body, is_head=request.method == "HEAD")

    def before_response(self, request: Request, response: Response) -> None:
        """Handle a response before it is sent; this may set ``request.trusted``."""

    def after_iteration(self) -> None:
        """Do work after an event-loop iteration, when its responses have been sent."""
