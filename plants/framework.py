"""A Falcon application that keeps the contract where Falcon's own defaults do otherwise."""

from typing import Any, TypeAlias

import falcon
from falcon.routing import CompiledRouter

from plants.errors import HEADERS, add_error_handling

JSONApp: TypeAlias = "falcon.App[_AnyMethodRequest, _JSONResponse]"

_LOWER_HEADERS = {name.lower(): value for name, value in HEADERS.items()}


def json_app(*middleware: Any) -> JSONApp:
    """Give an application without routes, in which every answer is JSON and every failure an Error body."""
    app: JSONApp = falcon.App(
        middleware=middleware,
        request_type=_AnyMethodRequest,
        response_type=_JSONResponse,
        router=_ExactRouter(),
    )
    add_error_handling(app)
    return app


class _AnyMethodRequest(falcon.Request):
    """Falcon answers 400 to a method it does not know, to some before any middleware runs; this lets it answer 405."""

    def __init__(self, env: dict[str, Any], options: falcon.RequestOptions | None = None) -> None:
        super().__init__(env, options)
        if self.method not in falcon.HTTP_METHODS:
            self.method = "TRACE"


class _JSONResponse(falcon.Response):
    """A response that has the headers of every answer from the start."""

    def __init__(self, options: falcon.ResponseOptions | None = None) -> None:
        super().__init__(options)
        # set_headers() would take four times as long, for every request.
        self._headers.update(_LOWER_HEADERS)


class _ExactRouter(CompiledRouter):
    """Fixed paths, each of which is itself only. Falcon takes ``//plants`` for ``/plants`` too."""

    def __init__(self) -> None:
        super().__init__()
        self._exact: dict[str, Any] = {}

    def add_route(self, uri_template: str, resource: object, **kwargs: Any) -> None:
        super().add_route(uri_template, resource, **kwargs)
        self._exact[uri_template] = super().find(uri_template)

    def find(self, uri: str, req: falcon.Request | None = None) -> Any:  # noqa: ARG002  # Falcon gives it by this name
        return self._exact.get(uri)
