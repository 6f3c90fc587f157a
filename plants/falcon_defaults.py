"""A Falcon application that responds as ``openapi.json`` says, also where Falcon's defaults differ."""

from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse

import falcon
from falcon.routing import map_http_methods, set_default_responders

from plants.errors import HEADERS, add_error_handling, error_response
from plants.stores import PendingAdd

_LOWER_HEADERS = {name.lower(): value for name, value in HEADERS.items()}


def json_app(*middleware: Any) -> "_App":
    """Return an application without routes. Responses are JSON by default, and every failure is an Error body."""
    router: Any = _ExactRouter()
    app: _App = _App(middleware=list(middleware), response_type=_JSONResponse, router=router)
    add_error_handling(app)
    return app


def may_defer(environ: dict[str, Any]) -> bool:
    """Return whether a response to this request may begin as late as in its iteration.

    The server announces that it supports this. In a mounted application it is not safe, because the outer application
    may read the status before the body, as Bottle's ``mount`` does.
    """
    return bool(environ.get("server.deferred_response") and not environ.get("SCRIPT_NAME"))


class DeferredResponse:
    """A success whose iteration first waits until the plant is stored, and then calls ``start_response`` (PEP 3333).

    A resource sets it as ``resp.stream`` if ``may_defer`` is true.
    """

    __slots__ = ("_body", "_head", "_pending", "_start_response")

    _head: tuple[str, list[tuple[str, str]]]
    _start_response: StartResponse | None

    def __init__(self, pending: PendingAdd, body: bytes) -> None:
        self._pending: PendingAdd | None = pending
        self._body = body

    def begin_with(self, start_response: StartResponse, head: tuple[str, list[tuple[str, str]]]) -> None:
        """Set the status and the headers of the success, and what to pass them to."""
        self._start_response = start_response
        self._head = head

    def __iter__(self) -> Iterator[bytes]:
        """Start the response, and return its body."""
        self.close()
        if self._start_response:  # A second iteration must not start the response again.
            self._start_response(*self._head)
            self._start_response = None
        return iter([self._body])

    def close(self) -> None:
        """Wait until the plant is stored, even if the server discards the response without iterating it."""
        pending, self._pending = self._pending, None
        try:
            if pending:
                pending.result()
        except Exception as error:
            status, headers, self._body = error_response(error)
            headers |= {"Content-Length": str(len(self._body))}
            self._head = status, [(name.lower(), value) for name, value in headers.items()]


class _App(falcon.App):  # type: ignore[type-arg]  # Not generic before 4.2, or if OpenTelemetry replaced it.
    # Falcon responds with 400 to the methods in this set before any middleware runs. By default it has WEBSOCKET.
    _META_METHODS = frozenset()

    def __call__(self, env: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Respond to a request (PEP 3333)."""
        # PEP 3333 lets a server omit an empty path. Falcon raises for text that was decoded as UTF-8, not Latin-1.
        path, query = env.get("PATH_INFO"), env.get("QUERY_STRING")
        if not (type(path) is type(query) is str and path.isascii() and query.isascii()):
            for name in ("PATH_INFO", "QUERY_STRING"):
                env[name] = str(env.get(name) or "").encode("latin-1", "replace").decode("latin-1")
        if not may_defer(env):
            return super().__call__(env, start_response)
        heads: list[Any] = []

        def capture(*head: Any) -> Any:
            heads.append(head[:2])

        response = super().__call__(env, capture)
        if isinstance(response, DeferredResponse):
            response.begin_with(start_response, heads[0])
        else:
            start_response(*heads[0])
        return response


class _JSONResponse(falcon.Response):
    """A response that starts with the headers that all responses have."""

    def __init__(self, options: falcon.ResponseOptions | None = None) -> None:
        super().__init__(options)
        self._headers = _LOWER_HEADERS.copy()


class _ExactRouter:
    """A router with fixed paths. Falcon's own router also finds ``/plants`` for ``//plants``."""

    def __init__(self) -> None:
        self._routes: dict[str, Any] = {}

    def add_route(self, uri_template: str, resource: object, **options: Any) -> None:
        methods = _MethodMap(map_http_methods(resource, **options))
        set_default_responders(methods)
        self._routes[uri_template] = (resource, methods, {}, uri_template)

    def find(self, uri: str, req: falcon.Request | None = None) -> Any:  # noqa: ARG002  # Falcon passes it by name
        return self._routes.get(uri)


class _MethodMap(dict[str, Any]):
    """A resource's responders. Falcon responds with 400 to a method that it does not know; this map makes that 405."""

    def __missing__(self, _method: str) -> Any:
        return self["TRACE"]  # No resource has it, so this is the responder that sends 405.
