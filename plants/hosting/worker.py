"""The server's worker with the limits, errors, store, log and metrics of the hosted service."""

import gc
import itertools
import re
import secrets
import tempfile
import time
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from plants.errors import HEADERS, RETRY_AFTER_SECONDS, error_body
from plants.hosting.environment import settings, store
from plants.hosting.logs import AccessLog, Logger
from plants.hosting.metrics import Metrics, listening_sockets, metrics_app
from plants.hosting.page import PAGE
from plants.server.listener import Listener
from plants.server.request import HTTPError, Request
from plants.server.response import Response, make_response
from plants.server.service import Service
from plants.server.worker import Worker as ServerWorker

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_METRICS_CONNECTIONS = 8  # reserved, so that Prometheus can scrape a service that has too many connections
# These settings enable Gunicorn's own access log. So does syslog, unless disable_redirect_access_to_syslog is set.
_ACCESS_LOGS = ("accesslog", "logconfig", "logconfig_dict", "logconfig_json")


class PlantService(Service):
    """Request ids, Error bodies, the access log and the metrics."""

    non_blocking_paths = frozenset({"/livez", "/metrics", "/openapi.json", *PAGE})  # They do not use the store.

    def __init__(self, log: Any, access_log: AccessLog | None, metrics: Metrics | None) -> None:
        """If ``access_log`` is None, log requests with Gunicorn's logger ``log``."""
        self._log = log
        self._access_log = access_log
        self._metrics = metrics
        self._responses: list[tuple[Request, Response, float]] = []
        self._new_ids = map(f"{secrets.token_hex(6)}-{{:x}}".format, itertools.count())

    def after_head(self, request: Request) -> None:
        """Set the request id: the client's, that of its trace (W3C Trace Context), or a new one."""
        environ = request.environ
        request_id = environ.get("HTTP_X_REQUEST_ID")
        if not request_id or not _REQUEST_ID.fullmatch(request_id):
            parent = environ.get("HTTP_TRACEPARENT")
            trace = parent and _TRACEPARENT.fullmatch(parent)
            request_id = trace[1] if trace else next(self._new_ids)
        environ["plants.request_id"] = request_id
        request.extra_headers = f"X-Request-ID: {request_id}\r\n".encode()

    def error_response(self, error: HTTPError, request: Request) -> Response:
        """Return a response with an Error body."""
        status = HTTPStatus(error.status)
        headers = list(HEADERS.items())
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("Retry-After", str(RETRY_AFTER_SECONDS)))
        body = error_body(request.environ, status * 100, error.message)
        is_head = request.method == "HEAD"
        return make_response(f"{status} {status.phrase}", headers, body, is_head=is_head)

    def before_response(self, request: Request, response: Response) -> None:
        """Buffer the response for the log. Count it before it is sent, so that a kill cannot lose the count."""
        seconds = time.monotonic() - request.started
        if self._metrics:
            self._metrics.count_response(request, response, seconds)
        self._responses.append((request, response, seconds))

    def after_iteration(self) -> None:
        """Log an iteration's responses together, after they were sent. Logging each alone would cost twice as much."""
        responses, self._responses = self._responses, []
        for request, response, seconds in responses:
            try:
                if self._access_log:
                    self._access_log.write(request, response, seconds)
                else:
                    self._write_gunicorn_log(request, response, seconds)
            except Exception:
                self._log.exception("a response could not be logged", extra={"request": request})
        if self._access_log:
            self._access_log.flush()

    def _write_gunicorn_log(self, request: Request, response: Response, seconds: float) -> None:
        environ = dict.fromkeys(("REQUEST_METHOD", "RAW_URI", "SERVER_PROTOCOL", "HTTP_REFERER"), "-") | request.environ
        # No format may show a query, a token, or a decoded path, which may have line feeds.
        environ["RAW_URI"] = environ["PATH_INFO"] = environ["RAW_URI"].partition("?")[0]
        environ["HTTP_REFERER"] = environ["HTTP_REFERER"].partition("?")[0]
        environ |= {"QUERY_STRING": "", "HTTP_AUTHORIZATION": "-"}
        fields = [(key[5:].replace("_", "-"), value) for key, value in environ.items() if key.startswith("HTTP_")]
        headers = [*response.headers, ("X-Request-ID", environ["plants.request_id"])]
        sent = SimpleNamespace(status=response.status, headers=headers, sent=len(response.body))
        self._log.access(sent, SimpleNamespace(headers=fields), environ, timedelta(seconds=seconds))


class Worker(ServerWorker):
    """A worker of the hosted service."""

    may_block: bool = store.worker_threads > 1
    max_body_bytes: int = settings.max_body_bytes
    request_timeout: float = settings.request_timeout
    # The deadlines: a statement (1.5 s) < the store (2.0 or 2.5 s) < the response (4.5 s) < what is promised (5 s).
    response_timeout: float = 4.5
    max_batch: int = store.max_batch

    # Gunicorn sets these, and has no types.
    cfg: Any
    log: Any

    # Gunicorn's master sets it in pre_fork, unless the user's configuration replaces that hook.
    metrics_slot = 0

    _metrics: Metrics | None = None
    _service: PlantService

    def __init__(self, *args: Any) -> None:
        """Create the worker in the master."""
        *_, cfg, _ = args
        # Some systems remove an empty folder. If this folder were missing, Gunicorn would end the service.
        Path(cfg.worker_tmp_dir or tempfile.gettempdir()).mkdir(exist_ok=True)
        super().__init__(*args)

    def load_wsgi(self) -> None:
        """Load the application and create the event loop."""
        if listening_sockets:
            try:
                self._metrics = Metrics(self.metrics_slot or self.pid)
            except OSError as error:
                self.log.error("the metrics do not include this worker; check --worker-tmp-dir: %s", error)
        super().load_wsgi()
        # The objects that exist now live as long as the worker. If the garbage collector scanned them again and again,
        # parsing large JSON would take three times as long.
        gc.freeze()

    def make_service(self) -> PlantService:
        """Return the object whose methods the event loop calls."""
        cfg = self.cfg
        # Log requests with Gunicorn's logger if its own access log is set up, or if its class is not the packaged one.
        has_syslog = cfg.syslog and not cfg.disable_redirect_access_to_syslog
        gunicorn_writes_access_log = has_syslog or any(cfg.settings[name].get() for name in _ACCESS_LOGS)
        use_packaged_log = issubclass(cfg.logger_class, Logger) and not gunicorn_writes_access_log
        access_log = AccessLog(self.log.loglevel) if use_packaged_log else None
        self._service = PlantService(self.log, access_log, self._metrics)
        return self._service

    def make_listeners(self) -> list[Listener]:
        """Return the listening sockets of Gunicorn and of the metrics."""
        return [
            *super().make_listeners(),
            *(Listener(sock, metrics_app(), reserved_connections=_METRICS_CONNECTIONS) for sock in listening_sockets),
        ]

    def notify(self) -> None:
        """Send the heartbeat, and update the gauges."""
        super().notify()
        if self._metrics and hasattr(self, "loop"):
            self._metrics.set_gauges(self.loop.connection_count(), self.loop.pending_request_count())

    def run(self) -> None:
        """Serve, then close the store."""
        try:
            super().run()
        finally:
            self._service.after_iteration()
            store.close()
