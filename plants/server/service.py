"""The hooks by which a service extends the server."""

from http import HTTPStatus

from plants.server.request import HTTPError, Request
from plants.server.response import Response, make_response


class Service:
    """A service without extensions, and the base class of services with extensions. No hook may block."""

    __slots__ = ()  # so that a compiled class can be a subclass

    def after_head(self, request: Request) -> Response | None:
        """Return None, or the response to a request whose body must not arrive, which closes the connection.

        This is called once for each request, when its head is complete. It may set ``request.trusted`` and call
        ``request.drop_body()``. If the server has rejected the head, ``request.head_parsed`` is false, and the server
        ignores what this returns.
        """

    def error_response(self, error: HTTPError, request: Request) -> Response:
        """Return the response to a rejected request, or to a request whose application failed (500)."""
        status = HTTPStatus(error.status)
        body = f"{error.message or status.phrase}\n".encode()
        headers = [("Content-Type", "text/plain")]
        return make_response(f"{status} {status.phrase}", headers, body, is_head=request.method == "HEAD")

    def before_response(self, request: Request, response: Response) -> None:
        """Handle a response before it is sent."""

    def after_iteration(self) -> None:
        """Do work after an event-loop iteration, when its responses have been sent."""
