"""The servers that the hosted application is tested and measured on, and how each is started."""

import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tests.support.process import UNMEASURED

BIN = Path(sys.executable).parent
GUNICORN = "gunicorn --config python:plants.hosting.gunicorn_conf --bind 127.0.0.1:PORT"
GRANIAN = "granian --interface wsgi --host 127.0.0.1 --port PORT --no-access-log plants.wsgi:app"
COMMANDS = {
    "Gunicorn, as packaged": GUNICORN,
    "Gunicorn, gthread": f"{GUNICORN} -k gthread --threads 4",
    "Gunicorn, sync": f"{GUNICORN} -k sync",
    "Gunicorn, gevent": f"{GUNICORN} -k gevent",
    "Granian": GRANIAN,
    "Granian, 1 thread": f"{GRANIAN} --blocking-threads 1",
    "uWSGI": (
        f"uwsgi --http11-socket 127.0.0.1:PORT --module plants.wsgi:app --virtualenv {sys.prefix}"
        " --master --die-on-term --enable-threads --threads 4 --buffer-size 16384 --disable-logging"
    ),
    "waitress": "waitress-serve --listen=127.0.0.1:PORT plants.wsgi:app",
    "Cheroot": "cheroot --bind 127.0.0.1:PORT plants.wsgi:app",
    "wsgiref": "python -m tests.audits.peers.wsgiref_server PORT",
}


@contextmanager
def serving(command: str, env: dict[str, str]) -> Iterator[int]:
    """Run a server on a free port, and give the port once it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    words = [*UNMEASURED, *f"{BIN}/{command}".replace("PORT", str(port)).split()]
    process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_ready(port):
            assert process.poll() is None, f"{command} has ended"
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def is_ready(port: int) -> bool:
    with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    return False
