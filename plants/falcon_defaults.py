"""A Falcon application that responds as ``openapi.json`` says, also where Falcon's defaults differ."""

from collections.abc import Iterable
from typing import Any, NamedTuple
from wsgiref.types import StartResponse

import falcon
from falcon.routing import CompiledRouter

from plants.errors import HEADERS, handle_error

_LOWER_HEADERS = {name.lower(): value for name, value in HEADERS.items()}


class Route(NamedTuple):
    """The facts of a path that a server needs before it calls the application; a resource declares the last two."""

    template: str
    public: bool = False  #: whether a request needs no token, and reads no body
    blocks: bool = True  #: whether a call may wait


_NO_ROUTE = Route("other")  # of a path that has none


class App(falcon.App):  # type: ignore[type-arg]  # Not generic before 4.2, or if OpenTelemetry replaced it.
    """A Falcon application whose responses are JSON by default, and every failure an Error body.

    ``router`` finds its routes.
    """

    _META_METHODS = frozenset()  # Falcon would reject the method WEBSOCKET before the middleware checks the token.

    def __init__(self, *middleware: Any) -> None:
        self.router = Router()
        super().__init__(middleware=list(middleware), response_type=_JSONResponse, router=self.router)
        # Falcon has handlers of its own for the last two.
        for error in (Exception, falcon.HTTPError, falcon.HTTPStatus):
            self.add_error_handler(error, handle_error)

    def __call__(self, env: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Respond to a request (PEP 3333)."""
        # PEP 3333 lets a server omit an empty path. Falcon raises for a path that a host, such as Bottle, has decoded.
        path = env.setdefault("PATH_INFO", "")
        if not path.isascii():
            env["PATH_INFO"] = path.encode("latin-1", "replace").decode("latin-1")
        return super().__call__(env, start_response)


class _JSONResponse(falcon.Response):
    """A response that starts with the headers that all responses have."""

    def __init__(self, options: falcon.ResponseOptions | None = None) -> None:
        super().__init__(options)
        self._headers = _LOWER_HEADERS.copy()


class Router(CompiledRouter):
    """Falcon's router, but ``//plants`` is not ``/plants``, and a method that Falcon does not know is a 405."""

    def __init__(self) -> None:
        super().__init__()
        self._routes: dict[str, Route] = {}  # by template
        self._found: dict[str, Any] = {}  # what Falcon needs of the routes without parameters, by path

    def add_route(self, uri_template: str, resource: object, **options: Any) -> None:
        """Add the route of a resource."""
        super().add_route(uri_template, resource, **options)
        public, blocks = getattr(resource, "public", False), getattr(resource, "blocks", True)
        self._routes[uri_template] = Route(uri_template, public, blocks)
        if "{" not in uri_template:
            self._found[uri_template] = super().find(uri_template)

    def find(self, uri: str, req: Any = None) -> Any:
        """Return what Falcon needs of the route for a path, or None."""
        # Falcon prefers the routes without parameters, too, but splits the path first.
        return self._found.get(uri) or (None if uri.startswith("//") else super().find(uri, req))

    def route_of(self, path: str) -> Route:
        """Return the route of a path, or a route with the template ``other``."""
        if route := self._routes.get(path):  # The template of a route without parameters is its path.
            return route
        found = self.find(path)
        return self._routes[found[3]] if found else _NO_ROUTE

    def map_http_methods(self, resource: object, **options: Any) -> Any:
        """Return the responders of a resource by method."""
        return _Responders(super().map_http_methods(resource, **options))


class _Responders(dict[str, Any]):
    def __missing__(self, method: str) -> Any:
        return self["TRACE"]  # No resource has TRACE, so this responder is the one of a 405.
