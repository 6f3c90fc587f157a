"""The servers that the hosted application is tested and measured on, and how each is started."""

import http.client
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tests.support.process import NO_SUBPROCESS_COVERAGE, end, free_port, start, wait_until

BIN = Path(sys.executable).parent
GUNICORN = "gunicorn --config python:plants.hosting.gunicorn_conf --bind 127.0.0.1:PORT"
GRANIAN = "granian --interface wsgi --host 127.0.0.1 --port PORT --no-access-log plants.wsgi:app"
WSGIREF = (
    "from wsgiref.simple_server import make_server; from plants.wsgi import app; "
    'make_server("127.0.0.1", PORT, app).serve_forever()'
)
COMMANDS = {
    "Gunicorn, as packaged": GUNICORN,
    "Gunicorn, gthread": f"{GUNICORN} -k gthread --threads 4",
    "Gunicorn, sync": f"{GUNICORN} -k sync",
    "Gunicorn, gevent": f"{GUNICORN} -k gevent",
    "Granian": GRANIAN,
    "Granian, 1 thread": f"{GRANIAN} --blocking-threads 1",
    "uWSGI": (
        f"uwsgi --http11-socket 127.0.0.1:PORT --module plants.wsgi --virtualenv {shlex.quote(sys.prefix)}"
        " --master --die-on-term --enable-threads --threads 4 --buffer-size 16384 --disable-logging"
    ),
    "waitress": "waitress-serve --listen=127.0.0.1:PORT plants.wsgi:app",
    "Cheroot": "cheroot --bind 127.0.0.1:PORT plants.wsgi:app",
    "wsgiref": f"python -c '{WSGIREF}'",
}


@contextmanager
def running_server(command: str, env: dict[str, str], *, prefix: Sequence[str] = ()) -> Iterator[tuple[int, int]]:
    """Run a server on a free port, wait until the server is ready, and yield the port and the process id."""
    port = free_port()
    program, *options = shlex.split(command.replace("PORT", str(port)))
    words = [*NO_SUBPROCESS_COVERAGE, *prefix, str(BIN / program), *options]
    # Several servers put the working directory first in the module path, so that another installation of the package
    # would import this checkout.
    process = start(words, env=env, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_ready(port) or process.poll() is not None)
        assert process.poll() is None, f"{command} has ended"
        yield port, process.pid
    finally:
        process.terminate()
        end(process)


def is_ready(port: int) -> bool:
    with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    return False
