"""The server's worker with the service's own limits, errors and store."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from http import HTTPStatus
from types import SimpleNamespace
from typing import TypeVar

from gunicorn.glogging import Logger

from plants.errors import HEADERS, RETRY_AFTER_SECONDS, error_body
from plants.hosting.page import page
from plants.hosting.service import settings, store
from plants.server.answer import Answer, make_answer
from plants.server.request import Refused, Request
from plants.server.worker import Worker as ServerWorker
from plants.stores.memory import MemoryStore

# What needs neither the store nor anything else that could wait.
_NEVER_WAIT = {"/livez", "/openapi.json", *page()}
# The settings that turn Gunicorn's access log on.
_ACCESS_LOGS = ("accesslog", "logconfig", "logconfig_dict", "logconfig_json", "syslog")

_T = TypeVar("_T")


class Worker(ServerWorker):
    """A worker of the hosted service."""

    max_body_bytes = settings.max_body_bytes
    request_timeout = settings.request_timeout
    # Below the 5 s in which a request that has arrived whole is answered, whatever the store does.
    answer_timeout = 4.5
    most_together = 1 if isinstance(store, MemoryStore) else 256

    def load_wsgi(self) -> None:
        """Load the application, and see whether Gunicorn's access log is on."""
        super().load_wsgi()
        cfg = self.cfg
        self._has_access_log = cfg.logger_class is not Logger or any(cfg.settings[name].get() for name in _ACCESS_LOGS)

    def refusal(self, refused: Refused, request: Request) -> Answer:
        """Give an Error."""
        status = HTTPStatus(refused.status)
        headers = list(HEADERS.items())
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("Retry-After", str(RETRY_AFTER_SECONDS)))
        body = error_body(status * 100, refused.message)
        return make_answer(f"{status} {status.phrase}", headers, body, is_head=request.is_head)

    def answered(self, request: Request, answer: Answer) -> None:
        """Write a line of Gunicorn's access log, if there is one."""
        if self._has_access_log:
            environ = dict.fromkeys(("REQUEST_METHOD", "RAW_URI", "SERVER_PROTOCOL"), "-") | request.environ
            fields = [(key[5:].replace("_", "-"), value) for key, value in environ.items() if key.startswith("HTTP_")]
            response = SimpleNamespace(status=answer.status, headers=answer.headers, sent=len(answer.body))
            elapsed = timedelta(seconds=time.monotonic() - request.started)
            self.log.access(response, SimpleNamespace(headers=fields), environ, elapsed)

    def never_waits(self, request: Request) -> bool:
        """Tell whether neither the store nor anything else is waited for."""
        return request.environ["PATH_INFO"] in _NEVER_WAIT

    def together(self, calls: Sequence[Callable[[], _T]]) -> list[_T]:
        """Let the store keep with one commit what several requests add."""
        return store.together(calls)

    def run(self) -> None:
        """Serve, then give back what the store holds."""
        try:
            super().run()
        finally:
            store.close()
