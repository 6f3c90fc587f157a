"""What the PostgreSQL store does when the server, the network or another client fails it."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from plants.stores import Plant, PlantIdInUse, StoreUnavailable
from plants.stores.postgres import PostgresStore
from tests.support.postgres_server import PostgresServer, free_port

OURS = "FROM pg_stat_activity WHERE application_name = 'plants'"


@pytest.fixture
def store(server: PostgresServer) -> Iterator[PostgresStore]:
    with closing(PostgresStore(server.url)) as store:
        yield store


@pytest.fixture
def hasty(server: PostgresServer) -> Iterator[PostgresStore]:
    with closing(PostgresStore(server.url, patience=0.5)) as store:
        yield store


@pytest.fixture
def admin(server: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


def wait_until(condition: Callable[[], object], seconds: int = 3) -> None:
    never = threading.Event()
    assert any(condition() or never.wait(0.01) for _ in range(seconds * 100))


def rows(connection: psycopg.Connection, query: LiteralString) -> list[tuple[object, ...]]:
    return connection.execute(query).fetchall()


def is_available(store: PostgresStore) -> bool:
    try:
        store.check()
    except StoreUnavailable:
        return False
    return True


@contextmanager
def setting(admin: psycopg.Connection, name: LiteralString, value: LiteralString) -> Iterator[None]:
    def let(statement: LiteralString) -> None:
        admin.execute(statement)
        admin.execute("SELECT pg_reload_conf()")

    let(f"ALTER SYSTEM SET {name} = '{value}'")
    try:
        yield
    finally:
        let(f"ALTER SYSTEM RESET {name}")


@contextmanager
def table_locked(server: PostgresServer) -> Iterator[None]:
    with psycopg.connect(server.url) as other:
        other.execute("LOCK TABLE plants")
        yield


def test_connections_that_were_lost_while_idle_cost_no_add(store: PostgresStore, server: PostgresServer) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(store.add, (Plant(plant_id, "oak") for plant_id in range(100))))
    server.stop()
    server.start()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(store.add, (Plant(plant_id, "oak") for plant_id in range(100, 200))))


def test_an_outage_is_told_at_once_and_ends_by_itself(store: PostgresStore, server: PostgresServer) -> None:
    store.add(Plant(1, "oak"))
    server.stop()
    for _ in range(10):
        with pytest.raises(StoreUnavailable):
            store.add(Plant(2, "fern"))
    server.start()
    wait_until(lambda: is_available(store))
    store.add(Plant(2, "moss"))
    assert store.get(1) == Plant(1, "oak")


def test_an_add_whose_connection_is_lost_is_not_tried_again(
    store: PostgresStore, server: PostgresServer, admin: psycopg.Connection, thread: ThreadPoolExecutor
) -> None:
    store.check()
    with table_locked(server):
        add = thread.submit(store.add, Plant(1, "oak"))
        wait_until(lambda: rows(admin, f"SELECT 1 {OURS} AND wait_event_type = 'Lock'"))
        rows(admin, f"SELECT pg_terminate_backend(pid) {OURS}")
        assert isinstance(add.exception(), StoreUnavailable)
    assert store.get(1) is None


def test_an_add_that_is_locked_out_gives_up_in_time(hasty: PostgresStore, server: PostgresServer) -> None:
    hasty.check()
    with table_locked(server), pytest.raises(StoreUnavailable, match="QueryCanceled"):
        hasty.add(Plant(1, "oak"))
    assert hasty.get(1) is None


def test_an_add_is_answered_in_time_when_the_server_hangs(hasty: PostgresStore, admin: psycopg.Connection) -> None:
    hasty.check()
    [(pid,)] = rows(admin, f"SELECT pid {OURS}")
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StoreUnavailable):
        hasty.add(Plant(1, "oak"))
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: is_available(hasty))


def test_an_add_is_answered_in_time_when_the_network_swallows_everything() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        store = PostgresStore(f"postgresql://{host}:{port}/plants", patience=0.5)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="no connection could be made in time"):
                store.add(Plant(1, "oak"))
    store.close()


def test_a_serialization_failure_is_tried_again(server: PostgresServer, thread: ThreadPoolExecutor) -> None:
    url = f"{server.url}?options=-c%20default_transaction_isolation%3Dserializable"
    with closing(PostgresStore.from_url(url)) as store:
        store.check()
        with psycopg.connect(server.url) as other, psycopg.connect(server.url, autocommit=True) as admin:
            other.execute("INSERT INTO plants VALUES (1, 'oak')")
            add = thread.submit(store.add, Plant(1, "fern"))
            wait_until(lambda: rows(admin, f"SELECT 1 {OURS} AND wait_event_type = 'Lock'"))
        assert isinstance(add.exception(), PlantIdInUse)
        assert store.get(1) == Plant(1, "oak")


def test_endless_serialization_failures_end_in_time(hasty: PostgresStore, admin: psycopg.Connection) -> None:
    hasty.check()
    admin.execute("""
        CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN RAISE EXCEPTION USING ERRCODE = ''40001'', MESSAGE = ''again''; END'
    """)
    admin.execute("CREATE TRIGGER fail BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION fail()")
    with pytest.raises(StoreUnavailable, match="40001"):
        hasty.add(Plant(1, "oak"))


def test_a_server_that_became_a_standby_is_left(store: PostgresStore, admin: psycopg.Connection) -> None:
    store.check()
    admin.execute("SET default_transaction_read_only = off")
    with setting(admin, "default_transaction_read_only", "on"):
        wait_until(lambda: not is_available(store))
    wait_until(lambda: is_available(store))


def test_a_cancelled_wait_for_the_standby_does_not_count_as_kept(
    store: PostgresStore, admin: psycopg.Connection, thread: ThreadPoolExecutor
) -> None:
    store.check()
    with setting(admin, "synchronous_standby_names", "absent"):
        # The first adds may come before the setting does.
        adds = thread.submit(lambda: list(map(store.add, (Plant(plant_id, "oak") for plant_id in count()))))
        wait_until(lambda: rows(admin, f"SELECT 1 {OURS} AND wait_event = 'SyncRep'"))
        rows(admin, f"SELECT pg_cancel_backend(pid) {OURS}")
        with pytest.raises(StoreUnavailable, match="standby was cancelled"):
            adds.result()
    store.add(Plant(-1, "oak"))


def test_a_user_who_may_not_create_tables_uses_the_one_that_is_there(
    server: PostgresServer, store: PostgresStore, admin: psycopg.Connection
) -> None:
    admin.execute("CREATE ROLE gardener LOGIN")
    with closing(PostgresStore.from_url(server.url.replace("//postgres@", "//gardener@"))) as gardener:
        with pytest.raises(StoreUnavailable, match="InsufficientPrivilege"):
            gardener.add(Plant(1, "oak"))
        store.check()
        admin.execute("GRANT SELECT, INSERT ON plants TO gardener")
        gardener.add(Plant(1, "oak"))
        assert gardener.get(1) == Plant(1, "oak")


def test_a_database_that_cannot_hold_all_text_is_unavailable(server: PostgresServer, admin: psycopg.Connection) -> None:
    admin.execute("CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")
    with closing(PostgresStore.from_url(f"{server.url}?dbname=latin")) as store:
        assert not is_available(store)


@pytest.mark.parametrize("plant", [Plant(2**63, "oak"), Plant(1, "\0"), Plant(1, "\ud800")], ids=["id", "0", "\\ud800"])
def test_a_plant_that_postgresql_cannot_hold_is_no_outage(store: PostgresStore, plant: Plant) -> None:
    with pytest.raises((psycopg.DataError, UnicodeEncodeError)):
        store.add(plant)
    store.add(Plant(1, "oak"))


def test_settings_in_the_url_win_over_the_store_s_own(server: PostgresServer, admin: psycopg.Connection) -> None:
    with closing(PostgresStore.from_url(f"{server.url}?application_name=gardener")) as store:
        store.check()
        assert rows(admin, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gardener'") == [(1,)]


def test_a_fail_over_to_the_synchronous_standby_loses_nothing(server_directory: Path) -> None:
    primary, standby = (PostgresServer(server_directory / name) for name in ("primary", "standby"))
    primary.create()
    standby.follow(primary)
    primary.start(synchronous_standby_names="standby")
    standby.start()
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    with closing(PostgresStore.from_url(f"postgresql://postgres@{hosts}/postgres")) as store:
        wait_until(lambda: is_available(store))
        for plant_id in range(100):
            store.add(Plant(plant_id, "oak"))
        primary.kill()
        with pytest.raises(StoreUnavailable):
            store.add(Plant(100, "oak"))
        standby.execute("SELECT pg_promote()")
        wait_until(lambda: is_available(store))
        store.add(Plant(101, "oak"))
        assert all(store.get(plant_id) == Plant(plant_id, "oak") for plant_id in range(100))
    standby.kill()
