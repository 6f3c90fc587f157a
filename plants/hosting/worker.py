"""The server's worker with the service's own limits, errors, store, log and metrics."""

import gc
import itertools
import re
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, TypeVar

from plants.errors import HEADERS, RETRY_AFTER_SECONDS, error_body
from plants.hosting.logs import AccessLog, Logger
from plants.hosting.metrics import Metrics, WithMetrics, listeners
from plants.hosting.page import PAGE
from plants.hosting.service import REQUESTS_A_BATCH, settings, store
from plants.server.answer import Answer, make_answer
from plants.server.connection import ANSWERING
from plants.server.request import Environ, Refused, Request
from plants.server.worker import Worker as ServerWorker

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# Paths that never block: they do not use the store.
_NEVER_WAIT = {"/livez", "/metrics", "/openapi.json", *PAGE}
# The settings that turn Gunicorn's access log on, as syslog does where it gets that log too.
_ACCESS_LOGS = ("accesslog", "logconfig", "logconfig_dict", "logconfig_json")

_T = TypeVar("_T")


class Worker(ServerWorker):
    """A worker of the hosted service."""

    max_body_bytes: int = settings.max_body_bytes
    request_timeout: float = settings.request_timeout
    # Below the 5 s in which a request that has arrived whole is answered, whatever the store does.
    answer_timeout: float = 4.5
    most_together: int = REQUESTS_A_BATCH

    # Gunicorn sets these, and has no types.
    sockets: list[Any]
    wsgi: Any

    def load_wsgi(self) -> None:
        """Load the application, and set up the log and the metrics."""
        super().load_wsgi()
        # What is loaded now stays. Without this the garbage collector looks at it again and again, and large JSON takes
        # three times as long.
        gc.freeze()
        cfg = self.cfg
        # If Gunicorn's own access log is set up, or another logger such as the one for statsd, use that one.
        has_syslog = cfg.syslog and not cfg.disable_redirect_access_to_syslog
        has_access_log = has_syslog or any(cfg.settings[name].get() for name in _ACCESS_LOGS)
        has_own_log = issubclass(cfg.logger_class, Logger) and not has_access_log
        self._access_log = AccessLog(self.log.loglevel) if has_own_log else None
        self._metrics = None
        if listeners:
            self._metrics = Metrics()
            self.wsgi = WithMetrics(self.wsgi)
            self.sockets = [*self.sockets, *(SimpleNamespace(sock=listener) for listener in listeners)]
        self._answers: list[tuple[Environ, Answer, float]] = []
        self._new_ids = map(f"{secrets.token_hex(6)}-{{:x}}".format, itertools.count())

    def identify(self, request: Request) -> None:
        """Give the request an id: the client's, or that of its trace (W3C Trace Context), or a new one."""
        environ = request.environ
        request_id = environ.get("HTTP_X_REQUEST_ID")
        if not request_id or not _REQUEST_ID.fullmatch(request_id):
            parent = environ.get("HTTP_TRACEPARENT")
            trace = parent and _TRACEPARENT.fullmatch(parent)
            request_id = trace[1] if trace else next(self._new_ids)
        environ["plants.request_id"] = request_id
        request.extra_fields = f"X-Request-ID: {request_id}\r\n".encode()

    def answered(self, request: Request, answer: Answer) -> None:
        """Count an answer before it is sent, so that none is missing if the process is killed; keep it for the log."""
        seconds = time.monotonic() - request.started
        if self._metrics:
            self._metrics.count_answer(request.environ, answer, seconds)
        self._answers.append((request.environ, answer, seconds))

    def after_answers(self) -> None:
        """Log the answers of a turn together: no client waits for that, and it costs half as much."""
        answers, self._answers = self._answers, []
        for environ, answer, seconds in answers:
            try:
                if self._access_log:
                    self._access_log.write(environ, answer, seconds)
                else:
                    self._write_gunicorns_log(environ, answer, seconds)
            except Exception:
                self.log.exception("an answer could not be logged", extra={"environ": environ})
        if self._access_log:
            self._access_log.flush()

    def _write_gunicorns_log(self, environ: Environ, answer: Answer, seconds: float) -> None:
        environ = dict.fromkeys(("REQUEST_METHOD", "RAW_URI", "SERVER_PROTOCOL"), "-") | environ
        # No format may show a query, a token, or a decoded path, which may have line feeds.
        environ["RAW_URI"] = environ["PATH_INFO"] = environ["RAW_URI"].partition("?")[0]
        environ["QUERY_STRING"] = ""
        environ.pop("HTTP_AUTHORIZATION", None)
        fields = [(key[5:].replace("_", "-"), value) for key, value in environ.items() if key.startswith("HTTP_")]
        headers = [*answer.headers, ("X-Request-ID", environ["plants.request_id"])]
        response = SimpleNamespace(status=answer.status, headers=headers, sent=len(answer.body))
        self.log.access(response, SimpleNamespace(headers=fields), environ, timedelta(seconds=seconds))

    def notify(self) -> None:
        """Send the heartbeat, and update the gauges."""
        super().notify()
        if self._metrics:
            waiting = sum(connection.state == ANSWERING for connection in self.connections)
            self._metrics.gauge(len(self.connections), waiting)

    def refusal(self, refused: Refused, request: Request) -> Answer:
        """Give an Error."""
        status = HTTPStatus(refused.status)
        headers = list(HEADERS.items())
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("Retry-After", str(RETRY_AFTER_SECONDS)))
        body = error_body(status * 100, refused.message)
        return make_answer(f"{status} {status.phrase}", headers, body, is_head=request.is_head)

    def never_waits(self, request: Request) -> bool:
        """Say whether the request never blocks."""
        return request.environ["PATH_INFO"] in _NEVER_WAIT

    def together(self, calls: Sequence[Callable[[], _T]]) -> list[_T]:
        """Let the store commit the plants of several requests at once."""
        return store.together(calls)

    def run(self) -> None:
        """Serve, then close the store."""
        try:
            super().run()
        finally:
            self.after_answers()
            store.close()
