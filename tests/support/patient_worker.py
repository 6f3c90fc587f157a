"""The server's worker with limits from the environment, and a timeout that no busy machine exceeds."""

import os

from plants.server import worker


class Worker(worker.Worker):
    max_body_bytes = int(os.environ["PLANTS_MAX_BODY_BYTES"])
    request_timeout = float(os.environ["PLANTS_REQUEST_TIMEOUT"])
    response_timeout = 60.0
