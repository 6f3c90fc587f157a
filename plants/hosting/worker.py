"""The server's worker with the service's own limits, errors and store."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TypeVar

from plants.errors import HEADERS, RETRY_AFTER_SECONDS, error_body
from plants.hosting.probes import NEVER_WAIT
from plants.hosting.service import settings, store
from plants.server.answer import Answer, make_answer
from plants.server.request import Refused, Request
from plants.server.worker import Worker as ServerWorker
from plants.stores.memory import MemoryStore

_T = TypeVar("_T")


class Worker(ServerWorker):
    """A worker of the hosted service."""

    max_body_bytes = settings.max_body_bytes
    request_timeout = settings.request_timeout
    # Below the 5 s in which a request that has arrived whole is answered, whatever the store does.
    answer_timeout = 4.5
    most_together = 1 if isinstance(store, MemoryStore) else 256

    def refusal(self, refused: Refused, request: Request) -> Answer:
        """Give an Error."""
        status = HTTPStatus(refused.status)
        headers = list(HEADERS.items())
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("Retry-After", str(RETRY_AFTER_SECONDS)))
        body = error_body(status * 100, refused.message)
        return make_answer(f"{status} {status.phrase}", headers, body, is_head=request.is_head)

    def never_waits(self, request: Request) -> bool:
        """Tell whether neither the store nor anything else is waited for."""
        return request.environ["PATH_INFO"] in NEVER_WAIT

    def together(self, calls: Sequence[Callable[[], _T]]) -> list[_T]:
        """Let the store keep with one commit what several requests add."""
        return store.together(calls)

    def run(self) -> None:
        """Serve, then give back what the store holds."""
        try:
            super().run()
        finally:
            store.close()
