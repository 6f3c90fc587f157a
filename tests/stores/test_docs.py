"""The commands of docs/stores.md."""

import os
import re
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from plants.stores import Plant, PlantIdInUse, open_store
from tests.stores.test_sqlite import execute
from tests.support.hosted import CHECKOUT, output_of
from tests.support.postgres_server import PostgresServer, find_binaries

DOCUMENTS = [path.read_text() for path in (CHECKOUT / "docs").glob("*.md")]
COMMANDS = re.findall(r"```sh\n(.*?)\n```", (CHECKOUT / "docs" / "stores.md").read_text(), re.DOTALL)
READ_COMMANDS = re.findall("^python3 -c 'import sqlite3.*", "".join(DOCUMENTS), re.MULTILINE)
READ_FILE, READ_TABLE, BACK_UP, RESTORE_FILE, DUMP, RESTORE, MOVE = COMMANDS
PLANTS = [Plant(-(2**63), "", ""), Plant(0, "a\tb\\N\n"), Plant(2**63 - 1, "🌵", "café")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "plants.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        for plant in PLANTS:
            store.add(plant)
    return file


def run(command: str, file: Path, server: PostgresServer | None = None) -> str:
    for name, word in (("python3", sys.executable), ("deploy/", f"{CHECKOUT}/deploy/")):
        command = command.replace(name, shlex.quote(word))
    path = f"{Path(sys.executable).parent}:{find_binaries()}:{os.defpath}"
    store = server.url if server else ""
    return output_of("bash", "-e", "-c", command, cwd=file.parent, PATH=path, FILE=str(file), PLANTS_STORE=store)


def test_the_read_command_prints_every_plant(file: Path) -> None:
    assert run(READ_FILE, file).splitlines() == [repr(tuple(plant)) for plant in PLANTS]


@pytest.mark.parametrize("command", [*READ_COMMANDS, BACK_UP, MOVE])
def test_a_lost_file_keeps_its_log(file: Path, command: str, request: pytest.FixtureRequest) -> None:
    """A command that creates a missing file deletes the log beside it, which may have plants."""
    server = request.getfixturevalue("server") if command == MOVE else None
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.check()
        lost = file.rename(file.with_name("lost"))
        before = {path: path.stat().st_size for path in file.parent.glob("*.db*")}
        with pytest.raises(AssertionError, match="unable to open database file"):
            run(command, file, server)
        assert {path: path.stat().st_size for path in file.parent.glob("*.db*")} == before
        lost.rename(file)
        run(command, file, server)


def test_the_second_backup_under_load_is_restored(file: Path) -> None:
    with closing(open_store(f"sqlite:///{file}")) as store:
        with ThreadPoolExecutor(1) as thread:
            backup = thread.submit(run, BACK_UP, file)
            ids = count(1)
            while not backup.done():
                store.add(Plant(next(ids), "fern"))
        backup.result()
        store.add(Plant(-1, "after the first backup"))
        run(BACK_UP, file)
    run(RESTORE_FILE, file)
    assert sorted(path.name for path in (file.parent / "lost").iterdir()) == ["plants.db"]
    with closing(open_store(f"sqlite:///{file}")) as restored:
        assert [restored.get(plant.id) for plant in PLANTS] == PLANTS
        assert restored.get(-1) == Plant(-1, "after the first backup")
        restored.add(Plant(-2, "after the restore"))


def copies(file: Path) -> list[int]:
    """Return the numbers of the copies, and check that nothing else is in the folder but files of others."""
    names = sorted(path.name for path in (file.parent / "backups").iterdir() if path.name != "plants.txt")
    assert all(re.fullmatch(r"plants-\d{6}-[-0-9TZ]+\.db", name) for name in names)
    return [int(name[7:13]) for name in names]


def test_a_backup_removes_old_copies_if_the_clock_is_set_back(file: Path) -> None:
    backups = file.parent / "backups"
    backups.mkdir()
    for name in [*(f"plants-{number:06}-2101-01-01T00-00-00Z.db" for number in range(11, 31)), "plants.txt"]:
        (backups / name).touch()
    assert int(run(BACK_UP, file).split()[1]) == len(PLANTS)
    assert copies(file) == list(range(18, 32))
    assert (backups / "plants.txt").exists()


def test_two_backups_at_once_make_two_copies(file: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: run(BACK_UP, file), range(2)))
    assert copies(file) == [1, 2]


