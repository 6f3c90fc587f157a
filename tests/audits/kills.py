"""Kill a service and its database under load with kill -9, again and again; then audit what was acknowledged.

    python -m tests.audits.kills --store sqlite --workers 2
    python -m tests.audits.kills --store postgresql

The exit status is 0 if all of this is true:

- Every acknowledged plant (200) is stored with its name and tag.
- Every other plant is stored whole or not at all.
- No id is acknowledged twice.
- Every id that was reported as in use (40003) is stored.
- Every response is a 200, a 503 or an Error 40003.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Self

from plants import Plant, PlantStore, open_store
from tests.audits.bystander import Response, http_client
from tests.audits.deployment import ID_IN_USE, Deployment, read_plant
from tests.audits.report import audit_parser, report_findings
from tests.support.postgres_server import PostgresServer

Attempts = list[tuple[Plant, Response]]


class JournaledLoad:
    """Clients that add plants, and a journal of their responses.

    ``pause`` is the time between a response and the client's next request, in seconds.
    """

    def __init__(self, service: Deployment, clients: int, pause: float = 0.0) -> None:
        self.journal: list[dict[int, Attempts]] = [{} for _ in range(clients)]
        self.acknowledged = [0] * clients
        self._service = service
        self._pause = pause
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def attempts(self) -> list[Attempts]:
        """Return the attempts for each id."""
        return [attempts for part in self.journal for attempts in part.values() if attempts]

    def responses(self) -> list[Response]:
        return [response for attempts in self.attempts() for _, response in attempts]

    def _write(self, number: int) -> None:
        client = http_client(self._service.url)
        plant_id = random.getrandbits(62) - 2**61
        while not self._over.wait(self._pause):
            plant_id += 1
            attempts = self.journal[number][plant_id] = []
            # A second attempt differs from the first, so the stored plant shows which one was committed.
            for attempt in range(1 + plant_id % 2):
                plant = Plant(
                    plant_id, f"plant {plant_id} 🌱 {attempt}", f"attempt {attempt}" if plant_id % 3 else None
                )
                response = self._service.add(client, plant)
                attempts.append((plant, response))
                if response.status in {200, 400}:
                    self.acknowledged[number] += response.status == 200
                    break
                self._over.wait(0.02)
        client.close()


def audit(store: PlantStore, attempts: Attempts) -> str:
    """Return the outcome of a plant; a failure starts with an exclamation mark."""
    stored = read_plant(store, attempts[0][0].id)
    acknowledged = [plant for plant, response in attempts if response.status == 200]
    unknown = [plant for plant, response in attempts if response.status in {0, 503}]
    in_use = sum(response.error == ID_IN_USE for _, response in attempts)
    if len(acknowledged) + len(unknown) + in_use != len(attempts):
        return f"! a response other than 200, 503 and {ID_IN_USE}"
    if len(acknowledged) > 1:
        return "! acknowledged twice"
    if acknowledged:
        failure = f"! acknowledged but {'changed' if stored else 'lost'}"
        return "acknowledged and stored" if stored == acknowledged[0] else failure
    if stored is None:
        return "! reported as in use but absent" if in_use else "not acknowledged, absent"
    return "not acknowledged, stored whole" if stored in unknown else "! not acknowledged, stored with other values"


def audit_load(store_url: str, load: JournaledLoad) -> bool:
    """Audit all plants that the clients tried to add, print the findings, and return whether none is a failure."""
    with closing(open_store(store_url)) as store, ThreadPoolExecutor(4) as threads:
        return report_findings(Counter(threads.map(lambda attempts: audit(store, attempts), load.attempts())))


def compete(services: Sequence[Deployment], clients: int, ids: int) -> list[Attempts]:
    """Let the clients add plants with the same ids at once; return the attempts for each id."""

    def add_all(number: int) -> Attempts:
        service = services[number % len(services)]
        plants = [Plant(first_id + offset, f"of {number}") for offset in range(ids)]
        with closing(http_client(service.url)) as client:
            together.wait()
            return [(plant, service.add(client, plant)) for plant in plants]

    first_id = random.getrandbits(62)
    together = threading.Barrier(clients)
    with ThreadPoolExecutor(clients) as threads:
        return [list(of_one_id) for of_one_id in zip(*threads.map(add_all, range(clients)), strict=True)]


def audit_race(store: PlantStore, race: list[Attempts]) -> Counter[str]:
    """Return the findings of a race."""
    return Counter(f"{audit(store, attempts)} (race)" for attempts in race)


def possible_kills(service: Deployment, database: PostgresServer | None) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the possible kills in random order, endlessly; the caller restarts the service after each."""

    def kill_a_worker() -> None:
        if workers := service.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(workers), signal.SIGKILL)

    def kill_master() -> None:
        service.kill_master()
        time.sleep(random.random())

    kill_by_name = {"a worker": kill_a_worker, "the master": kill_master, "the service": service.kill}
    if database:

        def kill_database() -> None:
            database.kill()
            time.sleep(random.random() / 2)
            database.start()

        kill_by_name["the database"] = kill_database
    while True:
        yield from random.sample(list(kill_by_name.items()), len(kill_by_name))


def run(options: argparse.Namespace, store_url: str, database: PostgresServer | None) -> int:
    kills: Counter[str] = Counter()
    started = time.monotonic()
    with (
        Deployment(store_url, f"--workers {options.workers}") as service,
        JournaledLoad(service, options.clients) as load,
    ):
        for name, kill in possible_kills(service, database):
            time.sleep(random.uniform(0.1, 1))
            kill()
            kills[name] += 1
            service.start()
            if kills.total() >= options.kills and sum(load.acknowledged) >= options.plants:
                break
    print(f"{time.monotonic() - started:.0f} s; killed: {', '.join(f'{n} x {name}' for name, n in kills.items())}")
    return int(not audit_load(store_url, load))


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument("--store", default="sqlite", choices=["sqlite", "postgresql"], help="(%(default)s)")
    parser.add_argument("--kills", type=int, default=50, help="the minimum number of kills (%(default)s)")
    parser.add_argument(
        "--plants", type=int, default=100_000, help="the minimum number of acknowledged plants (%(default)s)"
    )
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        if options.store == "sqlite":
            return run(options, f"sqlite:///{directory}/plants.db", None)
        database = PostgresServer(Path(directory, "postgres"))
        database.create()
        database.start()
        try:
            return run(options, database.url, database)
        finally:
            database.kill()


if __name__ == "__main__":
    sys.exit(main())
