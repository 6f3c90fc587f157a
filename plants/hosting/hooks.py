"""The hooks of the hosted service, for the server: request ids, token check, Error bodies, log, metrics.

mypyc can compile this module.
"""

import itertools
import re
import secrets
import time
from typing import Final

import falcon

from plants.app import PlantApp
from plants.errors import error_message, error_response
from plants.hosting.logs import AccessLog
from plants.hosting.metrics import Metrics
from plants.server.exchange import Exchange, current
from plants.server.hooks import Hooks
from plants.server.request import HTTPError
from plants.server.response import Response, make_response

_FIRST_ERROR: Final = 400
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


class PlantHooks(Hooks):
    """The check of the token when a head is complete, request ids, Error bodies, the access log and the metrics."""

    def __init__(self, app: PlantApp, access_log: AccessLog, metrics: Metrics | None) -> None:
        self._auth = app.auth
        self._router = app.router
        self._access_log = access_log
        self._metrics = metrics
        self._id_prefix = secrets.token_hex(6)
        self._id_numbers = itertools.count()

    def after_head(self, exchange: Exchange) -> Response | None:
        """Set the request id and the route, then return the response to a request without a valid token."""
        request_id = exchange.environ.get("HTTP_X_REQUEST_ID")
        if not request_id or not _REQUEST_ID.fullmatch(request_id):
            request_id = f"{self._id_prefix}-{next(self._id_numbers):x}"
        exchange.id = request_id
        exchange.route, exchange.public, exchange.blocks = self._router.route_of(exchange.path)
        if exchange.listener.reserved_connections:  # The metrics have a listener of their own.
            exchange.public, exchange.blocks = True, False
        if exchange.head_parsed and not exchange.public:
            return self._rejection(exchange)
        if not exchange.body.complete:
            exchange.drop_body()
        return None

    def _rejection(self, exchange: Exchange) -> Response | None:
        try:
            error: BaseException | None = self._auth.rejection(exchange.environ.get("HTTP_AUTHORIZATION", ""))
        except BaseException as failure:  # An asyncio.CancelledError or a SystemExit must not end the worker.
            error = failure
        if error is None:
            exchange.trusted = True
            exchange.environ["plants.auth"] = self._auth  # The application does not check the token again.
            return None
        current.request = exchange  # so that a line in the log has its id
        response = make_response(exchange, *error_response(error))
        current.request = None
        return response

    def error_response(self, error: HTTPError, exchange: Exchange) -> Response:
        """Return a response with an Error body."""
        return make_response(exchange, *error_response(falcon.HTTPError(error.status, description=error.message)))

    def before_response(self, exchange: Exchange, response: Response) -> None:
        """Count the response and buffer its line, before it is sent, so that a kill cannot lose the count."""
        seconds = time.monotonic() - exchange.started
        error = (0, "")
        if response.status >= _FIRST_ERROR:
            code = response.status * 100
            error = response.error or (code, error_message(code))
        if self._metrics:
            self._metrics.count_response(exchange, response, error[0], seconds)
        self._access_log.write(exchange, response, error, seconds)

    def after_iteration(self) -> None:
        """Write the lines of an iteration together, which costs half as much as writing each alone."""
        self._access_log.output.flush()
