"""Processes that tests start: wait for their output or their end, and never leave one behind."""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Self, TypeVar

# How long a test waits before it fails. It is long because a busy machine may need 10 s to start a service; no test
# measures time with it.
PATIENCE_SECONDS = 120
# This line is appended to the lines of a stream when the process closes the stream.
END = "(end)"
# This prefix of a command turns off its coverage measurement, which doubles the start-up time, if other tests cover it.
NO_SUBPROCESS_COVERAGE = ["env", "-u", "COVERAGE_PROCESS_CONFIG"]
# This program kills a process group unless it reads a line from its standard input before the end.
WATCHER = 'read line || kill -KILL "-$0"'
T = TypeVar("T")

_watchers: dict[int, subprocess.Popen[bytes]] = {}


def start(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[Any]":
    """Start a process that leads a process group. The whole group is killed by `end`, or when the test run is over."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    # The end of the test run, even by SIGKILL, ends the watcher's standard input.
    watcher = ["sh", "-c", WATCHER, str(process.pid)]
    _watchers[process.pid] = subprocess.Popen(watcher, stdin=subprocess.PIPE, start_new_session=True)
    return process


def kill(process: "subprocess.Popen[Any]") -> None:
    """Kill a process and what is left of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if watcher := _watchers.pop(process.pid, None):
        watcher.communicate(b"\n")


def end(process: "subprocess.Popen[Any]") -> None:
    """Wait for a process that was sent a stop signal, and kill what is left of its group."""
    try:
        process.wait(PATIENCE_SECONDS)
    finally:
        kill(process)


def wait_until(condition: Callable[[], T]) -> T:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = 0.001
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still {found!r} after {PATIENCE_SECONDS} s"
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return found


def text_of(file: Path) -> str:
    """Return the text of a file, or an empty string if it does not exist at this moment."""
    with suppress(FileNotFoundError):
        return file.read_text()
    return ""


def children(process: int) -> list[int]:
    """Return the processes that a process has started, without those that have ended."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in found if resident_bytes(int(child))]


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it has ended."""
    return int(_status(process, r"VmRSS:\s+(\d+) kB")) * 1024


def wait_for_workers(master: int, number: int, *, after: Sequence[int] = ()) -> None:
    """Wait until the workers ``after`` have ended, and ``number`` others have installed their signal handlers.

    Without the packaged configuration, Gunicorn's workers miss an earlier signal, and it kills them after the graceful
    timeout.
    """
    sigabrt_bit = 1 << signal.SIGABRT - 1  # Workers catch SIGABRT, the master does not.

    def has_started(worker: int) -> bool:
        return bool(int(_status(worker, r"SigCgt:\s+(\w+)"), 16) & sigabrt_bit)

    wait_until(lambda: set(after).isdisjoint(children(master)))
    wait_until(lambda: sum(map(has_started, children(master))) == number)


def _status(process: int, pattern: str) -> str:
    """Search the kernel's status of a process; return the group of the pattern, or "0" if nothing matches."""
    text = ""
    with suppress(OSError):
        text = Path(f"/proc/{process}/status").read_text()
    found = re.search(pattern, text)
    return found[1] if found else "0"


def free_port() -> int:
    """Return a port that is free on all addresses, and reserve it until the end; a server can still bind it."""
    # A server's own SO_REUSEADDR lets it bind the port, because this socket has the option too and does not listen.
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("", 0))
        port: int = reservation.getsockname()[1]
        reservation.detach()
        return port


def accepts_connections(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Process:
    """A running process. Threads read its output continuously, so a full pipe never blocks it.

    ``lines`` has the lines of standard error, ``output`` those of standard output, both with ``END`` as the last one.
    ``line_read`` is notified of each line.
    """

    def __init__(self, command: list[str], *, cwd: Path, env: dict[str, str], stdin: int | None = None) -> None:
        self.process = start(
            command, cwd=cwd, env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.lines: list[str] = []
        self.output: list[str] = []
        self.line_read = threading.Condition()
        self.clients = ExitStack()  # It closes them before the process ends.
        pairs = ((self.process.stderr, self.lines), (self.process.stdout, self.output))
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in pairs]
        for reader in self._readers:
            reader.start()

    def _read(self, file: IO[str], lines: list[str]) -> None:
        with file:
            for line in file:
                with self.line_read:
                    lines.append(line)
                    self.line_read.notify_all()
        with self.line_read:
            lines.append(END)
            self.line_read.notify_all()

    def wait_for(self, pattern: str, *, after: int = 0, times: int = 1) -> re.Match[str]:
        """Wait for ``times`` matching lines on standard error, from line ``after`` on; return the last of them."""
        found: list[re.Match[str]] = []

        def has_ended_or_matched() -> bool:
            found[:] = [match for line in self.lines[after:] if (match := re.search(pattern, line))]
            return len(found) >= times or self.lines[-1:] == [END]

        with self.line_read:
            self.line_read.wait_for(has_ended_or_matched, PATIENCE_SECONDS)
            assert len(found) >= times, f"{pattern!r} is not in the log:\n{''.join(self.lines)}"
        return found[times - 1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_for_exit(self) -> int:
        """Wait until the process exits, and return its exit status."""
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clients.close()
        self.process.terminate()
        try:
            end(self.process)
        finally:
            for reader in self._readers:
                reader.join()
