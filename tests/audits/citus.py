"""Audit the service on a distributed engine such as Citus, while nodes of the cluster are killed and stopped.

    python -m tests.audits.citus --url postgresql://coordinator/plants --url postgresql://coordinator/plants \\
        --fault "ssh node3 pkill -9 postgres" "ssh node3 pg_ctl start" \\
        --fault "ssh node3 pkill -STOP postgres" "ssh node3 pkill -CONT postgres"

The cluster must run, and it must already have the table ``plants``; docs/stores.md has the statements that create this
table. Citus is at https://github.com/citusdata/citus. The audit starts a service for each URL. ``--fault`` takes two
commands: one that causes the fault, and one that ends it. A plain PostgreSQL server can be audited in the same way. The
exit status is 0 if every acknowledged plant is stored, no id is used by two plants, and every other plant is stored
whole or not at all.
"""

import random
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import chain

import psycopg

from plants import Plant, PlantIdInUse, StoreUnavailable
from plants.stores.postgres import PostgresStore
from tests.audits.deployment import Deployment
from tests.audits.kills import JournaledLoad, audit_load, read_plant
from tests.audits.report import audit_parser, report, verdict_on
from tests.stores.test_every_store import submit

CLIENTS_PER_SERVICE = 16


def batch(store: PostgresStore) -> Counter[str]:
    """Submit a batch of plants that belong to different nodes, one with an id in use; return the findings."""
    used, *others = (Plant(random.getrandbits(62), f"plant {number}") for number in range(128))
    store.add(used)
    pending = [(plant, submit(store, plant)) for plant in (*others, used._replace(name="another"))]
    findings: Counter[str] = Counter()
    for plant, future in pending:
        try:
            future.result()
            findings["stored (batch)" if read_plant(store, plant.id) == plant else "! lost (batch)"] += 1
        except PlantIdInUse:
            findings["in use (batch)" if read_plant(store, plant.id) == used else "! reported as in use (batch)"] += 1
        except StoreUnavailable:
            findings["unknown (batch)"] += 1
    return findings


def run(urls: Sequence[str], faults: Sequence[Sequence[str]], seconds: float, pause: float = 0) -> int:
    """Audit one service for each URL; return the exit status."""
    with ExitStack() as stack:
        store = stack.enter_context(closing(PostgresStore(urls[0], timeout=30)))
        findings = batch(store)
        services = [stack.enter_context(Deployment(url)) for url in urls]
        with JournaledLoad(*services, clients=CLIENTS_PER_SERVICE * len(services), pause=pause) as load:
            time.sleep(seconds)
            for command in chain.from_iterable(faults):
                subprocess.run(shlex.split(command), check=True)
                time.sleep(seconds)
        for service in services:
            service.start()  # This waits until the database is available again.
        findings += audit_load(urls[0], load)
        with psycopg.connect(urls[0]) as connection:
            [(twice,)] = connection.execute("SELECT count(*) - count(DISTINCT id) FROM plants").fetchall()
        if twice:
            findings["! ids that two plants use"] = twice
    slowest = max(response.ended - response.began for _, response in load.journal)
    print(f"slowest response: {slowest:.2f} s")
    return report("plants", verdict_on(findings))


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument(
        "--url", action="append", required=True, help="the URL of the coordinator; clients use all services at once"
    )
    parser.add_argument("--fault", action="append", nargs=2, default=[], metavar=("COMMAND", "END"))
    parser.add_argument(
        "--seconds",
        type=float,
        default=20,
        help="the seconds of load before the first fault and after each command (%(default)s)",
    )
    options = parser.parse_args()
    return run(options.url, options.fault, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
