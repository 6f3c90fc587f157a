"""The hooks of the hosted service, for the server: request ids, token check, Error bodies, log, metrics.

mypyc can compile this module.
"""

import itertools
import json
import re
import secrets
import time
from contextlib import suppress
from typing import Final

import falcon

from plants.errors import error_message, error_response
from plants.hosting.factory import HostedService
from plants.hosting.logs import AccessLog
from plants.hosting.metrics import Metrics
from plants.server.request import HTTPError, Request
from plants.server.response import Response, make_response
from plants.server.service import Service
from plants.server.threads import current

_NO_ERROR: Final = (0, "")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


class PlantService(Service):
    """The check of the token when a head is complete, request ids, Error bodies, the access log and the metrics."""

    def __init__(self, hosted: HostedService, access_log: AccessLog, metrics: Metrics | None) -> None:
        self._auth = hosted.api.auth
        self._router = hosted.api.router
        self._access_log = access_log
        self._metrics = metrics
        self._id_prefix = secrets.token_hex(6)
        self._id_numbers = itertools.count()

    def after_head(self, request: Request) -> Response | None:
        """Set the request id and the route, then return the response to a request without a valid token."""
        request_id = request.environ.get("HTTP_X_REQUEST_ID")
        if not request_id or not _REQUEST_ID.fullmatch(request_id):
            request_id = f"{self._id_prefix}-{next(self._id_numbers):x}"
        request.id = request_id
        request.extra_headers = f"X-Request-ID: {request_id}\r\n".encode()
        request.route = self._router.template_of(request.path) or "other"
        return self._refusal(request) if request.head_parsed else None

    def _refusal(self, request: Request) -> Response | None:
        # The public paths and the metrics, which have a listener of their own, need no token and no body.
        if request.path in self._auth.public_paths or request.listener.reserved_connections:
            if not request.body.complete:
                request.drop_body()
            return None
        try:
            error: BaseException | None = self._auth.refusal(
                request.path, request.environ.get("HTTP_AUTHORIZATION", "")
            )
        except BaseException as failure:  # An asyncio.CancelledError or a SystemExit must not end the worker.
            error = failure
        if error is None:
            request.trusted = True
            request.environ["plants.auth"] = self._auth  # The application does not check the token again.
            return None
        current.request = request  # so that a line in the log has its id
        response = _error_response(error, request)
        current.request = None
        return response

    def error_response(self, error: HTTPError, request: Request) -> Response:
        """Return a response with an Error body."""
        return _error_response(falcon.HTTPError(error.status, description=error.message), request)

    def before_response(self, request: Request, response: Response) -> None:
        """Count the response and buffer its line, before it is sent, so that a kill cannot lose the count."""
        seconds = time.monotonic() - request.started
        error = _error_of(response) if response.status[0] in "45" else _NO_ERROR
        if self._metrics:
            self._metrics.count_response(request, response, error, seconds)
        self._access_log.write(request, response, error, seconds)

    def after_iteration(self) -> None:
        """Write the lines of an iteration together, which costs half as much as writing each alone."""
        self._access_log.output.flush()


def _error_response(error: BaseException, request: Request) -> Response:
    return make_response(*error_response(error), is_head=request.method == "HEAD")


def _error_of(response: Response) -> tuple[int, str]:
    """Return the code and the message of an Error body, or those of the status for any other body."""
    with suppress(Exception):  # Any other application may respond with any other body.
        body = json.loads(response.body)
        code = int(body["error"])
        return code, error_message(code, str(body["message"]))
    code = int(response.status[:3]) * 100
    return code, error_message(code)
