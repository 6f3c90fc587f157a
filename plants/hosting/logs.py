"""The log: a line for each request in the access log, everything else in the error log, on standard error.

The pipe is the queue: lines are written at the end of the event-loop iteration in which they were logged, as far as
they are accepted at once. In the format ``text``, a line has the values of the JSON object, separated by spaces; the
lines of a traceback follow, indented. A traceback has the messages of exceptions only at the level ``debug``, because a
store or a token check may put a plant or a token there.
"""

import atexit
import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from select import PIPE_BUF, select
from stat import S_ISREG
from threading import Lock, Thread
from typing import Any

from gunicorn import glogging

from plants.app import OPERATIONS
from plants.server.exchange import Exchange, current
from plants.server.response import Response

# Error messages are ASCII. Even with the longest message and a fully escaped path, a line fits into PIPE_BUF.
_PATH_BYTES = 200
_LEVELS = {5: (logging.ERROR, "error"), 4: (logging.WARNING, "warning")}
_LEVELS_OF_SUCCESS = ((logging.DEBUG, "debug"), (logging.INFO, "info"))  # indexed by whether it is an operation
MAX_WAITING_BYTES = 1_048_576  # of lines for a stalled reader
STOP_SECONDS = 1.0  # how long a process that ends waits for such a reader
_GATHER_SECONDS = 0.02
_MAX_EXCEPTIONS = 10
MASTER_PID = os.getpid()  # Gunicorn's master imports this. It should not fork with threads, so it starts none.
_log = logging.getLogger("plants.log")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Formatter(logging.Formatter):
    """Format log records as JSON or as text."""

    def __init__(self, *, is_json: bool) -> None:
        super().__init__()
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with the id of the request that was being handled."""
        line = {
            "ts": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "msg": record.getMessage(),
        }
        request = getattr(current, "request", None)
        if request:
            line["request_id"] = request.id
        stack = _stack_of(record)
        if not self._is_json:
            lines = [" ".join(map(str, line.values())), *(f"  {text}" for text in stack.splitlines())]
            return "\n".join(map(_escape, lines))
        if stack:
            line["stacktrace"] = stack
        return json.dumps(line, separators=(",", ":"))


def _escape(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _stack_of(record: logging.LogRecord) -> str:
    """Return the traceback of a record's exception, if it has one: without messages, except at the level debug."""
    error = record.exc_info[1] if record.exc_info else None
    if error and logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
        return "".join(traceback.format_exception(error))
    parts: list[str] = []
    while error and len(parts) < _MAX_EXCEPTIONS:
        frames = "".join(traceback.format_tb(error.__traceback__))
        name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        parts.append(f"Traceback (most recent call last):\n{frames}{name}\n")
        error = error.__cause__ or error.__context__
    return "\nwhich led to:\n\n".join(reversed(parts))


class Logger(glogging.Logger):
    """Gunicorn's logger in this service's format, unless a setting of Gunicorn chooses another."""

    log_format: str | None = None
    _standard_error: "Output | None" = None

    def setup(self, cfg: Any) -> None:
        """Create the handlers."""
        super().setup(cfg)
        for handler in self.error_log.handlers:
            # Do not change the handlers of the user's --log-config, or those for syslog, whose lines have a prefix.
            if getattr(handler, "_gunicorn", False) and isinstance(handler, logging.StreamHandler) and handler.stream:
                descriptor = handler.stream.fileno()
                handler.setFormatter(Formatter(is_json=_is_json(self.log_format, descriptor)))
                if not isinstance(handler, logging.FileHandler):
                    self._standard_error = handler.stream = self._standard_error or Output(descriptor)


def _is_json(log_format: str | None, descriptor: int) -> bool:
    return log_format == "json" if log_format else not os.isatty(descriptor)


# The formats of a line, and of the error in it. They cost half as much as json.dumps().
_JSON_LINE = (
    '{"ts":"%s","level":"%s","logger":"plants.access","request_id":"%s","method":%s,"path":%s,"route":%s,"status":%s,'
    '%s"size":%d,"duration":%.6f,"remote_ip":%s}\n'
)
_JSON_ERROR = '"error_code":%d,"error_message":%s,'
_TEXT_LINE = "%s %s plants.access %s %s %s %.0s%s %s%d %.6f %s\n"  # %.0s omits the route.
_TEXT_ERROR = "%d %s "


