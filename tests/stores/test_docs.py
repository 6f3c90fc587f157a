"""The commands of docs/stores.md."""

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count, takewhile
from pathlib import Path

import pytest

from plants.stores import Plant, StoreUnavailable, open_store
from tests.support.hosted import CHECKOUT
from tests.support.postgres_server import PostgresServer, find_binaries
from tests.support.process import PATIENCE_SECONDS, wait_until

DOCUMENT = (CHECKOUT / "docs" / "stores.md").read_text()
COMMANDS = re.findall(r"```sh\n(.*?)\n```", DOCUMENT, re.DOTALL)
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
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{find_binaries()}:{os.defpath}",
        "FILE": str(file),
        "PLANTS_STORE": server.url if server else "",
        "PYTHONPATH": str(CHECKOUT),
    }
    command = command.replace("python3", shlex.quote(sys.executable)).replace(
        "deploy/", f"{shlex.quote(str(CHECKOUT))}/deploy/"
    )
    return subprocess.run(
        ["bash", "-e", "-c", command],
        env=environ,
        cwd=file.parent,
        check=True,
        timeout=PATIENCE_SECONDS,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def test_the_read_command_prints_every_plant(file: Path) -> None:
    assert run(READ_FILE, file).splitlines() == [
        repr((-(2**63), "", "")),
        repr((0, "a\tb\\N\n", None)),
        repr((2**63 - 1, "🌵", "café")),
    ]


def test_the_second_backup_under_load_is_restored(file: Path) -> None:
    with closing(open_store(f"sqlite:///{file}")) as store:
        stopping = threading.Event()
        plants = takewhile(lambda _: not stopping.is_set(), (Plant(plant_id, "fern") for plant_id in count(1)))
        with ThreadPoolExecutor(1) as thread, ExitStack() as load:
            load.callback(stopping.set)
            adding = thread.submit(list, map(store.add, plants))
            wait_until(lambda: store.get(1))
            first = run(BACK_UP, file)
        adding.result()
        store.add(Plant(-1, "after the first backup"))
        wait_until(lambda: time.strftime("T%H-%M-%SZ", time.gmtime()) not in first)
        run(BACK_UP, file)
    run(RESTORE_FILE, file)
    assert sorted(path.name for path in (file.parent / "lost").iterdir()) == ["plants.db"]
    assert len([*(file.parent / "backups").iterdir()]) == 2
    with closing(open_store(f"sqlite:///{file}")) as restored:
        assert [restored.get(plant.id) for plant in PLANTS] == PLANTS
        assert restored.get(-1) == Plant(-1, "after the first backup")
        restored.add(Plant(-2, "after the restore"))


def test_a_backup_removes_only_old_and_unfinished_copies(file: Path) -> None:
    backups = file.parent / "backups"
    backups.mkdir()
    old = [f"plants-2001-01-{day:02}T00-00-00Z.db" for day in range(1, 21)]
    for name in [*old, "plants-2001.part", "plants.txt"]:
        (backups / name).touch()
    copy, number, _ = run(BACK_UP, file).split()
    assert int(number) == len(PLANTS)
    kept = {*old[-13:], Path(copy.rstrip(":")).name}
    assert {path.name for path in backups.iterdir()} == {*kept, "plants.txt"}


def test_plants_move_to_postgresql_and_a_second_move_fails(file: Path, server: PostgresServer) -> None:
    # The command prints the numbers of plants, tags, empty tags, characters in names, and characters in tags.
    assert run(MOVE, file, server) == "moved 3 2 1 7 4\n"
    with closing(open_store(server.url)) as store:
        assert [store.get(plant.id) for plant in PLANTS] == PLANTS
    with pytest.raises(subprocess.CalledProcessError):
        run(MOVE, file, server)
    assert "(3 rows)" in run(READ_TABLE, file, server)


def test_a_dump_restores_a_dropped_table_at_a_restart(file: Path, server: PostgresServer) -> None:
    with closing(open_store(server.url)) as store:
        for plant in PLANTS:
            store.add(plant)
        run(DUMP, file, server)
        server.execute("DROP TABLE plants")
        run(RESTORE, file, server)
        with pytest.raises(StoreUnavailable, match="is another one than the service has used"):
            store.add(PLANTS[0])
    with closing(open_store(server.url)) as store:
        assert [store.get(plant.id) for plant in PLANTS] == PLANTS
        store.check()
