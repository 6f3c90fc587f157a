"""The log: one line per request on standard output, everything else on standard error.

Each line is made as a JSON object. In the format ``text``, a line has the values of this object, separated by spaces;
control characters are escaped, so neither a client nor a traceback can begin a new line.
"""

import errno
import json
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from select import PIPE_BUF, POLLOUT, poll
from typing import Any

from gunicorn import glogging

from plants.app import OPERATIONS
from plants.server.request import Request
from plants.server.response import Response
from plants.server.threads import current_request

_STDOUT = 1
# Error messages are ASCII. Even with the longest message and a fully escaped path, a line fits into PIPE_BUF.
_PATH_CHARACTERS = 200
_LEVELS = {"5": (logging.ERROR, "error"), "4": (logging.WARNING, "warning")}
_LEVELS_OF_SUCCESS = ((logging.DEBUG, "debug"), (logging.INFO, "info"))  # indexed by whether it is an operation
# How long a process waits for a stalled reader of its log.
MAX_WAIT_SECONDS = 1.0
_SHORTEST_WAIT_SECONDS = 0.001
_MAX_WAIT_SHARE = 0.05  # of the time, if the reader is slow for long
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Formatter(logging.Formatter):
    """Format log records in the service's format, ``json`` or ``text``."""

    def __init__(self, log_format: str) -> None:
        super().__init__()
        self._is_json = log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with the id of the request that was being handled."""
        line = {
            "ts": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "msg": record.getMessage(),
        }
        request = getattr(record, "request", None) or current_request.get()
        if request:
            line["request_id"] = request.environ.get("plants.request_id", "")
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return self.finish(json.dumps(line, separators=(",", ":")))

    def finish(self, line: str) -> str:
        """Return a JSON line in the service's format."""
        if self._is_json:
            return line
        members = json.loads(line)
        members.pop("route", None)  # A person sees it in the path.
        text = " ".join(map(str, members.values()))
        return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)

    def report_dropped(self, count: int) -> str:
        """Return the line that reports dropped lines."""
        warning = {"levelname": "WARNING", "name": "plants.log", "process": os.getpid()}
        warning["msg"] = f"log lines that were dropped because they could not be written: {count}"
        return self.format(logging.makeLogRecord(warning)) + "\n"


class Logger(glogging.Logger):
    """Gunicorn's logger in this service's format, unless a setting of Gunicorn chooses another."""

    log_format = "json"

    def setup(self, cfg: Any) -> None:
        """Create the handlers."""
        super().setup(cfg)
        formatter = Formatter(self.log_format)
        for handler in (*self.error_log.handlers, *self.access_log.handlers):
            # Do not change the handlers of the user's --log-config, or those for syslog, whose lines have a prefix.
            if getattr(handler, "_gunicorn", False) and isinstance(handler, logging.StreamHandler):
                if handler in self.error_log.handlers:
                    handler.setFormatter(formatter)
                if not isinstance(handler, logging.FileHandler) and handler.stream:
                    handler.stream = Output(handler.stream.fileno(), formatter.report_dropped)


class AccessLog:
    """The log lines of requests, on standard output; ``level`` is the lowest level (of ``logging``) that is written.

    A write has one or more whole lines and at most PIPE_BUF bytes, so that processes do not mix their lines.
    """

    def __init__(self, level: int, log_format: str) -> None:
        # If standard output was closed at the start, its descriptor may be another file's.
        self._level = level if sys.stdout else logging.CRITICAL
        self._lines = b""
        self._formatter = Formatter(log_format)
        self._output = Output(_STDOUT, self._formatter.report_dropped)

    def write(self, request: Request, response: Response, error: tuple[int, str], seconds: float) -> None:
        """Buffer the log line of a request; ``flush`` writes it."""
        is_operation = request.environ["plants.route"] in OPERATIONS
        level, name = _LEVELS.get(response.status[0]) or _LEVELS_OF_SUCCESS[is_operation]
        if level >= self._level:
            line = self._formatter.finish(_json_line(request, response, error, seconds, name)) + "\n"
            data = line.encode(errors="backslashreplace")
            if len(self._lines) + len(data) > PIPE_BUF:
                self.flush()
            self._lines += data

    def flush(self) -> None:
        """Write the buffered lines."""
        if self._lines:
            self._output.write_bytes(self._lines)
            self._lines = b""


def _json_line(request: Request, response: Response, error: tuple[int, str], seconds: float, level: str) -> str:
    # A format string costs half as much as json.dumps().
    environ = request.environ
    code, message = error
    failure = f'"error":{code},"message":{json.dumps(message)},' if code else ""
    return (
        f'{{"ts":"{timestamp(time.time())}","level":"{level}","logger":"plants.access",'
        f'"request_id":"{environ["plants.request_id"]}","method":{_quoted(request.method)},'
        f'"path":{_quoted(request.path[:_PATH_CHARACTERS])},"route":{_quoted(environ["plants.route"])},"status":{response.status[:3]},{failure}'
        f'"size":{len(response.body)},"duration":{seconds:.6f},"remote_ip":{_quoted(environ["REMOTE_ADDR"])}}}'
    )


def timestamp(seconds: float) -> str:
    """Format a time, in seconds since 1970, as RFC 3339 does: in UTC, with microseconds."""
    second = int(seconds)
    return f"{_second(second)}.{int((seconds - second) * 1_000_000):06d}Z"


@lru_cache(maxsize=2)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


@lru_cache(maxsize=256)
def _quoted(text: str) -> str:
    return json.dumps(text)


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
