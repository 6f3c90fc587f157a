"""Echo each request as a WSGI server parsed it: method, target and body."""

import json
from collections.abc import Callable, Iterable
from typing import Any

LARGEST_BODY = 1 << 20


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    if int(environ.get("CONTENT_LENGTH") or 0) > LARGEST_BODY:
        start_response("413 Content Too Large", [("Content-Length", "0")])
        return []
    body = environ["wsgi.input"].read()
    found = {"method": environ["REQUEST_METHOD"], "target": environ["RAW_URI"], "body": body.decode("latin-1")}
    response = json.dumps(found).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(response)))])
    return [response]
