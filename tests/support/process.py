"""A process that a test has started, and waiting for what it does."""

import re
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
    status = ""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(resident[1]) * 1024 if resident else 0


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
