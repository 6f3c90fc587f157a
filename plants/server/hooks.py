"""The hooks by which a service extends the server."""

from http import HTTPStatus

from plants.server.exchange import Exchange
from plants.server.request import HTTPError
from plants.server.response import Response, make_response


class Hooks:
    """Hooks without extensions, and the base class of those with extensions. No hook may block."""

    __slots__ = ()  # so that a compiled class can be a subclass

    def after_head(self, exchange: Exchange) -> Response | None:
        """Return None, or the response to a request whose body must not arrive, which closes the connection.

        This is called once for each request, when its head is complete. It may set ``exchange.trusted``, ``public``,
        ``blocks``, ``id`` and ``route``, and call ``exchange.drop_body()``. If the server has rejected the head,
        ``exchange.head_parsed`` is false, and the server ignores what this returns.
        """

    def error_response(self, error: HTTPError, exchange: Exchange) -> Response:
        """Return the response to a rejected request, or to a request whose application failed (500)."""
        body = f"{error.message or HTTPStatus(error.status).phrase}\n".encode()
        return make_response(exchange, error.status, [("Content-Type", "text/plain")], body)

    def before_response(self, exchange: Exchange, response: Response) -> None:
        """Handle a response before it is sent."""

    def after_iteration(self) -> None:
        """Do work after an event-loop iteration, when its responses have been sent."""
