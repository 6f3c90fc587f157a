"""The server's worker with JSON errors, limits from the environment, and a timeout that no busy machine exceeds."""

import json
import os
from http import HTTPStatus

from plants.server import worker
from plants.server.request import HTTPError, Request
from plants.server.response import Response, make_response
from plants.server.service import Service


class JSONErrors(Service):
    def error_response(self, error: HTTPError, request: Request) -> Response:
        status = HTTPStatus(error.status)
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store"), ("Retry-After", "1")]
        headers.append(("X-Content-Type-Options", "nosniff"))
        body = json.dumps({"error": error.status * 100, "message": error.message or status.phrase}).encode()
        return make_response(f"{status} {status.phrase}", headers, body, is_head=request.method == "HEAD")


class Worker(worker.Worker):
    max_body_bytes = int(os.environ["PLANTS_MAX_BODY_BYTES"])
    request_timeout = float(os.environ["PLANTS_REQUEST_TIMEOUT"])
    response_timeout = 60.0

    def make_service(self) -> Service:
        return JSONErrors()
