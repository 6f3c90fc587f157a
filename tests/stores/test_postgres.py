"""The PostgreSQL store when the server, the network or another client fails."""

import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("psycopg")

import psycopg

from plants.stores import COLUMNS, Plant, PlantIdInUse, PlantRefused, StoreUnavailable
from plants.stores.postgres import RECHECK_SECONDS, PostgresStore
from tests.audits import citus as citus_audit
from tests.stores.test_every_store import add_together, is_available, outcome, reason, submit
from tests.support.hosted import CHECKOUT
from tests.support.postgres_server import USER, PostgresServer
from tests.support.process import accepts_connections, free_port, wait_until

NEW_DATABASE, NEW_CLUSTER = re.findall(r"```sql\n(.*?)```", (CHECKOUT / "docs/stores.md").read_text(), re.DOTALL)
OURS = "FROM pg_stat_activity WHERE application_name = 'plants'"


@pytest.fixture
def store(server: PostgresServer) -> Iterator[PostgresStore]:
    with closing(PostgresStore(server.url, timeout=20)) as store:
        yield store


@contextmanager
def setting(server: PostgresServer, name: str, value: str) -> Iterator[None]:
    server.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    server.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        server.execute(f"ALTER SYSTEM RESET {name}")
        server.execute("SELECT pg_reload_conf()")


@pytest.fixture
def role_url(server: PostgresServer) -> Iterator[str]:
    """Return the URL of a role that may only read and insert plants."""
    server.execute(f"CREATE {PLANTS}; CREATE ROLE plants LOGIN; GRANT SELECT, INSERT ON plants TO plants")
    yield server.url.replace("//postgres@", "//plants@")
    server.execute("DROP OWNED BY plants; DROP ROLE plants")


def wait_for_sessions(server: PostgresServer, event: str, number: int = 1) -> None:
    """Wait until this number of the store's connections wait for an event."""
    waiting = f"SELECT pid {OURS} AND '{event}' IN (wait_event, wait_event_type)"
    wait_until(lambda: len(server.execute(waiting)) == number)


def test_a_batch_whose_connection_is_lost_is_not_retried(store: PostgresStore, server: PostgresServer) -> None:
    server.execute(f"CREATE {PLANTS}; ALTER TABLE plants ADD CHECK (pg_sleep(60)::text = '')")
    store.check()
    pending = [submit(store, Plant(plant_id, "oak")) for plant_id in (1, 2, 1)]
    wait_for_sessions(server, "PgSleep")
    server.execute(f"SELECT pg_terminate_backend(pid) {OURS}")
    for future in pending:
        # A second attempt would sleep again, and time out.
        with pytest.raises(StoreUnavailable, match=r"AdminShutdown, SQLSTATE 57P01: term|server closed the connection"):
            future.result()
    assert store.get(1) is None


def test_connections_work_with_descriptors_above_1023(store: PostgresStore) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while files.enter_context(Path(os.devnull).open()).fileno() < 1024:
            pass
        store.add(Plant(1, "oak"))
        assert store.get(1) == Plant(1, "oak")


