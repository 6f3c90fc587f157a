"""Kill a service and its database under load with kill -9, again and again; then audit what was acknowledged.

    python -m tests.audits.kills --store sqlite --workers 2
    python -m tests.audits.kills --store postgresql

The exit status is 0 if all of this is true:

- Every acknowledged plant (200) is stored with its name and tag.
- Every other plant is stored whole or not at all.
- No id is acknowledged or stored twice.
- Every id that was reported as in use (40003) is stored.
- Every response is a 200, a 503 or an Error 40003.
"""

import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import cycle, islice
from typing import Any

from plants import Plant
from tests.audits.bystander import Response, exchange, http_client
from tests.audits.deployment import Deployment
from tests.audits.report import audit_parser, report, verdict_on
from tests.contract import TOKEN, new_plant
from tests.support.postgres_server import PostgresServer, running_postgres, server_directory

RIVALS = 4
CLIENTS = 32
ID_IN_USE = 40003
Attempts = list[tuple[Plant, Response]]


@contextmanager
def adding_plants(*urls: str, clients: int, pause: float = 0.0) -> Iterator[Attempts]:
    """Let clients add plants meanwhile, and yield a journal of all attempts.

    ``RIVALS`` clients at a time add the same ids, each through the next service. ``pause`` is the time between a
    response and the client's next request, in seconds.
    """
    journal: Attempts = []
    over = threading.Event()

    def add_plants(number: int, url: str, plant_id: int) -> None:
        with closing(http_client(url)) as client:
            while not over.wait(pause):
                plant_id += 1
                # All attempts differ, so the stored plant shows which one was committed.
                for attempt in range(2):
                    name = f"plant {plant_id} 🌱 of {number}, {attempt}"
                    plant = Plant(plant_id, name, f"attempt {attempt}" if plant_id % 3 else None)
                    members = {key: value for key, value in plant._asdict().items() if value is not None}
                    response = exchange(client, "POST", "/plants", TOKEN, new_plant(**members))
                    journal.append((plant, response))
                    if response.status in {200, 400}:
                        break
                    over.wait(0.02)

    first_ids = [random.getrandbits(62) - 2**61 for _ in range(clients // RIVALS)] * RIVALS
    with ThreadPoolExecutor(clients) as threads:
        running = threads.map(add_plants, range(clients), cycle(urls), sorted(first_ids))
        try:
            yield journal
        finally:
            over.set()
    list(running)  # If a client has failed, raise its exception.


def read_plants(store_url: str) -> list[Plant]:
    """Return all stored plants, in one statement: PlantStore.get would open a connection for each."""
    connection: Any
    if store_url.startswith("sqlite:"):
        connection = sqlite3.connect(store_url.removeprefix("sqlite:///"))
    else:
        import psycopg

        connection = psycopg.connect(store_url)
    with closing(connection):
        return [Plant(*row) for row in connection.execute("SELECT id, name, tag FROM plants")]


def audit(attempts: Attempts, found: list[Plant]) -> str:
    """Return the outcome of a plant, of which these were found; a failure starts with an exclamation mark."""
    if len(found) > 1:
        return "! stored twice"
    stored = found[0] if found else None
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


def audit_journal(store_url: str, journal: Attempts) -> Counter[str]:
    """Return the outcomes of all plants that the clients tried to add."""
    by_id: dict[int, Attempts] = defaultdict(list)
    for plant, response in journal:
        by_id[plant.id].append((plant, response))
    stored: dict[int, list[Plant]] = defaultdict(list)
    for plant in read_plants(store_url):
        stored[plant.id].append(plant)
    return Counter(audit(attempts, stored[plant_id]) for plant_id, attempts in by_id.items())


def possible_kills(service: Deployment, database: PostgresServer | None) -> dict[str, Callable[[], None]]:
    """Return functions that kill something; the caller starts the service again."""

    def kill_a_worker() -> None:
        os.kill(random.choice(service.workers()), signal.SIGKILL)

    def kill_master() -> None:
        service.master.kill()
        time.sleep(random.random())

    def kill_database() -> None:
        assert database
        database.kill()
        time.sleep(random.random() / 2)
        database.start()

    kills = {"a worker": kill_a_worker, "the master": kill_master, "the service": service.kill}
    return kills | ({"the database": kill_database} if database else {})


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument("--store", default="sqlite", choices=["sqlite", "postgresql"], help="(%(default)s)")
    parser.add_argument("--kills", type=int, default=50, help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="(%(default)s)")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(server_directory())
        database = stack.enter_context(running_postgres(directory)) if options.store == "postgresql" else None
        url = database.url if database else f"sqlite:///{directory}/plants.db"
        with (
            Deployment(url, f"--workers {options.workers}") as service,
            adding_plants(service.url, clients=CLIENTS) as journal,
        ):
            kills = possible_kills(service, database)
            for name in islice(cycle(kills), options.kills):
                print(f"kill {name}", flush=True)
                time.sleep(random.uniform(0.1, 1))
                kills[name]()
                service.start()
        return report("plants", verdict_on(audit_journal(url, journal)))


if __name__ == "__main__":
    sys.exit(main())
