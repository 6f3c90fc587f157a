"""Copy all plants of an SQLite file into an empty PostgreSQL table: python3 move_to_postgresql.py FILE URL

Stop the service first. The table is created if it is missing. Nothing is committed unless both sides have the same
numbers of plants, tags, empty tags and characters.
"""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

try:
    import psycopg

    from plants import open_store
    from plants.stores import COLUMNS, StoreUnavailable
except ImportError as error:
    sys.exit(f"{error}: use a Python that has plants[postgres]")

COUNT = """SELECT count(*), count(tag), count(*) FILTER (WHERE tag = ''),
    coalesce(sum(length(name)), 0), coalesce(sum(length(tag)), 0) FROM plants"""
NUMBERS = "{} plants, {} tags, {} of them empty, {} characters of names, {} of tags"

NAMES = ", ".join(column.name for column in COLUMNS)
SELECT = f"SELECT {NAMES}"

try:
    file, url = sys.argv[1:]
except ValueError:
    sys.exit("usage: python3 move_to_postgresql.py FILE URL")
try:
    open_store(url).prepare()
    with (
        closing(sqlite3.connect(f"{Path(file).resolve().as_uri()}?mode=ro", uri=True)) as source,
        psycopg.connect(url, client_encoding="UTF8", target_session_attrs="read-write") as target,
    ):
        target.execute("SET synchronous_commit = on")
        target.execute("LOCK TABLE plants")
        if target.execute("SELECT 1 FROM plants LIMIT 1").fetchone():
            sys.exit("there are plants already: nothing was moved")
        here = source.execute(COUNT).fetchone()
        with target.cursor().copy(f"COPY plants ({NAMES}) FROM STDIN") as copy:
            for number, plant in enumerate(source.execute(f"{SELECT} FROM plants"), start=1):
                copy.write_row(plant)
                if number % 25_000 == 0:
                    print(f"copied {number} of {here[0]} plants", flush=True)
        there = target.execute(COUNT).fetchone()
        if here != there:
            sys.exit(f"{NUMBERS.format(*here)} became {NUMBERS.format(*there)}: nothing was moved")
except (ValueError, StoreUnavailable, psycopg.Error, sqlite3.Error) as error:
    reason, *_ = str(error).splitlines()  # Further lines of PostgreSQL's message quote a plant.
    sys.exit(f"{reason}: nothing was moved")
print(f"moved {NUMBERS.format(*here)}")
