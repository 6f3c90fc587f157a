"""The worker of a hosted service, with a response timeout that no busy machine exceeds."""

from plants.hosting import worker


class Worker(worker.Worker):
    response_timeout = 60.0
