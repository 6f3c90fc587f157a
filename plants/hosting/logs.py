"""The log: a line for each request in the access log, everything else in the error log, on standard error.

Lines are written straight to the pipe at the end of the event-loop iteration in which they were logged; what it does
not accept at once waits in memory. In the format ``text``, a line has the values of the JSON object, separated by
spaces; the lines of a traceback follow, indented. A traceback has the messages of exceptions only at the level
``debug``, because a store or a token check may put a plant or a token there.
"""

import atexit
import fcntl
import json
import logging
import os
import select
import shlex
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from stat import S_ISREG
from threading import Lock, Thread
from typing import Any, TextIO

from gunicorn import glogging
from gunicorn.util import check_is_writable

from plants.app import OPERATIONS
from plants.server.exchange import Exchange, current
from plants.server.response import Response

# Processes that share a pipe do not mix lines of at most PIPE_BUF bytes, which is 4,096 on Linux. Longer ones are cut.
# Those of the access log fit: error messages are ASCII and short, and so is a path, even if it is escaped fully.
_MAX_LINE_BYTES = 4095  # without the line break
_UNCUT = 100  # A message or a traceback of so few characters stays whole.
_PATH_BYTES = 200
_LEVELS = {5: (logging.ERROR, "error"), 4: (logging.WARNING, "warning")}
_LEVELS_OF_SUCCESS = ((logging.DEBUG, "debug"), (logging.INFO, "info"))  # indexed by whether it is an operation
MAX_WAITING_BYTES = 1_048_576  # of lines for a stalled reader
STOP_SECONDS = 1.0  # how long a process that ends waits for such a reader
_GATHER_SECONDS = 0.02
_MAX_EXCEPTIONS = 10
_MASTER_PID = os.getpid()  # Gunicorn's master imports this. It should not fork with threads, so it starts none.
_log = logging.getLogger("plants.log")


