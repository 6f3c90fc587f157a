"""The server's worker with the limits, errors, store, log and metrics of the hosted service."""

import gc
import itertools
import signal
import time
from fnmatch import fnmatch
from typing import Any, ClassVar, Final
from weakref import WeakSet

from gunicorn.workers.workertmp import WorkerTmp

from plants.hosting.application import HostedService
from plants.hosting.logs import AccessLog
from plants.hosting.metrics import Metrics, listening_sockets, metrics_app
from plants.hosting.service import PlantService
from plants.hosting.settings import GUNICORN_SETTINGS
from plants.server.request import Listener
from plants.server.worker import Worker as ServerWorker

_METRICS_CONNECTIONS = 8  # reserved, so that Prometheus can scrape a service that has too many connections
# Gunicorn's settings that have no effect, because the service has its own server, access log and metrics.
_UNUSED_SETTINGS: Final = (
    *("accesslog", "access_log_format", "disable_redirect_access_to_syslog", "pre_request", "post_request", "*statsd*"),
    *("protocol", "http_protocols", "http_parser", "http2_*", "asgi_*", "websocket_*", "proxy_*", "uwsgi_*"),
    *("root_path", "header_map", "forward*", "secure_scheme_headers", "permit_*", "strip_*", "casefold_*"),
    *("sendfile", "suppress_ragged_eofs", "do_handshake_on_connect", "ssl_version", "tmp_upload_dir"),
)
_WORKER_SIGNALS: Final = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
_PAUSE_SECONDS: Final = 5.0  # The master asks for the heartbeats every second, unless it is stopped.


def unblock_signals() -> None:
    """Deliver the signals that wait."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WORKER_SIGNALS)


class Heartbeat(WorkerTmp):
    """A worker's heartbeat, for which the master allows another period after the master itself was stopped.

    Whatever stops the master (``docker pause``) usually stops its workers, too, and they would seem to hang.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._asked_at = self._resumed_at = time.monotonic()

    def last_update(self) -> float:
        """Return the time of the last heartbeat, or of the master's own continuation."""
        now = time.monotonic()
        if now - self._asked_at > _PAUSE_SECONDS:
            self._resumed_at = now
        self._asked_at = now
        return max(float(super().last_update()), self._resumed_at)


class Worker(ServerWorker):
    """A worker of a hosted service, which the packaged configuration sets in a subclass."""

    hosted: HostedService

    # The deadlines: a statement (1.5 s) < the store (2.3 or 2.5 s) < the response (4.5 s) < what is promised (5 s).
    response_timeout: float = 4.5

    # Gunicorn sets these, and has no types.
    cfg: Any
    log: Any

    # Gunicorn's master has an object for each living worker, and drops it when the worker has ended.
    _living: ClassVar["WeakSet[Worker]"] = WeakSet()
    metrics_slot: int
    _metrics: Metrics | None = None

    @staticmethod
    def check_config(cfg: Any, log: Any) -> None:
        """Log which settings have no effect. Gunicorn's master calls this once, at the start."""
        for name, setting in cfg.settings.items():
            packaged = type(setting)()
            if name in GUNICORN_SETTINGS:
                packaged.set(GUNICORN_SETTINGS[name])
            if setting.get() != packaged.get() and any(fnmatch(name, pattern) for pattern in _UNUSED_SETTINGS):
                log.warning("the setting %s has no effect", name)

    def __init__(self, *args: Any) -> None:
        """Create the worker in the master, with the lowest slot of the metrics that no living worker has."""
        super().__init__(*args)
        self.tmp.close()
        self.tmp = Heartbeat(self.cfg)
        settings = self.hosted.settings
        self.may_block = not settings.in_memory  # Any other store may wait.
        self.max_batch = settings.store.max_batch
        self.max_body_bytes = settings.max_body_bytes
        self.request_timeout = settings.request_timeout
        used = {other.metrics_slot for other in self._living}
        self.metrics_slot = next(slot for slot in itertools.count(1) if slot not in used)
        self._living.add(self)
        # Block signals until the new process handles them, because one that arrives just after the fork would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _WORKER_SIGNALS)

    def init_signals(self) -> None:
        """Handle signals as Gunicorn does, but ignore ``HUP``, which the whole process group may get."""
        super().init_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        unblock_signals()

    def load_wsgi(self) -> None:
        """Load the application and create the event loop."""
        if listening_sockets:
            try:
                self._metrics = Metrics(self.metrics_slot)
            except OSError as error:
                self.log.error("the metrics do not include this worker: %s", error)
        super().load_wsgi()
        # The objects that exist now live as long as the worker. If the garbage collector scanned them again and again,
        # parsing large JSON would take three times as long.
        gc.freeze()

    def make_service(self) -> PlantService:
        """Return the object whose methods the event loop calls."""
        access_log = AccessLog(self.log.loglevel, self.hosted.settings.log_format)
        return PlantService(self.hosted, self.log, access_log, self._metrics)

    def make_listeners(self) -> list[Listener]:
        """Return the listening sockets of Gunicorn and of the metrics."""
        return [
            *super().make_listeners(),
            *(Listener(sock, metrics_app(), reserved_connections=_METRICS_CONNECTIONS) for sock in listening_sockets),
        ]

    def notify(self) -> None:
        """Send the heartbeat, and update the gauges."""
        super().notify()
        if self._metrics:
            self._metrics.set_gauges(len(self.loop.shared.connections), self.loop.pending_request_count())

    def run(self) -> None:
        """Serve, then close the store."""
        try:
            super().run()
        finally:
            self.loop.shared.service.after_iteration()
            self.hosted.settings.store.close()
