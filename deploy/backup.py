"""Copy the SQLite file of a running service: python3 backup.py FILE FOLDER

Each copy is complete and checked. Its name begins with a number, because a clock may be set back, and has the time. The
newest 14 copies stay in the folder. If a run fails, it leaves the earlier copies; if it is killed, the next run removes
what it has written.
"""

import fcntl
import os
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

COPIES = 14


def back_up(file: Path, folder: Path) -> str:
    """Copy the file, and return the name of the copy and its number of plants."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # Another run waits.
    unfinished = folder / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        part = unfinished / "plants.db"
        # With mode=ro, SQLite does not create a missing file, which would also delete the log (-wal) beside it.
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as source:
            source.execute("VACUUM INTO ?", [str(part)])
        with closing(sqlite3.connect(part)) as target:
            verdict, plants = target.execute(
                "SELECT integrity_check, (SELECT count(*) FROM plants) FROM pragma_integrity_check"
            ).fetchone()
        if verdict != "ok":
            sys.exit(f"{part}: {verdict}")
        with part.open("rb") as written:
            os.fsync(written.fileno())
        copies = sorted(folder.glob(f"plants-{'[0-9]' * 6}-*.db"))
        number = int(copies[-1].name[7:13]) + 1 if copies else 1
        copy = part.rename(folder / time.strftime(f"plants-{number:06}-%Y-%m-%dT%H-%M-%SZ.db", time.gmtime()))
        os.fsync(lock)
        for old in copies[: 1 - COPIES]:
            old.unlink()
        return f"{copy}: {plants} plants"
    finally:
        shutil.rmtree(unfinished)


try:
    file, folder = map(Path, sys.argv[1:])
except ValueError:
    sys.exit("usage: python3 backup.py FILE FOLDER")
try:
    print(back_up(file, folder))
except (OSError, sqlite3.Error) as error:
    sys.exit(f"{file}: {error}: no copy was made")
