"""Audit services on a cluster of Citus, while its nodes fail.

    python -m tests.audits.citus
    python -m tests.audits.citus --only dead_node

This needs Citus (https://github.com/citusdata/citus) for the PostgreSQL that tests.support.postgres_server finds. The
audit runs a coordinator and two workers, and all conditions of tests.audits.kills must hold:

- ``kills``: each node is killed in turn.
- ``dead_node``: at least 95 % of the creates whose ids are on a healthy node are served.
- ``setting_off``: ``synchronous_commit`` is off for the role; each plant is flushed when it is acknowledged.
- ``former_coordinator``: clients use the coordinator that was replaced, and the present one, with the same ids.
"""

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from typing import NamedTuple

import psycopg

from plants.stores import Plant
from plants.stores.postgres import RECHECK_SECONDS, PostgresStore
from tests.audits.deployment import Deployment
from tests.audits.kills import Attempts, adding_plants, audit_journal
from tests.audits.report import Verdict, run_checks, together, verdict_on
from tests.stores.test_every_store import add_together, outcome
from tests.support.hosted import CHECKOUT
from tests.support.postgres_server import PostgresServer, server_directory
from tests.support.process import wait_until

CLIENTS = 32
SECONDS = 5.0  # of load before, between and after the faults
MIN_SERVED = 0.95
SETTINGS = {
    "shared_preload_libraries": "citus",
    "wal_level": "logical",
    "max_prepared_transactions": "200",
    "citus.node_conninfo": "sslmode=disable",
    "citus.defer_shard_delete_interval": "-1",  # A former coordinator can then insert into the shards that were moved.
    "wal_writer_delay": "10s",  # A commit that does not wait for its flush is lost when its server is killed.
}
DOCUMENT = (CHECKOUT / "docs/stores.md").read_text().partition("## Create the table in Citus")[2]


def is_flushed(admin: psycopg.Connection) -> bool:
    """Return whether the server has flushed everything that was inserted; another statement may soon flush it."""
    # At the end of a page, the next record's position is after the next page's header, which has up to 40 bytes and
    # is not written yet. An insert and its commit are longer.
    behind = "SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() <= 40"
    return admin.execute(behind).fetchall() == [(True,)]


class Cluster(NamedTuple):
    """The nodes; ``successor`` does not run at first, and has the coordinator's data."""

    coordinator: PostgresServer
    successor: PostgresServer
    workers: list[PostgresServer]


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    with server_directory() as directory, ExitStack() as stack:
        names = ("coordinator", "successor", "worker1", "worker2")
        coordinator, successor, *workers = nodes = [PostgresServer(directory / name) for name in names]
        for node in nodes:
            stack.callback(node.kill)
        for node in (coordinator, *workers):
            node.create()
            node.start(**SETTINGS)
            node.execute("CREATE EXTENSION citus")
        ports = dict(zip(names, (node.port for node in nodes), strict=True))
        for statement in re.findall("```sql\n(.*?)```", DOCUMENT, re.DOTALL)[0].splitlines():
            coordinator.execute(re.sub(r"'(\w+)', 5432", lambda host: f"'127.0.0.1', {ports[host[1]]}", statement))
        yield Cluster(coordinator, successor, workers)


def url_of(node: PostgresServer) -> str:
    return node.url.replace("//postgres@", "//plants@")


def audit(
    urls: Sequence[str], faults: Sequence[Callable[[], object]], seconds: float = SECONDS, pause: float = 0
) -> tuple[Verdict, Attempts]:
    """Run a service for each URL; audit what clients of all of them see before, between and after the faults."""
    with ExitStack() as stack:
        services = [stack.enter_context(Deployment(url)) for url in urls]
        with adding_plants(*(service.url for service in services), clients=CLIENTS, pause=pause) as journal:
            time.sleep(seconds)
            for fault in faults:
                fault()
                time.sleep(seconds)
        services[-1].start()  # This waits until the database is available again.
        return verdict_on(audit_journal(urls[-1], journal)), journal


