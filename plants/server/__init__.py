"""A Gunicorn worker for any WSGI application with small responses. It knows HTTP, and nothing of plants.

    gunicorn --worker-class plants.server.worker.Worker MODULE:APP

What it asks of an application (PEP 3333):

Threads. With Gunicorn's ``threads`` at 1, the event loop calls the application. Then the application must not block:
while it runs, every other client waits. With more, threads call it (``Worker.may_block`` decides), so it must be
thread-safe: that many, and one more for bodies above 16 KiB.

The request. It is called when the body has arrived completely; ``wsgi.input`` has all of it in memory. A chunked body
has a ``CONTENT_LENGTH``, too. If a body is larger than ``Worker.max_body_bytes``, the server responds with 413.

The response. It is held in memory and sent whole, with the server's ``Date``, and with a ``Content-Length``, which for
HEAD and 304 is the application's, if there is one. So an application must not stream, and its responses should be
small: what a client has not read above 64 KiB needs one of 64 slots, and without one the connection is closed.
``start_response`` may be called until the first block of the body is requested, or by the iteration of the body.
``server.stopping`` is true while the worker stops. The last code and message in the list ``server.errors`` are logged.

Pending work. ``server.pending`` is a list of work, such as a commit, that must succeed before a response is sent. The
application appends two functions for each, and responds at once, so that no thread waits. After a successful response,
the server calls the first one, which must return at once. When the work is over, any thread calls ``done``, for all
such work together. An application that finds no list does the work before it responds.

    def begin(done, key): database.insert(row, on_commit=lambda: done([(key, None)]))  # or done([(key, error)])
    def fail(error): return 503, [("Retry-After", "1")], b"The row is not stored."
    environ["server.pending"].append((begin, fail))

Time. A request that got no response within ``Worker.response_timeout`` gets 503. If its call had not begun, it never
does; if it had, it continues, and its response is dropped.

Extensions. ``Worker`` documents what a subclass may set, and ``Hooks`` has the hooks. The other classes may be
compiled, and then they can be neither subclassed nor patched.

Not supported: HTTP/2, WebSocket, ``wsgi.file_wrapper``, early hints, trailers of responses, Gunicorn's settings for
proxies, and its hooks ``pre_request`` and ``post_request``.
"""

from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec


def implementation() -> str:
    """Return ``compiled`` if the event loop of this installation was compiled to machine code, else ``interpreted``."""
    spec = find_spec(f"{__name__}.loop")
    return "compiled" if spec and isinstance(spec.loader, ExtensionFileLoader) else "interpreted"
