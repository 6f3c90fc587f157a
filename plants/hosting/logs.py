"""The log: one line per request on standard output, everything else on standard error.

Each line is made as a JSON object. In the format ``text``, a line has the values of this object, separated by spaces;
control characters are escaped, so no client can begin a new line. The lines of a traceback follow. A traceback has the
message of the exception only at the level ``debug``, because a store or a token check may put a plant or a token there.
"""

import atexit
import json
import logging
import os
import re
import sys
import time
import traceback
from functools import lru_cache
from queue import SimpleQueue
from select import PIPE_BUF, select
from threading import Thread
from typing import Any

from gunicorn import glogging

from plants.app import OPERATIONS
from plants.server.request import Request
from plants.server.response import Response
from plants.server.threads import current

_STDOUT = 1
# Error messages are ASCII. Even with the longest message and a fully escaped path, a line fits into PIPE_BUF.
_PATH_CHARACTERS = 200
_LEVELS = {"5": (logging.ERROR, "error"), "4": (logging.WARNING, "warning")}
_LEVELS_OF_SUCCESS = ((logging.DEBUG, "debug"), (logging.INFO, "info"))  # indexed by whether it is an operation
MAX_QUEUED_BYTES = 1_048_576  # of lines that wait for a stalled reader
STOP_SECONDS = 1.0  # how long a process that ends waits for such a reader of each of its two outputs
_GATHER_SECONDS = 0.02
_MAX_EXCEPTIONS = 10
_log = logging.getLogger("plants.log")
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
        request = getattr(record, "request", None) or getattr(current, "request", None)
        if request:
            line["request_id"] = request.environ.get("plants.request_id", "")
        error = record.exc_info[1] if record.exc_info else None
        stack = _stack_of(error, with_messages=logging.getLogger(record.name).isEnabledFor(logging.DEBUG))
        if not self._is_json:
            return "\n".join([self.finish(json.dumps(line)), *map(_escape, stack)])
        if stack:
            line["stacktrace"] = "\n".join(stack)
        return json.dumps(line, separators=(",", ":"))

    def finish(self, line: str) -> str:
        """Return a JSON line in the service's format."""
        if self._is_json:
            return line
        members = json.loads(line)
        members.pop("route", None)  # A person sees it in the path.
        return _escape(" ".join(map(str, members.values())))


