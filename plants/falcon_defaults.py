"""A Falcon application that responds as ``openapi.json`` says, also where Falcon's defaults differ."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from wsgiref.types import StartResponse

import falcon
from falcon.routing import CompiledRouter

from plants.errors import HEADERS, error_response, handle_error

_LOWER_HEADERS = {name.lower(): value for name, value in HEADERS.items()}


def json_app(*middleware: Any) -> "App":
    """Return an application without routes. Responses are JSON by default, and every failure is an Error body."""
    app = App(*middleware)
    for error in (Exception, falcon.HTTPError):  # Falcon has a handler of its own for HTTPError.
        app.add_error_handler(error, handle_error)
    return app


def may_defer(environ: dict[str, Any]) -> bool:
    """Return whether a response to this request may begin as late as in its iteration.

    The server announces that it supports this. In a mounted application it is not safe, because the outer application
    may read the status before the body, as Bottle's ``mount`` does.
    """
    return bool(environ.get("server.deferred_response") and not environ.get("SCRIPT_NAME"))


class DeferredResponse(NamedTuple):
    """A success that must wait for its commit. A resource sets it as ``resp.stream`` if ``may_defer`` is true."""

    wait_until_stored: Callable[[], None]
    body: bytes

    def finish(self, start_response: StartResponse, head: Any) -> Iterator[bytes]:
        """Wait until the plant is stored, then start the response (PEP 3333) and yield its body.

        :param head: the status and the headers of the success.
        """
        body = self.body
        try:
            self.wait_until_stored()
        except Exception as error:
            status, headers, body = error_response(error)
            headers |= {"Content-Length": str(len(body))}
            head = status, [(name.lower(), value) for name, value in headers.items()]
        start_response(*head)
        yield body


class App(falcon.App):  # type: ignore[type-arg]  # Not generic before 4.2, or if OpenTelemetry replaced it.
    """A Falcon application with these defaults; ``router`` finds its routes."""

    _META_METHODS = frozenset()  # Falcon would reject the method WEBSOCKET before the middleware checks the token.

    def __init__(self, *middleware: Any) -> None:
        self.router = Router()
        super().__init__(middleware=list(middleware), response_type=_JSONResponse, router=self.router)

    def __call__(self, env: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Respond to a request (PEP 3333)."""
        # PEP 3333 lets a server omit an empty path. Falcon raises for a path that a host, such as Bottle, has decoded.
        env["PATH_INFO"] = env.get("PATH_INFO", "").encode("latin-1", "replace").decode("latin-1")
        if not may_defer(env):
            return super().__call__(env, start_response)
        heads: list[Any] = []

        def capture(*head: Any) -> Any:
            heads.append(head)

        response = super().__call__(env, capture)
        if isinstance(response, DeferredResponse):
            return response.finish(start_response, heads[0])
        start_response(*heads[0])
        return response


class _JSONResponse(falcon.Response):
    """A response that starts with the headers that all responses have."""

    def __init__(self, options: falcon.ResponseOptions | None = None) -> None:
        super().__init__(options)
        self._headers = _LOWER_HEADERS.copy()


class Router(CompiledRouter):
    """Falcon's router, but ``//plants`` is not ``/plants``, and a method that Falcon does not know is a 405."""

    def find(self, uri: str, req: Any = None) -> Any:
        """Return what Falcon needs of the route for a path, or None."""
        return None if uri.startswith("//") else super().find(uri, req)

    def template_of(self, path: str) -> str | None:
        """Return the URI template of the route for a path, or None."""
        route = self.find(path)
        return route[3] if route else None

    def map_http_methods(self, resource: object, **options: Any) -> Any:
        """Return the responders of a resource by method."""
        return _Responders(super().map_http_methods(resource, **options))


class _Responders(dict[str, Any]):
    def __missing__(self, method: str) -> Any:
        return self["TRACE"]  # No resource has TRACE, so this responder is the one of a 405.