def test_a_backup_that_fails_or_is_killed_keeps_earlier_copies(file: Path) -> None:
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.add(Plant(1, "x" * 1_000_000))
    run(BACK_UP, file)
    with pytest.raises(AssertionError):
        run(f"ulimit -f 100; {BACK_UP}", file)  # SQLite reports a limit of the file size as it reports a full disk.
    assert copies(file) == [1]
    # These are the files of a run that was killed while SQLite was writing.
    unfinished = file.parent / "backups" / "unfinished"
    unfinished.mkdir()
    for name in ("plants.db", "plants.db-journal"):
        (unfinished / name).touch()
    run(BACK_UP, file)
    execute(file, "CREATE TABLE n (n CHECK (n)); PRAGMA ignore_check_constraints = ON; INSERT INTO n VALUES (0)")
    with pytest.raises(AssertionError, match="CHECK constraint failed in n"):
        run(BACK_UP, file)
    assert copies(file) == [1, 2]


def test_a_command_that_cannot_work_fails_in_one_line(file: Path) -> None:
    (file.parent / "psycopg.py").write_text("raise ImportError('psycopg is missing')")
    with pytest.raises(AssertionError, match=r"^psycopg is missing: use a Python that has plants\[postgres\]\n\Z"):
        run(f"PYTHONPATH=. {MOVE}", file)
    file.unlink()
    with pytest.raises(AssertionError, match=r"^.*plants\.db: unable to open .*: no copy was made\n\Z"):
        run(BACK_UP, file)
    (file.parent / "backups").rmdir()
    (file.parent / "backups").touch()
    with pytest.raises(AssertionError, match=r"^.*plants\.db: .* File exists: .*: no copy was made\n\Z"):
        run(BACK_UP, file)


def test_plants_move_to_postgresql_and_a_second_move_fails(
    file: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(file, "INSERT INTO plants VALUES (5, x'ff', NULL)")  # PostgreSQL would have the name \xff.
    with pytest.raises(AssertionError, match=r"^4 plants, .* became 4 plants, .*: nothing was moved\n\Z"):
        run(MOVE, file, server)
    execute(file, "DELETE FROM plants WHERE id = 5")
    server.execute("ALTER TABLE plants ADD CONSTRAINT named CHECK (name != '')")
    with pytest.raises(AssertionError, match=r'^new row .* violates check constraint "named": nothing was moved\n\Z'):
        run(MOVE, file, server)
    server.execute("ALTER TABLE plants DROP CONSTRAINT named, ADD CHECK (current_setting('synchronous_commit') = 'on')")
    with monkeypatch.context() as environment:
        environment.setenv("PGCLIENTENCODING", "LATIN1")  # It cannot encode every plant.
        environment.setenv("PGOPTIONS", "-c synchronous_commit=off")
        moved = "moved 3 plants, 2 tags, 1 of them empty, 7 characters of names, 4 of tags\n"
        assert run(MOVE, file, server) == moved
    with closing(open_store(server.url)) as store:
        assert [store.get(plant.id) for plant in PLANTS] == PLANTS
    with pytest.raises(AssertionError, match=r"^there are plants already: nothing was moved\n"):
        run(MOVE, file, server)
    assert "(3 rows)" in run(READ_TABLE, file, server)


def test_a_dump_restores_a_dropped_table(file: Path, server: PostgresServer) -> None:
    with closing(open_store(server.url)) as store:
        for plant in PLANTS:
            store.add(plant)
        run(DUMP, file, server)
        server.execute("DROP TABLE plants")
        run(RESTORE, file, server)
        with pytest.raises(PlantIdInUse):
            store.add(PLANTS[0])
        assert [store.get(plant.id) for plant in PLANTS] == PLANTS