def kills() -> Verdict:
    with running_cluster() as cluster:
        nodes = (cluster.workers[0], cluster.coordinator, cluster.workers[1])
        faults = [fault for node in nodes for fault in (node.kill, node.start)]
        return audit([url_of(cluster.coordinator)] * 2, faults)[0]


def dead_node() -> Verdict:
    times: list[float] = []
    with running_cluster() as cluster:
        dead = cluster.workers[0]
        faults = [dead.kill, lambda: times.append(time.monotonic()), lambda: times.append(time.monotonic())]
        verdict, journal = audit([url_of(cluster.coordinator)] * 2, [*faults, dead.start])
        with psycopg.connect(cluster.coordinator.url) as connection:
            where = """SELECT nodeport FROM pg_dist_placement JOIN pg_dist_node USING (groupid)
                WHERE shardid = get_shard_id_for_distribution_column('plants', %s)"""
            meanwhile = [attempt for attempt in journal if times[0] < attempt[1].began < times[1]]
            healthy = [
                response.status in {200, 400}
                for plant, response in meanwhile
                if connection.execute(where, [plant.id]).fetchone() != (dead.port,)
            ]
    served = sum(healthy) / len(healthy)
    summary = f"{served:.1%} of {len(healthy):,} creates on the healthy node served"
    return together(verdict, Verdict(served >= MIN_SERVED, summary))


def setting_off() -> Verdict:
    with running_cluster() as cluster, closing(PostgresStore(url_of(cluster.coordinator))) as store:
        connections = [psycopg.connect(worker.url, autocommit=True) for worker in cluster.workers]
        store.add(Plant(0, "oak"))
        connections[0].execute("ALTER ROLE plants SET synchronous_commit = off")
        for connection in connections:
            # Citus then opens sessions with the setting, and keeps them when it has gone.
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'plants'")
        wait_until(lambda: add_together(store, [Plant(plant_id, "oak") for plant_id in range(1, 9)])[0] == "in use")
        for connection in connections:
            # Otherwise, sessions would prune the catalog, without a flush.
            connection.execute("VACUUM")
            connection.execute("CHECKPOINT")
        ended = time.monotonic() + 2
        outcomes = Counter[str]()
        for plant_id in count(9):
            result = outcome(partial(store.add, Plant(plant_id, "oak")))
            is_early = result == "added" and not all(map(is_flushed, connections))
            outcomes["! added before it was flushed" if is_early else result] += 1
            if time.monotonic() > ended:
                break
        outcomes["! nothing added"] += not outcomes["added"]
        connections[0].execute("ALTER ROLE plants RESET synchronous_commit")
        return verdict_on(+outcomes)


def former_coordinator() -> Verdict:
    with running_cluster() as cluster:
        coordinator, successor, [worker, other_worker] = cluster
        coordinator.stop()
        successor.follow(coordinator)
        for node in (coordinator, successor):
            node.start(**SETTINGS)
        with Deployment(url_of(coordinator)) as former:
            successor.execute("SELECT pg_promote()")
            successor.execute(f"SELECT citus_set_coordinator_host('127.0.0.1', {successor.port})")
            hosts = f"'127.0.0.1', {worker.port}, '127.0.0.1', {other_worker.port}"
            successor.execute(
                f"SELECT citus_move_shard_placement(shardid, {hosts}, 'block_writes')"
                f" FROM pg_dist_placement JOIN pg_dist_node USING (groupid) WHERE nodeport = {worker.port}"
            )
            time.sleep(RECHECK_SECONDS)
            with (
                Deployment(url_of(successor)) as present,
                adding_plants(former.url, present.url, clients=CLIENTS) as journal,
            ):
                time.sleep(SECONDS)
        return verdict_on(audit_journal(url_of(successor), journal))


CHECKS = {
    "kills": kills,
    "dead_node": dead_node,
    "setting_off": setting_off,
    "former_coordinator": former_coordinator,
}

if __name__ == "__main__":
    sys.exit(run_checks(__doc__, CHECKS))
