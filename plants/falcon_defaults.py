"""A Falcon application that responds as ``openapi.json`` says, also where Falcon's defaults differ."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse

import falcon
from falcon.routing import map_http_methods, set_default_responders

from plants.errors import HEADERS, error_response, handle_error

# Falcon knows only these. Others are passed on as TRACE, so they become 405.
_METHODS = frozenset(falcon.HTTP_METHODS)
_LOWER_HEADERS = {name.lower(): value for name, value in HEADERS.items()}


def json_app(*middleware: Any) -> "_App":
    """Return an application without routes. Responses are JSON by default, and every failure is an Error body."""
    router: Any = _ExactRouter()
    app: _App = _App(middleware=list(middleware), response_type=_JSONResponse, router=router)
    for error in (Exception, falcon.HTTPError):  # Falcon has a handler of its own for HTTPError.
        app.add_error_handler(error, handle_error)
    return app


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

    def __init__(
        self, response: Iterable[bytes], submit: Submit, environ: dict[str, Any], start_response: StartResponse
    ) -> None:
        self._response = response
        self._environ = environ
        self._start_response = start_response
        self._blocks: list[bytes] | None = None
        self._error: Exception | None = None
        self._failure: tuple[str, list[tuple[str, str]], bytes] | None = None
        self._wait = self._attempt(submit)

    def _attempt(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except Exception as error:
            status, headers, body = error_response(error, self._environ)
            headers |= {"Content-Length": str(len(body))}
            self._failure = status, [(name.lower(), value) for name, value in headers.items()], body
            self._error = error.with_traceback(None)  # Its frames would refer to this object.

    def outcome(self) -> tuple[str, list[tuple[str, str]], bytes] | None:
        """Wait for the work; return None, or if it failed, the status, the headers and the body of the response."""
        wait, self._wait = self._wait, None
        if wait:
            self._attempt(wait)
        return self._failure

    def __iter__(self) -> Iterator[bytes]:
        failure = self.outcome()
        if failure:
            status, headers, body = failure
            # Nothing was sent, so this replaces what Falcon has started. Some hosts raise the error instead.
            self._start_response(status, headers, (type(self._error), self._error, None))  # type: ignore[arg-type]  # no traceback
            yield body
            return
        if self._blocks is None:
            self._blocks = [*self._response]
        yield from self._blocks

    def close(self) -> None:
        """Close the response that was started."""
        response, self._response = self._response, ()
        if hasattr(response, "close"):
            response.close()


class _App(falcon.App):  # type: ignore[type-arg]  # Not generic before 4.2, or if OpenTelemetry replaced it.
    def __call__(self, env: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Respond to a request (PEP 3333)."""
        # PEP 3333 lets a server omit an empty path. Falcon raises for a path that a host, such as Bottle, has decoded.
        env["PATH_INFO"] = env.get("PATH_INFO", "").encode("latin-1", "replace").decode("latin-1")
        if env["REQUEST_METHOD"] not in _METHODS:
            env = env | {"REQUEST_METHOD": "TRACE"}
        pending = env.get("server.pending")
        if pending is None:
            return super().__call__(env, start_response)
        deferral = env["plants.deferral"] = _Deferral()
        try:
            response = super().__call__(env, start_response)
        finally:
            # If a wrapper of Falcon runs it later, while its response is read, nothing would submit the work.
            deferral.is_open = False
        if not deferral.submit:
            return response
        waiting = _PendingResponse(response, deferral.submit, env, start_response)
        pending.append(waiting.outcome)
        return waiting


class _JSONResponse(falcon.Response):
    """A response that starts with the headers that all responses have."""

    def __init__(self, options: falcon.ResponseOptions | None = None) -> None:
        super().__init__(options)
        self._headers = _LOWER_HEADERS.copy()


class _ExactRouter:
    """A router with fixed paths. Falcon's own router also finds ``/plants`` for ``//plants``."""

    def __init__(self) -> None:
        self._routes: dict[str, Any] = {}

    def add_route(self, uri_template: str, resource: object) -> None:
        methods = map_http_methods(resource)
        set_default_responders(methods)
        self._routes[uri_template] = (resource, methods, {}, uri_template)

    def find(self, uri: str, req: falcon.Request | None = None) -> Any:  # noqa: ARG002  # Falcon passes it by name
        return self._routes.get(uri)