def _escape(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _stack_of(error: BaseException | None, *, with_messages: bool) -> list[str]:
    """Return the lines of a traceback: the frames and the class of the exceptions that led to this one, and its own."""
    parts: list[list[str]] = []
    found = [error] if error else []
    while found and len(parts) < _MAX_EXCEPTIONS:
        error = found.pop()
        frames = "".join(traceback.format_tb(error.__traceback__)).splitlines()
        name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        separator = ["", "which led to:", ""] if parts else []
        if with_messages:
            name = _escape("".join(traceback.format_exception_only(error)).rstrip("\n"))
        parts.append(["Traceback (most recent call last):", *frames, name, *separator])
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        found += [*getattr(error, "exceptions", ()), *([before] if before else [])]
    return [line for part in reversed(parts) for line in part]


class Logger(glogging.Logger):
    """Gunicorn's logger in this service's format, unless a setting of Gunicorn chooses another."""

    log_format = "json"

    def setup(self, cfg: Any) -> None:
        """Create the handlers."""
        super().setup(cfg)
        for handler in self.error_log.handlers:
            # Do not change the handlers of the user's --log-config, or those for syslog, whose lines have a prefix.
            if getattr(handler, "_gunicorn", False) and isinstance(handler, logging.StreamHandler):
                handler.setFormatter(Formatter(self.log_format))
                if not isinstance(handler, logging.FileHandler) and handler.stream:
                    handler.stream = Output(handler.stream.fileno(), has_thread=False)


class AccessLog:
    """The log lines of requests, on standard output; ``level`` is the lowest level (of ``logging``) that is written."""

    def __init__(self, level: int, log_format: str) -> None:
        # If standard output was closed at the start, its descriptor may be another file's.
        self._level = level if sys.stdout else logging.CRITICAL
        self._lines = ""
        self._formatter = Formatter(log_format)
        self._output = Output(_STDOUT)

    def write(self, request: Request, response: Response, error: tuple[int, str], seconds: float) -> None:
        """Buffer the log line of a request; ``flush`` writes it."""
        is_operation = request.environ["plants.route"] in OPERATIONS
        level, name = _LEVELS.get(response.status[0]) or _LEVELS_OF_SUCCESS[is_operation]
        if level >= self._level:
            self._lines += self._formatter.finish(_json_line(request, response, error, seconds, name)) + "\n"

    def flush(self) -> None:
        """Queue the buffered lines for standard output."""
        if self._lines:
            self._output.write(self._lines)
            self._lines = ""


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

    A thread writes the lines, so a stalled reader delays nobody. If more than MAX_QUEUED_BYTES wait for it, lines are
    dropped. Once lines can be written again, a warning has the number of all that this process has dropped.
    """

    def __init__(self, descriptor: int, *, has_thread: bool = True) -> None:
        """Start nothing: the thread starts with the first line of each process.

        :param has_thread: False in Gunicorn's master, which should not fork with threads. It drops each line that
            cannot be written at once. Its workers have threads.
        """
        self._descriptor = descriptor
        self._is_torn = False  # whether only the first part of the last line was written
        self._pid = 0 if has_thread else os.getpid()
        self._thread: Thread | None = None
        self._reset()

    def _reset(self) -> None:
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        # Only one thread at a time changes each number: one that logs the first of a pair, one that writes the second.
        self._queued_bytes = self._written_bytes = 0
        self._dropped_lines = self._failed_lines = 0
        self._reported_lines = 0

    def write(self, lines: str) -> None:
        """Queue the lines, or drop them. Never raise an OSError."""
        if self._pid != os.getpid():
            self._start()
        data = lines.encode(errors="backslashreplace")
        if not self._thread:
            self._write_out(data, timeout=0)
        elif self._queued_bytes - self._written_bytes < MAX_QUEUED_BYTES:
            self._queued_bytes += len(data)
            self._queue.put(data)
        else:
            self._dropped_lines += data.count(b"\n")

    def _start(self) -> None:
        """Start the thread of this process. A forked process writes no lines that its parent has queued."""
        self._reset()
        self._pid = os.getpid()
        self._thread = Thread(target=self._run, name=__name__, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # The process may not have another thread, so it writes as Gunicorn's master does.
            self._thread = None
        else:
            atexit.register(self._stop, self._thread)

    def _stop(self, thread: Thread) -> None:
        """Wait until the queued lines are written, but no longer than ``STOP_SECONDS``."""
        self._thread = None
        self._queue.put(b"")
        thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while self._thread or not self._queue.empty():
            batch = [self._queue.get()]
            time.sleep(_GATHER_SECONDS)  # If each line woke this thread, it would delay the event loop.
            while not self._queue.empty():
                batch.append(self._queue.get())
            data = b"".join(batch)
            self._write_out(data, timeout=None)
            self._written_bytes += len(data)

    def _write_out(self, data: bytes, timeout: int | None) -> None:
        """Write the lines.

        :param timeout: zero to write only what can be written at once, None to wait for the reader.
        """
        # A write of at most PIPE_BUF bytes is atomic, so processes that share a pipe do not mix their lines. After
        # select(), such a write does not block either.
        if self._is_torn:
            data = b"\n" + data
        while data:
            end = data.rfind(b"\n", 0, PIPE_BUF) + 1 or PIPE_BUF
            try:
                if not select([], [self._descriptor], [], timeout)[1]:
                    break
                written = os.write(self._descriptor, data[:end])
                self._is_torn = data[written - 1] != ord("\n")
                data = data[written:]
            except BlockingIOError:
                continue  # Another process has set O_NONBLOCK, and wrote after the call of select().
            except OSError:
                break
        self._failed_lines += data.removeprefix(b"\n").count(b"\n")
        lost = self._dropped_lines + self._failed_lines
        if lost > self._reported_lines and not data:
            self._reported_lines = lost
            _log.warning("log lines were dropped because they could not be written; since the start: %d", lost)
