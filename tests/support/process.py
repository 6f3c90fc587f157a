"""A process that a test has started, and waiting for what it does."""

import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Self, TypeVar

PATIENCE_SECONDS = 30
# The last line, once the process has closed the file.
END = "(end)"
# Before a command: its coverage is not measured, as with the fixture of this name.
UNMEASURED = ["env", "-u", "COVERAGE_PROCESS_CONFIG"]


_T = TypeVar("_T")


def comes_true(condition: Callable[[], _T], seconds: float = PATIENCE_SECONDS) -> _T:
    """Wait until a condition holds; give what it gave last."""
    give_up = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < give_up:
        time.sleep(0.01)
    return found


def children(process: int) -> list[int]:
    """Give the processes that a process has started, without those that have ended."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in found if resident_bytes(int(child))]


def resident_bytes(process: int) -> int:
    """Give how much memory a process has; 0 if it has ended."""
    return int(_status(process, r"VmRSS:\s+(\d+) kB")) * 1024


def wait_for_workers(master: int, number: int) -> None:
    """Wait until a Gunicorn has so many workers that have set up their signals.

    Until then a worker misses the signal to stop, and is killed only after Gunicorn's graceful timeout.
    """
    only_workers_catch = 1 << signal.SIGABRT - 1

    def begun() -> list[int]:
        caught = {worker: int(_status(worker, r"SigCgt:\s+(\w+)"), 16) for worker in children(master)}
        return [worker for worker in caught if caught[worker] & only_workers_catch]

    assert comes_true(lambda: len(begun()) == number)


def _status(process: int, pattern: str) -> str:
    """Give what the kernel says of a process; 0 if it has ended."""
    text = ""
    with suppress(OSError):
        text = Path(f"/proc/{process}/status").read_text()
    found = re.search(pattern, text)
    return found[1] if found else "0"


class Process:
    """A running process. What it writes is read all the time, so that it never waits for a reader.

    ``lines`` is what has come on standard error, and ``output`` on standard output; ``END`` follows the last line.
    ``news`` is notified of each.
    """

    def __init__(self, command: list[str], *, cwd: Path, env: dict[str, str], stdin: int | None = None) -> None:
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.lines: list[str] = []
        self.output: list[str] = []
        self.news = threading.Condition()
        pairs = ((self.process.stderr, self.lines), (self.process.stdout, self.output))
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in pairs]
        for reader in self._readers:
            reader.start()

    def _read(self, file: IO[str], lines: list[str]) -> None:
        with file:
            for line in file:
                with self.news:
                    lines.append(line)
                    self.news.notify_all()
        with self.news:
            lines.append(END)
            self.news.notify_all()

    def wait_for(self, pattern: str, *, after: int = 0, times: int = 1) -> re.Match[str]:
        """Wait until so many lines on standard error, not before line ``after``, match; give the last of them."""
        found: list[re.Match[str]] = []

        def is_there() -> bool:
            found[:] = [match for line in self.lines[after:] if (match := re.search(pattern, line))]
            return len(found) >= times or self.lines[-1:] == [END]

        with self.news:
            self.news.wait_for(is_there, PATIENCE_SECONDS)
            assert len(found) >= times, f"{pattern!r} is not in the log:\n{''.join(self.lines)}"
        return found[times - 1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for the end, and give the exit status."""
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        patience = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        patience.start()
        self.process.terminate()
        self.process.wait()
        patience.cancel()
        for reader in self._readers:
            reader.join(PATIENCE_SECONDS)  # A process that it left behind may write on.
