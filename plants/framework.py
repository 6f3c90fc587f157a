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
        # If SCRIPT_NAME is set, do not defer: the outer application may read the status before the body. Bottle does.
        if not env.get("server.deferred_response") or env.get("SCRIPT_NAME"):
            env.pop("plants.pending_adds", None)  # Middleware may use the environ of an earlier call.
            return super().__call__(env, start_response)
        response = _DeferredResponse(env, start_response)
        env["plants.pending_adds"] = response.pending_adds
        response.body = super().__call__(env, response.capture)
        if response.pending_adds:
            return response
        start_response(*response.head)
        return response.body


class _DeferredResponse:
    """A response whose iteration first waits until the plant is stored, then calls ``start_response`` (PEP 3333)."""

    __slots__ = ("_env", "_start_response", "body", "head", "pending_adds")

    head: tuple[str, list[tuple[str, str]]]
    body: Iterable[bytes]

    def __init__(self, env: dict[str, Any], start_response: StartResponse) -> None:
        self._env = env
        self._start_response: StartResponse | None = start_response
        self.pending_adds: list[PendingAdd] = []

    def capture(self, status: str, headers: list[tuple[str, str]], _exc_info: object = None) -> Any:
        """Record the head in place of ``start_response``."""
        self.head = status, headers

    def __iter__(self) -> Iterator[bytes]:
        self.close()
        if self._start_response:  # A second iteration must not start the response again.
            self._start_response(*self.head)
            self._start_response = None
        return iter(self.body)

    def close(self) -> None:
        # If the server discards the response without iterating it, still store the plant, as an undeferred call does.
        try:
            while self.pending_adds:
                self.pending_adds.pop().result()
        except Exception as error:
            self.head, self.body = error_response(self._env, error)


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
        if "{" in uri_template:
            raise ValueError(f"{uri_template} has a parameter, but all paths of this application are fixed")
        methods = _MethodMap(map_http_methods(resource, **options))
        set_default_responders(methods)
        self._routes[uri_template] = (resource, methods, {}, uri_template)

    def find(self, uri: str, req: falcon.Request | None = None) -> Any:  # noqa: ARG002  # Falcon passes it by name
        return self._routes.get(uri)


class _MethodMap(dict[str, Any]):
    """A resource's responders. Falcon responds with 400 to a method that it does not know; this map makes that 405."""

    def __missing__(self, _method: str) -> Any:
        return self["TRACE"]  # No resource has it, so this is the responder that sends 405.
