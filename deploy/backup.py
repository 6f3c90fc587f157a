"""Copy the SQLite file of a running service: python3 backup.py FILE FOLDER

Each copy is complete and checked, and has the time in its name. The newest 14 copies stay in the folder.
"""

import os
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

COPIES = 14

file, folder = map(Path, sys.argv[1:])
folder.mkdir(parents=True, exist_ok=True)
for unfinished in folder.glob("plants-*.part"):
    unfinished.unlink()
copy = folder / time.strftime("plants-%Y-%m-%dT%H-%M-%SZ.db", time.gmtime())
part = copy.with_suffix(".part")
# With mode=rw, SQLite does not create a missing file.
with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True)) as source:
    source.execute("VACUUM INTO ?", [str(part)])
with closing(sqlite3.connect(part)) as target:
    verdict, plants = target.execute(
        "SELECT integrity_check, (SELECT count(*) FROM plants) FROM pragma_integrity_check"
    ).fetchone()
if verdict != "ok":
    sys.exit(f"{part}: {verdict}")
with part.open("rb") as written:
    os.fsync(written.fileno())
part.rename(copy)
for old in sorted(folder.glob("plants-*.db"))[:-COPIES]:
    old.unlink()
print(f"{copy}: {plants} plants")