class AccessLog:
    """The log of requests."""

    def __init__(self, target: str | None, level: int, log_format: str | None) -> None:
        """Open the log.

        :param target: the path of a file, ``-`` for standard output, or None for no log.
        :param level: the lowest level (of ``logging``) that is written.
        """
        self._path = target or os.devnull
        self._level = level if target else logging.CRITICAL
        # If standard output was closed at the start, its descriptor may be another file's.
        self._descriptor = sys.stdout.fileno() if target == "-" and sys.stdout else os.open(os.devnull, os.O_WRONLY)
        self.reopen()
        is_json = _is_json(log_format, self._descriptor)
        self._line, self._failure = (_JSON_LINE, _JSON_ERROR) if is_json else (_TEXT_LINE, _TEXT_ERROR)
        self._quote: Callable[[str], str] = json.dumps if is_json else _escape
        self._quoted = lru_cache(maxsize=256)(lambda text: self._quote(_decoded(text)))
        self.output = Output(self._descriptor)

    def reopen(self) -> None:
        """Open the file again, which may have been renamed. If this fails, log the reason."""
        if self._path == "-":
            return
        try:
            with Path(self._path).open("ab") as file:
                os.dup2(file.fileno(), self._descriptor, inheritable=False)
        except OSError as error:
            _log.error("the access log cannot be opened: %s", error)

    def write(self, request: Exchange, response: Response, error: tuple[int, str], seconds: float) -> None:
        """Buffer the line of a request, unless its level is too low."""
        level, name = _LEVELS.get(response.status // 100) or _LEVELS_OF_SUCCESS[request.route in OPERATIONS]
        if level < self._level:
            return
        code, message = error
        line = self._line % (
            timestamp(time.time()),
            name,
            request.id,
            self._quoted(request.method),
            self._quoted(request.path[:_PATH_BYTES]),
            self._quoted(request.route),
            response.status,
            self._failure % (code, self._quote(message)) if code else "",
            len(response.body),
            seconds,
            self._quoted(request.client),
        )
        self.output.write(line)


def _decoded(text: str) -> str:
    """Decode as UTF-8 what PEP 3333 has decoded as Latin-1. A template, which nobody has decoded, may have any text."""
    return text.encode("latin-1", "replace").decode(errors="replace")


def timestamp(seconds: float) -> str:
    """Format a time, in seconds since 1970, as RFC 3339 does: in UTC, with microseconds."""
    second = int(seconds)
    return f"{_second(second)}.{int((seconds - second) * 1_000_000):06d}Z"


@lru_cache(maxsize=2)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class Output:
    """A file descriptor for log lines, which other processes may share. Nothing here blocks, or raises an OSError.

    ``flush`` writes the lines as far as they are accepted at once; the others wait for the next ``flush``. If more than
    ``MAX_WAITING_BYTES`` would wait, lines are dropped; once nothing waits, a warning has their number.

    A regular file accepts each write, but a slow disk delays its caller, so a short-lived thread writes. All else is
    written at once, so that ``kill -9`` loses no line that a reader has room for.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_file = S_ISREG(os.fstat(descriptor).st_mode)
        if not self._is_file:
            # After select(), a write can still block if another process fills the pipe first. O_NONBLOCK on the same
            # descriptor would also hold for other processes, so open the pipe again. A socket cannot be opened, and
            # only Linux has these names; there, select() alone must do.
            with suppress(OSError):
                self._descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.stop)

    def _reset(self) -> None:
        self._waiting = bytearray()
        self._dropped_lines = 0
        self._writing = Lock()

    def write(self, lines: str) -> None:
        """Buffer the lines, or drop them."""
        data = lines.encode(errors="backslashreplace")
        if len(self._waiting) + len(data) <= MAX_WAITING_BYTES:
            self._waiting += data
        else:
            self._dropped_lines += data.count(b"\n")

    def flush(self) -> None:
        """Write the lines that wait, unless another call does."""
        if self._waiting and self._writing.acquire(blocking=False):
            if self._is_file and os.getpid() != MASTER_PID:
                with suppress(RuntimeError):  # The process may not have another thread.
                    Thread(target=self._write_to_file, name=__name__, daemon=True).start()
                    return
            self._write_out()
            self._writing.release()
        if self._dropped_lines and not self._waiting:
            count, self._dropped_lines = self._dropped_lines, 0
            _log.warning("log lines were dropped because they could not be written: %d", count)

    def _write_to_file(self) -> None:
        while self._waiting:
            self._write_out()
            time.sleep(_GATHER_SECONDS)  # If each line started a thread, it would delay the event loop.
        self._writing.release()

    def _write_out(self) -> None:
        # A write of at most PIPE_BUF bytes is atomic, so processes that share a pipe do not mix their lines.
        with suppress(OSError):  # The pipe is full or has no reader, or the disk is full. All that is left waits.
            while self._waiting and select([], [self._descriptor], [], 0)[1]:
                end = self._waiting.rfind(b"\n", 0, PIPE_BUF) + 1 or PIPE_BUF
                del self._waiting[: os.write(self._descriptor, self._waiting[:end])]

    def stop(self) -> None:
        """Write the lines that wait, unless a reader or a disk has stalled."""
        deadline = time.monotonic() + STOP_SECONDS
        while self._waiting and time.monotonic() < deadline:
            self.flush()
            time.sleep(0.01)
