"""Measure durable creates over HTTP beside peers that do the same work: each commit is flushed before its response.

    python -m benchmarks.durable build DIR    (once: apt install golang golang-github-jackc-pgx-v4-dev npm
                                               golang-github-mattn-go-sqlite3-dev libsqlite3-dev)
    python -m benchmarks.durable run DIR [--delays 0 4] [--rounds 3] [--seconds 3] [--connections 4 16 64] [--pool 16]

Each round starts every server afresh, one at a time, as one process with a new database. All tables are made by the
package. PostgreSQL runs with fsync and synchronous_commit on, SQLite with WAL and synchronous=FULL in a file on a real
disk. For each of ``--delays``, all is measured with every flush delayed by this many milliseconds, also that of a peer
(delayed_flush.c). Each server is checked: it creates, and refuses a missing or wrong token, a plant without a name, and
an id in use. When it has stopped, its table must have a row for each 200. ``--also`` adds a server of another
installation of the package, such as "old=/other/.venv/bin/gunicorn --config python:plants.hosting.gunicorn_conf --bind
127.0.0.1:PORT".

The peers, in benchmarks/durable_peers, prepare their statement once per connection. With PostgreSQL they have a pool
of ``--pool`` connections, and gthread has as many threads; the package has 4. With SQLite they have one connection,
because several writers would wait for each other's locks. Each request of a peer is a transaction of its own, while the
package commits waiting requests together. Only the package logs each request.

The output has medians of the rounds. A ratio compares creates/s with those of the package in the same round. CPU is in
microseconds per create, of all processes of the server, and with those of PostgreSQL.
"""

import argparse
import http.client
import itertools
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import TOKEN, Load, cpu_seconds, load, measured_with, median, median_ratio
from plants import Plant, open_store
from tests.support.postgres_server import PostgresServer, running_postgres
from tests.support.servers import COMMANDS, running_server

PACKAGE = "this package"
SOURCES = Path(__file__).with_name("durable_peers")
PYTHON_PACKAGES = ["aiosqlite", "asyncpg", "falcon", "fastapi", "gunicorn", "marshmallow", "psycopg[binary,pool]"]
UVICORN = f"DIR/venv/bin/uvicorn --no-access-log --log-level warning --app-dir {SOURCES} --port PORT"
GTHREAD = f"DIR/venv/bin/gunicorn -k gthread --threads POOL --keep-alive 75 --chdir {SOURCES} -b 127.0.0.1:PORT"
PEERS = {
    "PostgreSQL": {
        "Go, pgx": "DIR/postgres PORT",
        "Fastify, pg": f"{shutil.which('node')} DIR/fastify.mjs PORT",
        "FastAPI, asyncpg": f"{UVICORN} fastapi_asyncpg:app",
        "Falcon, psycopg, gthread": f"{GTHREAD} falcon_psycopg:app",
    },
    "SQLite": {"Go, go-sqlite3": "DIR/sqlite PORT", "FastAPI, aiosqlite": f"{UVICORN} fastapi_aiosqlite:app"},
}
FIRST_ID = 1  # the id of the plant with which the table is made


class Figures(NamedTuple):
    """A load, and the CPU in microseconds per create: of the server alone, and with the database."""

    load: Load
    cpu: float
    cpu_with_database: float


