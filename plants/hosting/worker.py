"""The worker of the hosted service, for Gunicorn: the server's, with settings, hooks, log and metrics."""

import signal
import sys
from typing import Any

from plants.app import PlantApp
from plants.hosting.hooks import PlantHooks
from plants.hosting.logs import AccessLog, output_to
from plants.hosting.metrics import Metrics
from plants.hosting.settings import Settings
from plants.server.request import Listener
from plants.server.worker import Worker as ServerWorker


class Worker(ServerWorker):
    """A worker of a hosted service."""

    # The packaged configuration sets these.
    settings: Settings
    hosted_app: PlantApp
    metrics: Metrics | None = None

    # The deadlines: a statement (1.35 s) < a commit (1.8 s) < the wait for its begin (2.6 s) < the response, which has
    # time for both (4.5 s) < what is promised (5 s).
    response_timeout: float = 4.5

    def __init__(self, *args: Any) -> None:
        """Create the worker in the master."""
        super().__init__(*args)
        self.max_body_bytes = self.settings.max_body_bytes
        self.request_timeout = self.settings.request_timeout
        if self.metrics:
            self.metrics_row = self.metrics.add_worker()

    def init_signals(self) -> None:
        """Handle signals as Gunicorn does, but ignore ``HUP``, which the whole process group may get."""
        super().init_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def may_block(self) -> bool:
        """Return whether the store blocks its callers, or the application is wrapped."""
        return self.wsgi is not self.hosted_app or self.settings.store.worker_threads > 0

    def make_hooks(self) -> PlantHooks:
        """Return the object whose methods the event loop calls."""
        access_log = AccessLog(self.cfg.accesslog, self.log.loglevel, self.settings.log_format)
        return PlantHooks(self.hosted_app, access_log, self.metrics)

    def make_listeners(self) -> list[Listener]:
        """Return the listening sockets of Gunicorn and of the metrics."""
        found = [Listener(listener.sock, self.wsgi) for listener in self.sockets]
        if self.metrics:
            # They are reserved, so that Prometheus can scrape a service that has too many connections.
            found.append(Listener(self.metrics.listener, self.metrics.app(), reserved_connections=8))
        return found

    def notify(self) -> None:
        """Send the heartbeat, write the lines of the error log that wait, and update the gauges."""
        super().notify()
        output_to(self.cfg.errorlog, sys.stderr).flush()
        if self.metrics:
            self.metrics.set_gauges(len(self.loop.shared.connections), self.loop.pending_request_count())

    def run(self) -> None:
        """Serve, then close the store."""
        try:
            super().run()
        finally:
            self.settings.store.close()
