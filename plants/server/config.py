"""The configuration of a worker, and the limits of what its connections hold.

What one connection holds is a constant in each of its states. Only what may be larger needs a slot, and the number of
slots is fixed. So the memory of a worker is a product, and nothing counts buffered bytes:

    (worker_connections + public_connections) * 128 KiB + SLOTS * (the largest body, or the response to it)

The 128 KiB are a head and its environ (64), a small body (16), and received bytes that are not parsed yet (32); or the
unread part of a small response (64) and such received bytes. With TLS, OpenSSL's buffers come on top (80 KiB).
The sockets' buffers, which the kernel holds, and the store come on top. See tests/audits/hostile.py for measurements.
"""

from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, Final

# A body or the rest of a response that is larger than this needs one of the slots.
SMALL_BODY_BYTES: Final = 16_384
SMALL_RESPONSE_BYTES: Final = 65_536
SLOTS: Final = 64


@dataclass
class Config:
    """The configuration of an event loop; its limits are in bytes and in seconds.

    ``request_seconds`` is also the time for sending a response, and ``response_seconds`` is the application's. Clients
    with a token have at most ``connections``, and all together ``public_connections`` more, so that the loop responds
    to probes even if all those clients are slow. It stops after ``max_requests`` requests. With ``threads`` 0, the loop
    calls the applications, which must not block. Otherwise ``threads`` threads call them. ``environ`` has environ keys
    that all requests share.
    """

    line_bytes: int
    field_bytes: int
    max_fields: int
    body_bytes: int
    request_seconds: float
    response_seconds: float
    keepalive_seconds: float
    connections: int
    max_requests: int
    threads: int
    tls: SSLContext | None
    environ: dict[str, Any]
    slots: int = SLOTS
    public_connections: int = 8