def test_connecting_to_a_server_that_never_responds_times_out(server: PostgresServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_host = f"127.0.0.1:{silent.getsockname()[1]}"
        store = PostgresStore(f"postgresql://{silent_host}/plants")
        add = submit(store, Plant(1, "oak"))
        for use in (partial(store.get, 1), add.result):
            with pytest.raises(StoreUnavailable, match="timeout expired"):
                use()
        # The first plants wait for the connection to the second host.
        with closing(PostgresStore(server.url.replace("@", f"@{silent_host},"))) as second:
            assert add_together(second, [Plant(1, "oak"), Plant(2, "oak")]) == ["added"] * 2
    store.close()


@pytest.mark.parametrize("options", ["", "?options=-c%20client_min_messages%3Derror"], ids=["", "hidden warnings"])
def test_a_canceled_wait_for_the_standby_is_not_a_success(server: PostgresServer, options: str) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(1) as thread:
        stores = [stack.enter_context(closing(PostgresStore(server.url + options, timeout=20))) for _ in range(2)]
        for store in stores:
            store.check()
        with setting(server, "synchronous_standby_names", "absent"):
            # The first adds may run before the setting takes effect.
            attempts = ((Plant(plant_id, "oak") for plant_id in range(2000)), [Plant(0, "in use")])
            for store, plants in zip(stores, attempts, strict=True):
                adds = thread.submit(list, map(store.add, plants))
                cancel = f"SELECT pg_cancel_backend(pid) {OURS} AND wait_event = 'SyncRep'"
                while not adds.done():  # In an outage, the first store checks itself, too.
                    server.execute(cancel)
                    time.sleep(0.02)
                with pytest.raises(StoreUnavailable, match="a warning from SyncRepWaitForLSN"):
                    adds.result()


def test_without_its_standby_a_store_logs_one_outage(server: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stores = [PostgresStore(server.url, timeout=seconds) for seconds in (1, 20)]
    with closing(stores[0]) as store, closing(stores[1]) as healthy:
        healthy.prepare()
        assert "created the table plants, which is empty" in caplog.messages
        wait_until(lambda: is_available(store))
        with setting(server, "synchronous_standby_names", "absent"):
            # The first adds may run before the setting takes effect.
            assert any(outcome(partial(store.add, Plant(plant_id, "oak"))) == "unavailable" for plant_id in count())
            healthy.check()  # It only reads.
            wait_until(lambda: "unavailable" in caplog.text)  # A call may time out before that.
            caplog.clear()
            for _ in range(2):
                time.sleep(0.6)  # so that the committer tries again
                wait_until(lambda: "wait timeout expired" in reason(store))
            wait_for_sessions(server, "SyncRep", 0)  # They would fill the server.
        assert not caplog.messages
        wait_until(lambda: is_available(store))


def test_no_option_of_the_url_or_the_role_changes_a_statement(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    # With the first of these, PostgreSQL also quotes the names of types.
    options = "-cquote_all_identifiers%3Don%20-cdefault_transaction_isolation%3Dserializable"
    url = f"{server.url}?client_encoding=LATIN1&application_name=garden&options={options}"
    waiting = "SELECT pid FROM pg_stat_activity WHERE application_name = 'garden' AND wait_event_type = 'Lock'"
    with closing(PostgresStore(url, timeout=20)) as store:
        store.add(Plant(1, "Ж"))
        assert store.get(1) == Plant(1, "Ж")

        def add_while_it_is_inserted(plant_id: int) -> str:
            with server.transaction(f"INSERT INTO plants VALUES ({plant_id}, 'oak')"):
                add = submit(store, Plant(plant_id, "fern"))
                wait_until(lambda: add.done() or server.execute(waiting))
            return outcome(add.result)

        # On a busy machine, the transaction may last longer than a batch waits for it.
        assert any(add_while_it_is_inserted(plant_id) == "in use" for plant_id in range(2, 50))


WARN = """
    CREATE OR REPLACE FUNCTION warn() RETURNS text LANGUAGE plpgsql AS
    'BEGIN RAISE WARNING ''{}''; RETURN 1; END';
    ALTER TABLE plants ADD IF NOT EXISTS note text DEFAULT warn()
"""
FAIL = """
    CREATE OR REPLACE FUNCTION fail(code text, name text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
    IF name <> 'oak' THEN RAISE EXCEPTION USING ERRCODE = code, MESSAGE = name; END IF;
    RETURN true; END $$
"""
FAILURES = {
    "an index on long names": ("CREATE INDEX ON plants (name)", "ProgramLimitExceeded, SQLSTATE 54000"),
    "a column": (
        "ALTER TABLE plants ADD since date NOT NULL DEFAULT now(); ALTER TABLE plants ALTER since DROP DEFAULT",
        "NotNullViolation, SQLSTATE 23502: column since",
    ),
    "a unique index": (
        "CREATE UNIQUE INDEX one ON plants ((1)) WHERE length(name) > 9; INSERT INTO plants VALUES (9, '0123456789')",
        "UniqueViolation, SQLSTATE 23505: constraint one",
    ),
    "a policy": (
        "ALTER TABLE plants ENABLE ROW LEVEL SECURITY",
        'InsufficientPrivilege, SQLSTATE 42501: new row violates row-level security policy for table "plants"',
    ),
    "a division": ("CREATE INDEX ON plants ((1 / (length(name) - 9000)))", "DivisionByZero, SQLSTATE 22012"),
    "an exception": ("ALTER TABLE plants ADD CHECK (fail('P0001', name))", "RaiseException, SQLSTATE P0001"),
}


@pytest.mark.parametrize(("statement", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failed_insert_has_a_reason_without_the_plant(
    server: PostgresServer, role_url: str, statement: str, message: str
) -> None:
    server.execute(FAIL)
    with closing(PostgresStore(role_url, timeout=20)) as store:
        store.add(Plant(1, "oak"))
        server.execute(statement)
        with pytest.raises(PlantRefused, match=f"^{message}$"):
            store.add(Plant(2, random.Random(1).randbytes(4500).hex()))
    assert not server.execute("SELECT id FROM plants WHERE id = 2")


def test_an_error_of_the_server_fails_its_batch(server: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    server.execute(f"CREATE {PLANTS}; {FAIL}; ALTER TABLE plants ADD CHECK (fail(name, name))")
    for code in ("25006", "26000", "53400", "55000", "57014", "58030"):
        with closing(PostgresStore(server.url, timeout=20)) as store:
            assert add_together(store, [Plant(1, code), Plant(2, "oak")]) == ["unavailable"] * 2
    assert "the store is unavailable: ConfigurationLimitExceeded, SQLSTATE 53400" in caplog.messages


def test_a_new_trigger_does_not_make_a_free_id_look_in_use(store: PostgresStore, server: PostgresServer) -> None:
    store.add(Plant(1, "oak"))
    server.execute("CREATE OR REPLACE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    server.execute("CREATE TRIGGER skip BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION skip()")
    with pytest.raises(StoreUnavailable, match="has the trigger skip"):
        store.add(Plant(2, "fern"))
    server.execute("DROP TRIGGER skip ON plants")
    wait_until(lambda: is_available(store))
    with pytest.raises(PlantIdInUse):
        store.add(Plant(1, "fern"))


# The parameters of the function depend on the version of PostgreSQL.
EMIT = """DO $$ BEGIN EXECUTE (SELECT string_agg(format('{} EXECUTE ON FUNCTION %s {} PUBLIC', oid::regprocedure), ';')
    FROM pg_proc WHERE proname = 'pg_logical_emit_message'); END $$"""
MISSING = {
    "table": "DROP TABLE plants",
    "column": "ALTER TABLE plants DROP tag",
    "right to read": "REVOKE SELECT ON plants FROM plants",
    "right to insert": "REVOKE INSERT ON plants FROM plants",
    "right to write to the log": EMIT.format("REVOKE", "FROM"),
}


@pytest.mark.parametrize("statement", MISSING.values(), ids=MISSING)
def test_a_start_without_a_privilege_has_the_statement_that_grants_it(
    server: PostgresServer, role_url: str, statement: str
) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(closing(PostgresStore(role_url, timeout=20)))
        running = stack.enter_context(closing(PostgresStore(role_url, timeout=20)))
        running.add(Plant(0, "oak"))
        stack.callback(server.execute, EMIT.format("GRANT", "TO"))
        server.execute(statement)
        with pytest.raises(StoreUnavailable, match=r"its owner must send: |is gone"):
            running.add(Plant(0, "oak"))
        with pytest.raises(StoreUnavailable, match=r"SQLSTATE 42501: .*; its owner must") as caught:
            store.prepare()
        server.execute(str(caught.value).partition("must send: ")[2])
        store.add(Plant(1, "oak"))
        with pytest.raises(PlantIdInUse):
            store.add(Plant(1, "fern"))
        server.execute('CREATE ROLE "user" LOGIN')
        stack.callback(server.execute, 'DROP ROLE "user"')
        stranger = stack.enter_context(closing(PostgresStore(role_url.replace("plants@", "user@"), timeout=20)))
        assert reason(stranger).endswith('must send: GRANT SELECT, INSERT ON public.plants TO "user"')


def test_a_database_that_cannot_hold_all_text_is_unavailable(server: PostgresServer) -> None:
    server.execute("CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")
    with closing(PostgresStore(f"{server.url}?dbname=latin", timeout=20)) as store:
        assert "encoding is not UTF8" in reason(store)
    server.execute("DROP DATABASE latin WITH (FORCE)")


TEXTS = ", ".join(column.define({int: "bigint", str: "text"}) for column in COLUMNS[1:])
PLANTS = f"TABLE plants (id bigint PRIMARY KEY, {TEXTS})"
TRIGGER = "CREATE TRIGGER guard AFTER INSERT"
FUNCTION = "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
WHOLE = "FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
PARTITIONED = f"{PLANTS} PARTITION BY HASH (id); CREATE TABLE p0 PARTITION OF plants {WHOLE}"
WRONG_TABLES = {
    "int4 id": (f"TABLE plants (id int PRIMARY KEY, {TEXTS})", "lacks id bigint"),
    "no key": ("TABLE plants (id bigint, name text)", "no unique key"),
    "a wider key": (f"TABLE plants (id bigint, {TEXTS}, UNIQUE (id, name))", "no unique key"),
    "partial key": (f"TABLE plants (id bigint, {TEXTS}); CREATE UNIQUE INDEX ON plants (id) WHERE id > 0", "no unique"),
    "deferrable key": (f"TABLE plants (id bigint PRIMARY KEY DEFERRABLE, {TEXTS})", "no unique key on id alone"),
    "a trigger": (f"TABLE plants (id bigint PRIMARY KEY, name text); {TRIGGER} ON plants {FUNCTION}", "trigger guard"),
    "a rule": (f"{PLANTS}; CREATE RULE never AS ON INSERT TO plants DO INSTEAD NOTHING", "the rule never"),
    "an unlogged partition of a partition": (
        f"{PARTITIONED} PARTITION BY HASH (id); CREATE UNLOGGED TABLE leaf PARTITION OF p0 {WHOLE}",
        "UNLOGGED",
    ),
    "a column that must have a value": (
        "TABLE plants (id bigint PRIMARY KEY, name text, since date NOT NULL)",
        "lacks a column, and would refuse every plant: the column since has no default",
    ),
    "a partition with a trigger": (
        f"{PARTITIONED}; {TRIGGER} ON p0 {FUNCTION}; ALTER TABLE p0 ENABLE ALWAYS TRIGGER guard",
        "the trigger guard",
    ),
}
CITUS = """
    DROP TABLE IF EXISTS pg_dist_local_group, pg_dist_partition, pg_dist_shard, pg_dist_placement, nodes CASCADE;
    CREATE TABLE pg_dist_local_group AS SELECT 0 AS groupid;
    CREATE TABLE pg_dist_partition (logicalrelid oid, partmethod text);
    CREATE TABLE pg_dist_shard (logicalrelid oid, shardid int);
    CREATE TABLE pg_dist_placement AS SELECT * FROM (VALUES (1, 1), (2, 2)) AS placement (shardid, groupid);
    CREATE OR REPLACE FUNCTION get_shard_id_for_distribution_column(regclass, bigint) RETURNS int LANGUAGE sql
        AS 'SELECT CASE $2 % 20 WHEN 7 THEN 2 ELSE 1 END';
    CREATE TABLE nodes AS SELECT * FROM (VALUES (1, true, 'a:5432'), (2, false, 'dead'), (3, true, 'a:5432'))
        AS nodes (nodeid, success, result);
    CREATE OR REPLACE FUNCTION run_command_on_all_nodes(text) RETURNS SETOF nodes LANGUAGE sql SECURITY DEFINER
        AS $$ SELECT * FROM nodes WHERE $1 LIKE '%FROM pg_dist_node WHERE groupid = 0' $$;
    GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC;
    INSERT INTO pg_extension VALUES (99999, 'citus', 10, 11, false, '0', NULL, NULL);
"""
DISTRIBUTE = """
    INSERT INTO pg_dist_partition VALUES ('plants'::regclass, 'h');
    INSERT INTO pg_dist_shard VALUES ('plants'::regclass, 1);
"""
CITUS_FAULTS = {
    "a worker": ("UPDATE pg_dist_local_group SET groupid = 2", "is on a worker of Citus; name the coordinator"),
    "a local table": ("DELETE FROM pg_dist_partition", "is not distributed by a hash of id; its owner must send"),
    "a reference table": ("UPDATE pg_dist_partition SET partmethod = 'n'", "is not distributed by a hash of id"),
    "two placements": ("INSERT INTO pg_dist_placement VALUES (1)", "has a replication factor above 1"),
    "a former coordinator": ("UPDATE nodes SET result = 'b:5432' WHERE nodeid = 3", "the nodes name a:5432, b:5432$"),
    "a missing column": ("ALTER TABLE plants DROP tag", "must send: ALTER TABLE public.plants ADD COLUMN IF NOT EX"),
}
WRONG_TABLES |= {
    f"Citus: {name}": (f"{PLANTS}; {CITUS}; {DISTRIBUTE}; {statement}", reason)
    for name, (statement, reason) in CITUS_FAULTS.items()
}


@pytest.mark.parametrize(("definition", "reason"), WRONG_TABLES.values(), ids=WRONG_TABLES)
def test_a_table_with_the_wrong_schema_is_refused_and_unchanged(
    store: PostgresStore, server: PostgresServer, definition: str, reason: str
) -> None:
    server.execute(f"CREATE {definition}")
    columns = "SELECT attname FROM pg_attribute WHERE attrelid = 'plants'::regclass"
    before = server.execute(columns)
    for use in (store.prepare, store.check, partial(store.add, Plant(1, "oak"))):
        with pytest.raises(StoreUnavailable, match=reason):
            use()
    assert server.execute(columns) == before


@pytest.mark.parametrize(
    "definition",
    [
        "TABLE plants (note text, name text, id bigint, since date NOT NULL DEFAULT now(), UNIQUE (id) INCLUDE (name))",
        "TABLE plants (id bigint PRIMARY KEY, name text, number bigint GENERATED ALWAYS AS IDENTITY)",
        f"{PLANTS}; CREATE INDEX ON plants (name); {TRIGGER.replace('INSERT', 'UPDATE')} ON plants {FUNCTION}",
        f"{PLANTS}; {TRIGGER} ON plants {FUNCTION}; ALTER TABLE plants ENABLE REPLICA TRIGGER guard",
        PARTITIONED,
    ],
    ids=["further columns", "a further identity", "a trigger of updates", "a trigger of replicas", "a partition"],
)
def test_a_table_that_can_store_every_plant_is_used(
    store: PostgresStore, server: PostgresServer, definition: str
) -> None:
    server.execute(f"CREATE {definition}")
    store.add(Plant(1, "oak"))
    assert store.get(1) == Plant(1, "oak")


@pytest.fixture
def citus(server: PostgresServer, role_url: str) -> Iterator[PostgresStore]:
    """A store on a plain server whose catalog looks like that of Citus. ``tests.audits.citus`` uses a real cluster."""
    server.execute(f"{CITUS} {DISTRIBUTE} ALTER ROLE plants SET client_min_messages = error")
    with closing(PostgresStore(role_url, timeout=20)) as store:
        yield store


def test_the_documented_role_owns_a_database_that_is_enough(server: PostgresServer) -> None:
    with ExitStack() as stack:
        for statement, undo in zip(NEW_DATABASE.splitlines(), ("ROLE plants", "DATABASE plants (FORCE)"), strict=True):
            server.execute(statement)
            stack.callback(server.execute, f"DROP {undo}")
        url = f"postgresql://plants:secret@127.0.0.1:{server.port}/plants"
        with closing(PostgresStore(url, timeout=20)) as store:
            store.add(Plant(1, "oak"))


def test_citus_the_operator_creates_the_table(citus: PostgresStore, server: PostgresServer) -> None:
    server.execute("DROP TABLE plants")
    for use in (citus.prepare, citus.check, partial(citus.add, Plant(1, "oak"))):
        with pytest.raises(StoreUnavailable, match=r"owner must send: CREATE .*; SELECT create_distr") as caught:
            use()
    for statement in str(caught.value).partition("must send: ")[2].split("; "):
        assert f"{statement};" in NEW_CLUSTER
    assert server.execute("SELECT to_regclass('plants')") == [(None,)]
    server.execute(f"CREATE {PLANTS}; GRANT SELECT, INSERT ON plants TO plants; {DISTRIBUTE}")
    wait_until(lambda: is_available(citus))
    assert add_together(citus, [Plant(1, "oak"), Plant(1, "fern")]) == ["added", "in use"]
    assert citus.get(1) == Plant(1, "oak")


def test_citus_only_the_warning_of_a_canceled_wait_is_a_failure(citus: PostgresStore, server: PostgresServer) -> None:
    """Citus relays the warning of a node under a function name of its own."""
    citus.check()
    server.execute(WARN.format("database must be vacuumed"))
    assert add_together(citus, [Plant(1, "oak"), Plant(2, "fern")]) == ["added"] * 2
    server.execute(WARN.format("canceling wait for synchronous replication due to user request"))
    with pytest.raises(StoreUnavailable, match="a warning from exec_stmt_raise leaves the outcome unknown"):
        citus.add(Plant(3, "oak"))


def test_citus_an_id_in_use_after_a_failed_commit_is_not_reported(citus: PostgresStore, server: PostgresServer) -> None:
    """A node may have committed its plants before the commit has failed."""
    server.execute("DROP TABLE IF EXISTS tags; CREATE TABLE tags (tag text PRIMARY KEY)")
    server.execute("ALTER TABLE plants ADD FOREIGN KEY (tag) REFERENCES tags DEFERRABLE INITIALLY DEFERRED")
    citus.prepare()
    plants = [Plant(plant_id, "oak", "unknown" if plant_id == 7 else None) for plant_id in range(20)]
    for each in ("added", "unavailable"):
        outcomes = add_together(citus, plants)
        assert outcomes.pop(7) == "rejected"
        assert outcomes == [each] * 19
    assert outcome(partial(citus.add, plants[7])) == "rejected"
    assert add_together(citus, plants[:7]) == ["in use"] * 7  # That commit was of another batch.


def test_citus_a_table_may_become_distributed_while_a_store_uses_it(server: PostgresServer, role_url: str) -> None:
    with closing(PostgresStore(role_url, timeout=20)) as store:
        store.add(Plant(1, "oak"))
        server.execute(FAIL)
        server.execute(CITUS + DISTRIBUTE)
        # Citus does not support the statements of a plain server.
        propagates = "CASE current_setting('citus.propagate_set_commands', true) WHEN 'local' THEN 'oak' ELSE '' END"
        server.execute(f"ALTER TABLE plants ADD CHECK (fail('0A000', {propagates})) NOT VALID")
        wait_until(lambda: outcome(partial(store.add, Plant(2, "oak"))) == "added")


def test_stores_that_start_together_create_what_is_missing_once(server: PostgresServer) -> None:
    stores: list[PostgresStore] = []
    with ExitStack() as stack, ThreadPoolExecutor(4) as threads:
        # The stores collide in most rounds, not in each.
        for definition in ["", "CREATE TABLE plants (id bigint PRIMARY KEY, name text NOT NULL)"] * 3:
            server.execute(f"DROP TABLE IF EXISTS plants; {definition}")
            stores += [stack.enter_context(closing(PostgresStore(server.url, timeout=20))) for _ in range(4)]
            list(threads.map(reason, stores[-4:]))  # They may fail, because their statements collide.
        wait_until(lambda: all(map(is_available, stores)))
        stores[0].add(Plant(1, "oak", "tree"))
        server.execute(f"ALTER TABLE plants DROP tag; SELECT pg_terminate_backend(pid) {OURS}")
        wait_until(lambda: all("its owner must send: ALTER TABLE public.plants ADD" in reason(each) for each in stores))


def test_no_id_of_the_first_table_becomes_available(server: PostgresServer, role_url: str) -> None:
    with closing(PostgresStore(role_url, timeout=20)) as store:
        store.add(Plant(1, "oak"))
        server.execute("CREATE SCHEMA AUTHORIZATION plants CREATE TABLE plants (LIKE public.plants)")
        server.execute(f"SELECT pg_terminate_backend(pid, 5000) {OURS}")
        # Connections that were lost while they were idle are not used.
        assert not store.get(2)
        assert outcome(partial(store.add, Plant(1, "fern"))) == "in use"
        server.execute("ALTER TABLE public.plants RENAME TO old")
        assert outcome(partial(store.add, Plant(1, "fern"))) == "unavailable"
        wait_until(lambda: "gone; it is not recreated, because ids already in use" in reason(store))
        server.execute("ALTER TABLE old RENAME TO plants")
        wait_until(lambda: outcome(partial(store.add, Plant(1, "fern"))) == "in use")


def test_locked_ids_fail_alone_and_a_locked_table_is_an_outage(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    plants = [Plant(plant_id, "oak") for plant_id in range(200)]
    with closing(PostgresStore(server.url, timeout=6)) as store:  # It may not wait for each id in turn.
        wait_until(lambda: is_available(store))
        with server.transaction("INSERT INTO plants SELECT generate_series(0, 199, 8), 'fern'"):
            for each in ("added", "in use"):
                outcomes = add_together(store, plants)
                assert outcomes[::8] == ["unavailable"] * 25
                assert outcomes.count(each) == 175
            some = [Plant(0, "oak"), Plant(200, "oak"), Plant(8, "oak")]
            assert add_together(store, some) == ["unavailable", "added", "unavailable"]
            store.add(Plant(201, "oak"))
            store.check()  # It failed until a plant was stored.
        assert add_together(store, plants) == ["in use"] * 200
        assert "another transaction holds the id" in caplog.text
        with server.transaction("LOCK TABLE plants"), pytest.raises(StoreUnavailable, match="LockNotAvailable"):
            store.add(Plant(202, "oak"))


def test_if_there_is_no_time_to_find_locked_ids_their_batch_fails(server: PostgresServer) -> None:
    # After one statement has waited 0.1 s for a lock, there is no time for two more to do so.
    with closing(PostgresStore(server.url, timeout=0.29)) as store:
        # The first batch then has all plants, because its committer must connect first.
        wait_until(lambda: outcome(store.prepare) == "added")
        with server.transaction("INSERT INTO plants VALUES (1, 'fern')"):
            assert add_together(store, [Plant(plant_id, "oak") for plant_id in range(4)]) == ["unavailable"] * 4


def test_a_silent_connection_costs_one_timeout(server: PostgresServer) -> None:
    with closing(PostgresStore(server.url, timeout=2)) as store, ExitStack() as stack:
        wait_until(lambda: is_available(store))
        [(pid,)] = server.execute(f"SELECT pid {OURS} ORDER BY backend_start DESC LIMIT 1")
        stack.callback(os.kill, pid, signal.SIGCONT)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(StoreUnavailable, match="timeout"):
            store.add(Plant(10, "oak"))
        wait_until(lambda: is_available(store))


def test_a_changed_table_is_checked_again_while_adds_succeed(
    store: PostgresStore, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic
    store.add(Plant(0, "oak"))
    server.execute("ALTER TABLE plants SET UNLOGGED")
    store.add(Plant(1, "oak"))
    monkeypatch.setattr("time.monotonic", lambda: now() + RECHECK_SECONDS)
    assert outcome(partial(store.add, Plant(2, "oak"))) == "unavailable"
    assert "UNLOGGED" in reason(store)
    server.execute("ALTER TABLE plants SET LOGGED")
    wait_until(lambda: is_available(store))


@pytest.mark.parametrize(
    ("code", "guilty", "catalog"),
    [
        ("23514", "rejected", ""),
        ("40001", "unavailable", ""),
        ("XX000", "unavailable", ""),
        ("08006", "unavailable", CITUS + DISTRIBUTE),
    ],
    ids=["check", "conflict", "internal error", "lost node of Citus"],
)
def test_the_plants_that_cause_an_error_fail_alone(
    store: PostgresStore, server: PostgresServer, code: str, guilty: str, catalog: str
) -> None:
    server.execute(f"CREATE {PLANTS}; {catalog}; {FAIL}; ALTER TABLE plants ADD CHECK (fail('{code}', name))")
    twice = (add_together(store, [Plant(plant_id, ""), Plant(plant_id, "oak")]) for plant_id in count(100))
    assert next(each for each in twice if each[1] != "added") == [guilty, "unavailable"]  # They were in one batch.
    plants = [Plant(plant_id, "" if plant_id % 20 == 7 else "oak") for plant_id in range(60)]
    for each in ("added", "in use"):
        outcomes = add_together(store, plants)
        assert [outcomes.pop(plant_id) for plant_id in (47, 27, 7)] == [guilty] * 3
        assert outcomes == [each] * 57


def test_a_batch_inserts_its_plants_in_the_order_of_their_ids(store: PostgresStore, server: PostgresServer) -> None:
    """If batches used different orders, two batches with the same ids could wait for each other."""
    assert add_together(store, [Plant(plant_id, "oak") for plant_id in (2, 3, 1)]) == ["added"] * 3
    assert server.execute("SELECT id FROM plants ORDER BY ctid") == [(1,), (2,), (3,)]


def test_a_failover_to_the_synchronous_standby_loses_nothing(session_server: PostgresServer) -> None:
    primary, standby = (PostgresServer(session_server.directory.with_name(name)) for name in ("primary", "standby"))
    primary.create()
    standby.follow(primary)
    primary.start(synchronous_standby_names="standby")
    standby.start()
    # The primary is the last one, because the store must pass by a standby that accepts connections.
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
    # Wait until the standby follows, because until then no commit returns.
    wait_until(lambda: primary.execute("SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'"))
    with closing(PostgresStore(f"{primary.url}?options=-csynchronous_commit%3Dremote_apply", timeout=1)) as store:
        wait_until(lambda: is_available(store))
        standby.execute("SELECT pg_wal_replay_pause()")
        assert outcome(partial(store.add, Plant(200, "oak"))) == "unavailable"
        standby.execute("SELECT pg_wal_replay_resume()")
    with closing(PostgresStore(f"postgresql://postgres@{hosts}/postgres", timeout=20)) as store:
        wait_until(lambda: is_available(store))
        for plant_id in range(100):
            store.add(Plant(plant_id, "oak"))
        primary.kill()
        with pytest.raises(StoreUnavailable):
            store.add(Plant(100, "oak"))
        standby.execute("SELECT pg_promote()")
        wait_until(lambda: is_available(store))
        store.add(Plant(101, "oak"))
        assert {(plant_id, "oak", None) for plant_id in (*range(100), 101)} <= {*standby.execute("TABLE plants")}
    standby.kill()


def test_two_services_lose_no_plant_when_the_database_is_killed(server: PostgresServer) -> None:
    verdict, _ = citus_audit.audit([server.url] * 2, [server.kill, server.start], seconds=0.3, pause=0.05)
    assert verdict.holds, verdict.summary


@pytest.fixture
def url(request: pytest.FixtureRequest, server: PostgresServer, role_url: str) -> Iterator[str]:
    """The URL of the role, perhaps through a PgBouncer in this mode, with one connection to the server."""
    if not request.param:
        yield role_url
        return
    program = shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin")
    if not program:
        pytest.skip("not installed: pgbouncer")
    port = free_port()
    configuration = server.directory.with_name("pgbouncer.ini")
    configuration.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={server.port} user=plants\n[pgbouncer]\nauth_type = any\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\npool_mode = {request.param}\n"
        "default_pool_size = 1\n"
    )
    with subprocess.Popen([program, "--quiet", configuration], user=USER, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: accepts_connections(port))
            yield f"postgresql://plants@127.0.0.1:{port}/postgres"
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("url", "is_citus", "services"),
    [("", False, 2), ("session", False, 1), ("transaction", False, 2), ("", True, 2)],
    indirect=["url"],
)
def test_commits_are_flushed_although_the_role_says_off(
    server: PostgresServer, role_url: str, url: str, is_citus: bool, services: int
) -> None:
    server.execute("ALTER ROLE plants SET synchronous_commit = off")
    if is_citus:
        server.execute(CITUS + DISTRIBUTE)
    with ExitStack() as stack:
        stack.enter_context(server.paused_writers())
        stores = [stack.enter_context(closing(PostgresStore(url, timeout=20))) for _ in range(services)]
        admin, other = (stack.enter_context(psycopg.connect(each, autocommit=True)) for each in (server.url, role_url))
        insert = "INSERT INTO plants VALUES (%s, 'fern')"
        for plant_id in range(16):  # psycopg prepares a statement at its sixth execution.
            store = stores[plant_id % services]
            other.execute(insert, [100 + plant_id])
            assert not citus_audit.is_flushed(admin)
            store.add(Plant(plant_id, "oak"))
            assert citus_audit.is_flushed(admin)
            other.execute(insert, [-1 - plant_id])
            assert outcome(partial(store.add, Plant(-1 - plant_id, "oak"))) == "in use"
            assert citus_audit.is_flushed(admin)


@pytest.mark.parametrize("url", ["", "session", "transaction"], indirect=True)
def test_threads_share_the_connection_of_a_role_or_pooler(server: PostgresServer, url: str) -> None:
    server.execute("ALTER ROLE plants CONNECTION LIMIT 1")
    with closing(PostgresStore(url, timeout=5)) as store, ThreadPoolExecutor(8) as threads:
        wait_until(lambda: is_available(store))
        assert not any(threads.map(store.add, (Plant(plant_id, "oak") for plant_id in range(500))))
