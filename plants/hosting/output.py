"""Log output that a stalled reader cannot block."""

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from select import PIPE_BUF, POLLOUT, poll

MAX_WAIT_SECONDS = 1.0
_SHORTEST_WAIT_SECONDS = 0.001
_MAX_WAIT_SHARE = 0.05  # of the time, if the reader is slow for long


class Output:
    """A file descriptor for whole log lines; other processes may share it.

    Writes wait for a stalled reader for up to a second, and then for at most 5 % of the time. If that is not enough,
    lines are dropped, and the next successful write begins with ``report(count)``, a line with their number.
    """

    def __init__(self, descriptor: int, report: Callable[[int], str]) -> None:
        self._descriptor = descriptor
        self._report = report
        # RWF_NOWAIT affects one write; O_NONBLOCK would affect every process that shares the descriptor.
        self._flags = getattr(os, "RWF_NOWAIT", 0) if _has_reader(descriptor) else 0
        self._poll = poll()
        self._poll.register(descriptor, POLLOUT)
        self._wait_budget = MAX_WAIT_SECONDS
        self._waited_at = time.monotonic()
        self._dropped_lines = 0
        self._missing_end = b""  # b"\n" if the last line was written only in part

    def write(self, lines: str) -> None:
        """Write the lines, or drop them if that fails, for example because the disk is full. Never raise an OSError."""
        self.write_bytes(lines.encode(errors="backslashreplace"))

    def write_bytes(self, lines: bytes) -> None:
        """Write the lines or drop them."""
        if self._dropped_lines and self._try_to_write(self._missing_end + self._report(self._dropped_lines).encode()):
            self._dropped_lines = 0
            self._missing_end = b""
        if self._dropped_lines or not self._try_to_write(lines):
            self._dropped_lines += lines.count(b"\n")

    def _try_to_write(self, data: bytes) -> bool:
        while data:
            try:
                written = self._write(data[:PIPE_BUF])
            except BlockingIOError:
                if not self._wait():
                    return False
                continue
            except OSError:
                return False
            data = data[written:]
            self._missing_end = b"\n" if data else b""
        return True

    def _write(self, piece: bytes) -> int:
        if self._flags:
            try:
                return os.pwritev(self._descriptor, [piece], -1, self._flags)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                self._flags = 0  # a pipe before Linux 6.4
        if not self._poll.poll(0):
            raise BlockingIOError
        return os.write(self._descriptor, piece)

    def _wait(self) -> bool:
        if self._dropped_lines:
            return False
        now = time.monotonic()
        self._wait_budget = min(MAX_WAIT_SECONDS, self._wait_budget + (now - self._waited_at) * _MAX_WAIT_SHARE)
        is_writable = self._wait_budget >= _SHORTEST_WAIT_SECONDS and bool(self._poll.poll(self._wait_budget * 1000))
        self._waited_at = time.monotonic()
        # If the descriptor is always ready and every write fails all the same, the budget must end, too.
        self._wait_budget = max(0.0, self._wait_budget - max(_SHORTEST_WAIT_SECONDS, self._waited_at - now))
        return is_writable


def _has_reader(descriptor: int) -> bool:
    """Return whether this is a pipe or a socket. Some file systems (XFS, btrfs) reject RWF_NOWAIT for every file."""
    with suppress(OSError):  # Standard output may be closed.
        mode = os.fstat(descriptor).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    return False