class Database:
    """A new database with the package's table. ``processes`` are those of its server, without their children."""

    def __init__(self, url: str, processes: list[int]) -> None:
        self.url = url
        self._processes = processes
        with closing(open_store(url)) as store:
            store.add(Plant(FIRST_ID, "Fern"))

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self._processes))

    def rows(self) -> int:
        import psycopg

        count = "SELECT count(*) FROM plants"
        if self.url.startswith("sqlite:"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as database:
                return int(database.execute(count).fetchone()[0])
        with psycopg.connect(self.url) as connection:
            (rows,) = connection.execute(count).fetchone() or (0,)
            return int(rows)


def build(directory: Path) -> None:
    """Install what the peers need, and compile those in Go."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
    subprocess.run([directory / "venv/bin/pip", "install", *PYTHON_PACKAGES, "uvicorn[standard]"], check=True)
    subprocess.run(["npm", "install", "--prefix", directory, "fastify", "pg"], check=True)
    shutil.copy(SOURCES / "fastify.mjs", directory)  # Node resolves an import from the directory of this file.
    environ = os.environ | {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}  # the directory of Debian's packages
    for store in ("postgres", "sqlite"):
        command = ["go", "build", "-o", str(directory / store), "plants.go", f"{store}.go"]
        subprocess.run(command, check=True, cwd=SOURCES, env=environ)


def check(port: int) -> None:
    """Fail unless the server does the work."""
    fern: dict[str, object] = {"name": "Fern", "tag": "tropical"}
    assert post(port, {"id": 2} | fern) == (200, fern)
    assert post(port, {"id": 3, "name": "Fern"}) == (200, {"name": "Fern"})
    for token in ("", "wrong"):
        assert post(port, {"id": 4} | fern, token)[0] == 401
    assert post(port, {"id": 4})[0] in {400, 422}
    for used in (FIRST_ID, 2):
        assert post(port, {"id": used} | fern)[0] == 400


def post(port: int, plant: dict[str, object], token: str = TOKEN) -> tuple[int, object]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", "/plants", json.dumps(plant), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def measure(command: str, database: Database, args: argparse.Namespace) -> dict[int, Figures]:
    """Run one server, and return its figures by the number of connections."""
    env = os.environ | {"PLANTS_TOKENS": TOKEN, "PLANTS_STORE": database.url, "POOL": str(args.pool)}
    command = command.replace("DIR", str(args.directory)).replace("POOL", str(args.pool))
    found = {}
    with running_server(command, env | {"WEB_CONCURRENCY": "1"}) as (port, process):
        check(port)
        first_ids = itertools.count(10**9, 10**7)
        created = load(port, 16, 1, next(first_ids)).created  # Warm up.
        for count in args.connections:
            server, other = cpu_seconds(process), database.cpu_seconds()
            seen = load(port, count, args.seconds, next(first_ids))
            server, other = cpu_seconds(process) - server, database.cpu_seconds() - other
            found[count] = Figures(seen, server / seen.created * 1e6, (server + other) / seen.created * 1e6)
            created += seen.created
    assert database.rows() >= created, f"{command}: {created} responses 200, but {database.rows()} rows"
    return found


@contextmanager
def delayed_flushes(delay_ms: float, directory: Path) -> Iterator[None]:
    """Delay each flush of the processes that are started meanwhile."""
    library = directory / "delayed_flush.so"
    source = Path(__file__).with_name("delayed_flush.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    os.environ |= {"LD_PRELOAD": str(library), "FLUSH_DELAY_MS": str(delay_ms)}
    yield
    del os.environ["LD_PRELOAD"], os.environ["FLUSH_DELAY_MS"]


def flush_ms(directory: Path) -> float:
    """Return the median time of a flush of 4 KiB to the disk."""
    waits = []
    with (directory / "flushed").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            waits.append(time.perf_counter() - began)
    return statistics.median(waits) * 1e3


def run(args: argparse.Namespace) -> None:
    own = {PACKAGE: COMMANDS["Gunicorn, as packaged"]} | dict(also.split("=", 1) for also in args.also)
    servers = {store: own | peers for store, peers in PEERS.items()}
    print(f"{measured_with()}; medians of {args.rounds} rounds\n")
    columns = "flush ms | connections | store | server | creates/s | ratio | CPU us | with database | p50 ms | p99 ms"
    print(f"| {columns} | failures |\n" + "|---" * 11 + "|")
    for delay_ms in args.delays:
        with tempfile.TemporaryDirectory(dir=args.data) as name, delayed_flushes(delay_ms, Path(name)):
            run_all(servers, Path(name), args)


def run_all(servers: dict[str, dict[str, str]], directory: Path, args: argparse.Namespace) -> None:
    found: dict[tuple[str, str, int], list[Figures]] = defaultdict(list)
    directory.chmod(0o755)
    filesystem = subprocess.check_output(["stat", "-f", "-c", "%T", directory], text=True).strip()
    assert filesystem not in {"tmpfs", "ramfs"}, f"{directory} is in memory, so set --data to a directory on a disk"
    with ProcessPoolExecutor(1, get_context("spawn")) as new_process:  # This one does not delay its flushes.
        flush = new_process.submit(flush_ms, directory).result()
    with running_postgres(directory, fsync="on", synchronous_commit="on") as postgres:
        for number, store in itertools.product(range(args.rounds), servers):
            for position, (server, command) in enumerate(servers[store].items()):
                database = new_database(store, f"round{number}_{position}", directory, postgres)
                for count, figures in measure(command, database, args).items():
                    found[store, server, count].append(figures)
    for count, store in itertools.product(args.connections, servers):
        for server in servers[store]:
            row = f"{flush:.2f} | {count} | {store} | {server}"
            print(f"| {row} | {summary(found[store, server, count], found[store, PACKAGE, count])} |", flush=True)


def new_database(store: str, name: str, directory: Path, postgres: PostgresServer) -> Database:
    if store == "SQLite":
        return Database(f"sqlite:///{directory}/{name}.db", [])
    postgres.execute(f"CREATE DATABASE {name}")
    return Database(f"{postgres.url.rpartition('/')[0]}/{name}", postgres.processes()[:1])


def summary(figures: list[Figures], package: list[Figures]) -> str:
    loads, cpu, with_database = zip(*figures, strict=True)
    rate, p99, failures, p50, _ = median(loads)
    ratio = median_ratio(loads, to=[own.load for own in package])
    cpus = f"{statistics.median(cpu):.0f} | {statistics.median(with_database):.0f}"
    return f"{rate:.0f} | {ratio:.2f} | {cpus} | {p50:.1f} | {p99:.1f} | {failures}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "run"])
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the peers are built")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--delays", type=float, nargs="+", default=[0, 4], help="of a flush, in milliseconds")
    parser.add_argument("--pool", type=int, default=16, help="connections of a peer (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="a directory on a disk, for the databases (default: as tempfile)")
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME=COMMAND", help="measure another program, too")
    args = parser.parse_args()
    args.directory = args.directory.resolve()  # Servers do not start in this directory.
    if args.what == "build":
        build(args.directory)
    else:
        run(args)


if __name__ == "__main__":
    main()
