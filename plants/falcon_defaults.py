"""A Falcon application that responds as ``openapi.json`` says, also where Falcon's defaults differ."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse

import falcon
from falcon.routing import CompiledRouter

from plants.errors import HEADERS, error_response, handle_error

_LOWER_HEADERS = {name.lower(): value for name, value in HEADERS.items()}


Submit = Callable[[], Callable[[], None]]  # queues work, and returns a function that waits for it


class _Deferral:
    """Work that a resource leaves until Falcon has returned. After that, it is closed."""

    def __init__(self) -> None:
        self.is_open = True
        self.submit: Submit | None = None


def defer(environ: dict[str, Any], submit: Submit) -> bool:
    """Return whether ``submit`` will be called, and the response wait for its result; otherwise do the work now."""
    deferral: _Deferral | None = environ.get("plants.deferral")
    if deferral is None or not deferral.is_open:
        return False
    deferral.submit = submit
    return True


class _PendingResponse:
    """A response (PEP 3333) that waits for submitted work when it is read; a failure replaces it."""

    _blocks: list[bytes] | None = None
    _error: BaseException | None = None
    _failure: tuple[str, list[tuple[str, str]], bytes] | None = None
    _wait: Callable[[], None] | None = None

    def __init__(
        self, response: Iterable[bytes], submit: Submit, environ: dict[str, Any], start_response: StartResponse
    ) -> None:
        self._response = response
        self._environ = environ
        self._pending: list[Any] = environ["server.pending"]
        self._pending.append(self.outcome)  # until a reader knows the outcome
        self._start_response = start_response
        try:
            self._wait = submit()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        status, headers, body = error_response(error, self._environ)
        headers |= {"Content-Length": str(len(body))}
        self._failure = status, [(name.lower(), value) for name, value in headers.items()], body
        self._error = error.with_traceback(None)  # Its frames would refer to this object.

    def outcome(self) -> tuple[str, list[tuple[str, str]], bytes] | None:
        """Wait for the work; return None, or if it failed, the status, the headers and the body of the response."""
        wait, self._wait = self._wait, None
        if wait:
            try:
                wait()
            except BaseException as error:  # An asyncio.CancelledError or a SystemExit must not end the thread.
                self._fail(error)
        return self._failure

    def __iter__(self) -> Iterator[bytes]:
        failure = self.outcome() if self._wait else self._failure
        if failure:
            status, headers, body = failure
            # Nothing was sent, so this replaces what Falcon has started. Some hosts raise the error instead.
            self._start_response(status, headers, (type(self._error), self._error, None))  # type: ignore[arg-type]  # no traceback
            self._blocks = [body]
        elif self._blocks is None:
            self._blocks = [*self._response]
        if self._pending and self.outcome in self._pending:
            self._pending.remove(self.outcome)
        return iter(self._blocks)

    def close(self) -> None:
        """Close the response that was started."""
        response, self._response = self._response, ()
        if hasattr(response, "close"):
            response.close()


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
        if env.get("server.pending") is None:
            return super().__call__(env, start_response)
        deferral = env["plants.deferral"] = _Deferral()
        try:
            response = super().__call__(env, start_response)
        finally:
            # If a wrapper of Falcon runs it later, while its response is read, nothing would submit the work.
            deferral.is_open = False
        if not deferral.submit:
            return response
        return _PendingResponse(response, deferral.submit, env, start_response)


class _JSONResponse(falcon.Response):
    """A response that starts with the headers that all responses have."""

    def __init__(self, options: falcon.ResponseOptions | None = None) -> None:
        super().__init__(options)
        self._headers = _LOWER_HEADERS.copy()


class Router(CompiledRouter):
    """Falcon's router, but ``//plants`` is not ``/plants``, and a method that Falcon does not know is a 405."""

    def __init__(self) -> None:
        super().__init__()
        self._fixed_routes: dict[str, Any] = {}  # by path

    def add_route(self, uri_template: str, resource: object, **options: Any) -> None:
        """Add the route of a resource."""
        super().add_route(uri_template, resource, **options)
        if "{" not in uri_template:
            self._fixed_routes[uri_template] = super().find(uri_template)

    def find(self, uri: str, req: Any = None) -> Any:
        """Return what Falcon needs of the route for a path, or None."""
        fixed = self._fixed_routes.get(uri)  # Falcon prefers these, but splits the path first.
        if fixed:
            resource, responders, _, template = fixed
            return resource, responders, {}, template
        return None if uri.startswith("//") else super().find(uri, req)

    def template_of(self, path: str) -> str | None:
        """Return the URI template of the route for a path, or None."""
        if path in self._fixed_routes:
            return path
        route = self.find(path)
        return route[3] if route else None

    def map_http_methods(self, resource: object, **options: Any) -> Any:
        """Return the responders of a resource by method."""
        return _Responders(super().map_http_methods(resource, **options))


class _Responders(dict[str, Any]):
    def __missing__(self, method: str) -> Any:
        return self["TRACE"]  # No resource has TRACE, so this responder is the one of a 405.
