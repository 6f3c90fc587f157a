"""A Gunicorn worker for any WSGI application with small responses. It knows HTTP, and nothing of plants.

    gunicorn --worker-class plants.server.worker.Worker MODULE:APP

What it asks of an application (PEP 3333):

Threads. With Gunicorn's ``threads`` at 1, the event loop calls the application. Then the application must not block:
while it runs, every other client waits. With more, that many threads call it (``Worker.may_block`` decides). In both
cases one more thread calls it for larger bodies (above 4 KiB, or with threads above 32 KiB), so it must be thread-safe.

The request. It is called when the body has arrived completely; ``wsgi.input`` has all of it in memory. A chunked body
has a ``CONTENT_LENGTH``, too. If a body is larger than ``Worker.max_body_bytes``, the server responds with 413.

The response. It is held in memory and sent whole, with the server's ``Date``, and with a ``Content-Length``, which for
HEAD and 304 is the application's, if there is one. So an application must not stream, and its responses should be
small: what a client has not read above 64 KiB needs one of 64 places, and without one the connection is closed.
``start_response`` may be called until the first block of the body is requested, or by the iteration of the body.
``server.stopping`` is true while the worker stops.

Pending work. An application may append to the list ``server.pending`` a pair of functions for work that its request
shares with others, such as a commit, and respond at once. If its response is a success, the server calls the first one
with a function ``done``. It begins the work, and must not block; later, any thread calls ``done`` with None or, if the
work has failed, with an exception, and then calls the function that ``done`` returns, if it returns one: once for all
work that is complete now. Then the server sends the response or, after a failure, the status, the headers and the body
that the second function returns for the exception. Meanwhile, no thread waits. An application that finds no such list
does the work before it responds.

Time. A request that got no response within ``Worker.response_timeout`` gets 503. If its call had not begun, it never
does; if it had, it continues, and its response is dropped.

Extensions. ``Worker`` documents what a subclass may set, and ``Service`` has the hooks. The other classes may be
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
