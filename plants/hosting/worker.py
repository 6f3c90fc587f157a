"""The server's worker with the limits, errors, store, log and metrics of the hosted service."""

import gc
import tempfile
from pathlib import Path
from typing import Any

from plants.auth import BearerAuth
from plants.hosting.environment import settings, store
from plants.hosting.logs import AccessLog, Logger
from plants.hosting.metrics import Metrics, listening_sockets, metrics_app
from plants.hosting.service import PlantService
from plants.server.request import Listener
from plants.server.worker import Worker as ServerWorker

_METRICS_CONNECTIONS = 8  # reserved, so that Prometheus can scrape a service that has too many connections
# These settings enable Gunicorn's own access log. So does syslog, unless disable_redirect_access_to_syslog is set.
_ACCESS_LOGS = ("accesslog", "logconfig", "logconfig_dict", "logconfig_json")


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
        auth = BearerAuth(settings.tokens)
        self._service = PlantService(auth, self.log, access_log, self._metrics)
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