class Formatter(logging.Formatter):
    """Format log records as JSON or as text."""

    def __init__(self, *, is_json: bool) -> None:
        super().__init__()
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with the id of the request that was being handled."""
        line: dict[str, Any] = {
            "ts": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "msg": record.getMessage(),
        }
        request = getattr(current, "request", None)
        if request:
            line["request_id"] = request.id
        line["stacktrace"] = _stack_of(record)
        for name in ("stacktrace", "msg"):
            while len((text := self._format(line)).encode()) > _MAX_LINE_BYTES and len(line[name]) > _UNCUT:
                kept = len(line[name]) * 3 // 8
                line[name] = f"{line[name][:kept]}\n[...]\n{line[name][-kept:]}"
        return text

    def _format(self, line: dict[str, Any]) -> str:
        if self._is_json:
            members = {name: value for name, value in line.items() if value or name != "stacktrace"}
            return json.dumps(members, separators=(",", ":"))
        *values, stack = line.values()
        return "\n".join(map(_escape, [" ".join(map(str, values)), *(f"  {text}" for text in stack.splitlines())]))


def _escape(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


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

    def _set_handler(self, log: logging.Logger, output: Any, fmt: logging.Formatter, stream: Any = None) -> None:
        if output not in (None, "-", *_outputs):
            check_is_writable(output)  # If it is not, Gunicorn prints this error.
        super()._set_handler(log, "-", fmt)
        handler: Any = log.handlers[-1]
        handler.stream = output_to(output, stream or sys.stderr)
        if log is self.error_log:
            handler.setFormatter(Formatter(is_json=_is_json(self.log_format, handler.stream)))

    def reopen_files(self) -> None:
        """Let the next ``flush`` open the files again (``USR1``). A signal handler may call this."""
        for output in _outputs.values():
            output.reopen()


def _is_json(log_format: str | None, output: "Output") -> bool:
    return log_format == "json" if log_format else not os.isatty(output.descriptor)


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

    def __init__(self, path: str | None, level: int, log_format: str | None) -> None:
        """Log from this level of ``logging`` on to a file, to standard output (``-``) or nowhere (None)."""
        self.output = output_to(path, sys.stdout)
        self._level = level if path else logging.CRITICAL
        is_json = _is_json(log_format, self.output)
        self._line, self._failure = (_JSON_LINE, _JSON_ERROR) if is_json else (_TEXT_LINE, _TEXT_ERROR)
        self._quote: Callable[[str], str] = json.dumps if is_json else lambda text: shlex.quote(_escape(text))
        self._quoted = lru_cache(maxsize=256)(lambda text: self._quote(_decoded(text)))

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
    """A file, or a descriptor that other processes may share, for log lines. Only creating it may raise an OSError.

    ``flush`` writes the lines as far as they are accepted at once; the others wait for the next ``flush``. If more than
    ``MAX_WAITING_BYTES`` would wait, lines are dropped; once nothing waits, a warning has their number.

    A short-lived thread writes to what may delay its caller: a regular file, whose disk may be slow, and a descriptor
    that cannot be made non-blocking. All else is written at once, so that ``kill -9`` loses no line that a reader has
    room for.
    """

    def __init__(self, target: str | int) -> None:
        """Open the file with this path, or use a descriptor."""
        self._target = target
        self.descriptor = _open(target)
        self._may_block = os.get_blocking(self.descriptor) or S_ISREG(os.fstat(self.descriptor).st_mode)
        self._is_stale = False
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.drain)

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

    def reopen(self) -> None:
        """Let the next ``flush`` open the file again. A signal handler may call this."""
        self._is_stale = isinstance(self._target, str)
        if os.getpid() == _MASTER_PID:  # A worker's event loop calls it.
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait, unless another call does."""
        if (self._waiting or self._is_stale) and self._writing.acquire(blocking=False):
            if self._may_block and os.getpid() != _MASTER_PID:
                with suppress(RuntimeError):  # The process may not have another thread.
                    Thread(target=self._write_in_thread, name=__name__, daemon=True).start()
                    return
            self._write_out()
            self._writing.release()
        if self._dropped_lines and not self._waiting:
            count, self._dropped_lines = self._dropped_lines, 0
            _log.warning("log lines were dropped because they could not be written: %d", count)

    def _write_in_thread(self) -> None:
        while self._waiting or self._is_stale:
            self._write_out()
            time.sleep(_GATHER_SECONDS)  # If each line started a thread, it would delay the event loop.
        self._writing.release()

    def _write_out(self) -> None:
        if self._is_stale:
            self._open_again()
        # A write of at most PIPE_BUF bytes is atomic, so processes that share a pipe do not mix their lines.
        with suppress(OSError):  # The pipe is full or has no reader, or the disk is full. All that is left waits.
            while self._waiting and select.select([], [self.descriptor], [], 0)[1]:
                end = self._waiting.rfind(b"\n", 0, select.PIPE_BUF) + 1 or select.PIPE_BUF
                del self._waiting[: os.write(self.descriptor, self._waiting[:end])]

    def _open_again(self) -> None:
        self._is_stale = False
        try:
            descriptor = _open(self._target)
            os.dup2(descriptor, self.descriptor, inheritable=False)
            os.close(descriptor)
        except OSError as error:
            _log.error("a log file cannot be opened again, so the old one stays until the next USR1: %s", error)

    def drain(self) -> None:
        """Write the lines that wait, unless a reader or a disk has stalled."""
        deadline = time.monotonic() + STOP_SECONDS
        while self._waiting and time.monotonic() < deadline:
            self.flush()
            time.sleep(0.01)


def _open(target: str | int) -> int:
    """Return a descriptor, which does not block if that is possible, for the file with this path or descriptor."""
    # With O_APPEND, no gap is left if another program truncates the file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
    if isinstance(target, str):
        return os.open(target, flags, 0o666)
    fcntl.fcntl(target, fcntl.F_SETFL, fcntl.fcntl(target, fcntl.F_GETFL) | os.O_APPEND)
    # O_NONBLOCK on the same descriptor would also hold for other processes, so open its file again. Only Linux has
    # these names, and it opens no socket, and no pipe of another user.
    with suppress(OSError):
        return os.open(f"/proc/self/fd/{target}", flags)
    return target


_outputs: dict[str | int, Output] = {}


def output_to(path: str | None, standard_stream: TextIO | None) -> Output:
    """Return the output to a file, or to the standard stream (None: closed) for ``-``. Workers inherit the master's."""
    target: str | int = path or os.devnull
    if path == "-":
        target = standard_stream.fileno() if standard_stream else os.devnull
    if target not in _outputs:
        _outputs[target] = Output(target)
    return _outputs[target]
