"""How fast each WSGI server serves the hosted application: creates a second from one run.

    python -m benchmarks.servers [--rounds 3] [--seconds 3] [--connections 16]

Needs wrk (https://github.com/wg/wrk) on the PATH and the extra test. Each round starts every server afresh, one process
with the dictionary store. Printed are the medians of the rounds; a ratio is to the first server in the same round.
"""

import argparse
import http.client
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from benchmarks.hosting import TOKEN, load

BIN = Path(sys.executable).parent
GUNICORN = f"{BIN}/gunicorn --config python:plants.hosting.gunicorn_conf --bind 127.0.0.1:PORT"
COMMANDS = {
    "Gunicorn, as packaged": GUNICORN,
    "Gunicorn, gthread": f"{GUNICORN} -k gthread --threads 4",
    "Gunicorn, sync": f"{GUNICORN} -k sync",
    "Gunicorn, gevent": f"{GUNICORN} -k gevent",
    "Granian": f"{BIN}/granian --interface wsgi --host 127.0.0.1 --port PORT --no-access-log plants.wsgi:app",
    "uWSGI": (
        f"{BIN}/uwsgi --http11-socket 127.0.0.1:PORT --module plants.wsgi:app --virtualenv {sys.prefix}"
        " --master --die-on-term --enable-threads --threads 4 --buffer-size 16384 --disable-logging"
    ),
    "waitress": f"{BIN}/waitress-serve --listen=127.0.0.1:PORT plants.wsgi:app",
    "Cheroot": f"{BIN}/cheroot --bind 127.0.0.1:PORT plants.wsgi:app",
    "wsgiref": f"{sys.executable} {Path(__file__).with_name('wsgiref_server.py')} PORT",
}


@contextmanager
def serving(command: str, env: dict[str, str]) -> Iterator[int]:
    """Run a server on a free port, and give the port once it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    words = command.replace("PORT", str(port)).split()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    args = parser.parse_args()
    env = os.environ | {"PLANTS_TOKENS": TOKEN, "PLANTS_STORE": "memory:"}
    rounds: list[dict[str, tuple[float, float, float]]] = []
    for _ in range(args.rounds):
        found = {}
        for name, command in COMMANDS.items():
            with serving(command, env) as port:
                load(port, args.connections, 1, 10**9)
                result = load(port, args.connections, args.seconds, 2 * 10**9)
                found[name] = (result["creates"] / result["seconds"], result["p99"], result["failures"])
        rounds.append(found)
    first = next(iter(COMMANDS))
    print("| server | creates/s | ratio | p99 ms | failures |\n|---|---|---|---|---|")
    for name in COMMANDS:
        rate = statistics.median(found[name][0] for found in rounds)
        ratio = statistics.median(found[name][0] / found[first][0] for found in rounds)
        p99 = statistics.median(found[name][1] for found in rounds)
        print(f"| {name} | {rate:.0f} | {ratio:.2f} | {p99:.1f} | {sum(found[name][2] for found in rounds):.0f} |")


if __name__ == "__main__":
    main()
