"""The numbers and tables of docs/scaling.md and docs/operating.md."""

import inspect
import json
import random
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from plants import open_store
from plants.hosting import cli, gunicorn_conf, metrics
from tests.contract import AUTH, JSON_TYPE, new_plant
from tests.support.hosted import CHECKOUT, serving
from tests.support.needs import needs_psycopg
from tests.support.postgres_server import PostgresServer

SCALING, OPERATING = ((CHECKOUT / "docs" / f"{name}.md").read_text() for name in ("scaling", "operating"))
PLANTS = 20_000
SECONDS_PER_YEAR = 31_536_000


def words(page: str) -> str:
    return " ".join(page.split())


class BytesPerPlant(NamedTuple):
    in_sqlite: int
    in_postgresql: int
    in_table: int
    in_index: int
    random_in_sqlite: int
    most_in_postgresql: int


def bytes_per_plant() -> BytesPerPlant:
    """Return the documented bytes per plant; the last two numbers are for random ids."""
    pattern = (
        r"takes (\d+) bytes in SQLite and (\d+) in PostgreSQL \((\d+) in the table, (\d+) in the index\) "
        r"if ids come in order\. If they are random, it takes (\d+) bytes in SQLite and up to (\d+) in PostgreSQL\."
    )
    match = re.search(pattern, words(SCALING))
    assert match
    return BytesPerPlant(*map(int, match.groups()))


@pytest.mark.parametrize("order", ["in order", "random"])
def test_a_plant_uses_the_documented_number_of_bytes(order: str, tmp_path: Path, server: PostgresServer) -> None:
    documented = bytes_per_plant()
    in_sqlite = documented.in_sqlite
    assert documented.in_postgresql == documented.in_table + documented.in_index
    ids: Sequence[int] = range(PLANTS)
    if order == "random":
        in_sqlite = documented.random_in_sqlite
        ids = random.Random(1).sample(range(2**62), PLANTS)
    plants = [(plant_id, f"plant {number:06}", "tree") for number, plant_id in enumerate(ids)]
    file = tmp_path / "plants.db"
    for url in (f"sqlite:///{file}", server.url):
        with closing(open_store(url)) as store:
            store.prepare()
    with closing(sqlite3.connect(file)) as connection:
        connection.executemany("INSERT INTO plants VALUES (?, ?, ?)", plants)
        connection.commit()
    assert file.stat().st_size / PLANTS == pytest.approx(in_sqlite, abs=1)
    import psycopg

    with psycopg.connect(server.url) as connection:
        connection.cursor().executemany("INSERT INTO plants VALUES (%s, %s, %s)", plants)
        sizes = connection.execute("SELECT pg_relation_size('plants'), pg_relation_size('plants_pkey')").fetchone()
    assert sizes
    table_bytes, index_bytes = (size / PLANTS for size in sizes)
    assert table_bytes == pytest.approx(documented.in_table, abs=1)
    # With random ids, the fill of the index pages depends on the number of plants, so the document has a maximum.
    most_in_index = documented.most_in_postgresql - documented.in_table
    assert documented.in_index - 1 < index_bytes < (most_in_index if order == "random" else documented.in_index + 1)


def test_the_table_of_sizes_is_calculated_correctly() -> None:
    documented = bytes_per_plant()
    rows = re.findall(
        r"^\| (\d+,000) \| ([\d.]+) (b|tr)illion \| (?:([\d.]+) TB)? ?\| (\d[\d.]*) TB", SCALING, re.MULTILINE
    )
    assert len(rows) == 3
    for rate, number, unit, sqlite_tb, postgresql_tb in rows:
        plants = int(rate.replace(",", "")) * SECONDS_PER_YEAR
        assert float(number) * {"b": 1e9, "tr": 1e12}[unit] == pytest.approx(plants, rel=0.01)
        in_sqlite = plants * documented.in_sqlite / 1e12
        assert float(sqlite_tb or in_sqlite) == pytest.approx(in_sqlite, rel=0.03)
        assert float(postgresql_tb) == pytest.approx(plants * documented.in_postgresql / 1e12, rel=0.03)


@needs_psycopg
def test_the_documented_connection_limits_agree_with_the_code() -> None:
    from plants.stores.postgres import PostgresStore

    maximum = inspect.signature(PostgresStore).parameters["max_connections"].default
    threads = PostgresStore.worker_threads
    assert f"that uses the store: {threads} in the packaged worker, and never more than {maximum}." in words(SCALING)
    assert f"| connections to PostgreSQL | one for each thread that uses the store: at most {threads} " in OPERATING
    assert f"compare `max_connections` with {threads} times the processes" in words(OPERATING)


def column(page: str, first: str) -> set[str]:
    """Return the names in the first column of a table."""
    table = page.partition(f"| {first} |")[2].partition("\n\n")[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_documented_log_line_is_one_that_the_service_writes() -> None:
    (example,) = (json.loads(line) for line in OPERATING.splitlines() if line.startswith('{"ts"'))
    with serving() as service:
        for request_id in ("first", example["request_id"]):
            service.send(new_plant(id=17), headers=[AUTH, JSON_TYPE, ("X-Request-ID", request_id)])
        line = service.line_of(example["request_id"])
    assert list(line) == list(example)
    different = {name for name, value in line.items() if value != example[name]}
    assert different <= {"ts", "duration"}


def test_the_table_of_metrics_agrees_with_the_code() -> None:
    # Prometheus appends _total to the names of counters.
    named = {name.removesuffix("_total") for name in column(OPERATING, "name")}
    assert named == set(re.findall(r'"((?:plants|http_server)_\w+)"', inspect.getsource(metrics)))


def test_the_table_of_hooks_agrees_with_the_code() -> None:
    assert column(OPERATING, "hook") == {
        name for name, value in vars(gunicorn_conf).items() if inspect.isfunction(value) and not name.startswith("_")
    }


def test_the_documented_check_timeout_agrees_with_the_code() -> None:
    assert f"*no response within {cli._CHECK_SECONDS} seconds*" in OPERATING
