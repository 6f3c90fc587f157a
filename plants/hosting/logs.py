"""The log: one line per request on standard output, everything else on standard error, as JSON or as text."""

import json
import logging
import os
import re
import sys
import textwrap
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from select import PIPE_BUF
from typing import Any

from gunicorn import glogging

from plants.app import PLANTS_PATH
from plants.hosting.environment import settings
from plants.hosting.output import Output
from plants.server.request import Request
from plants.server.response import Response
from plants.server.threads import current_request

_STDOUT = 1
# Error messages are ASCII. Even with the longest message and a fully escaped path, a line fits into PIPE_BUF.
_PATH_CHARACTERS = 200
_LEVELS = {"5": (logging.ERROR, "error"), "4": (logging.WARNING, "warning")}
_LEVELS_OF_SUCCESS = ((logging.DEBUG, "debug"), (logging.INFO, "info"))  # indexed by whether the path is /plants
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Logger(glogging.Logger):
    """Gunicorn's logger in this service's format, unless a setting of Gunicorn chooses another."""

    _is_set_up = False

    def setup(self, cfg: Any) -> None:
        """Create the handlers. If a later call (``HUP``) fails, keep the old ones."""
        old_handlers = [(log, log.handlers.copy()) for log in glogging.loggers()]
        try:
            super().setup(cfg)
        except Exception as error:
            for log, handlers in old_handlers:
                log.handlers = handlers
            if not self._is_set_up:
                raise
            self.error("the log cannot be set up again, so the old one stays: %s", error)
            return
        self._is_set_up = True
        for handler in (*self.error_log.handlers, *self.access_log.handlers):
            # Do not change the handlers of the user's --log-config, or those for syslog, whose lines have a prefix.
            if getattr(handler, "_gunicorn", False) and isinstance(handler, logging.StreamHandler):
                if handler in self.error_log.handlers:
                    handler.setFormatter(_formatter())
                if not isinstance(handler, logging.FileHandler) and handler.stream:
                    handler.stream = Output(handler.stream.fileno(), _report)

    def reopen_files(self) -> None:
        """Reopen the files (``USR1``). If one cannot be opened, keep writing to the old ones."""
        handlers = [handler for log in glogging.loggers() for handler in log.handlers]
        try:
            for file in [handler.baseFilename for handler in handlers if isinstance(handler, logging.FileHandler)]:
                is_new = not Path(file).exists()
                Path(file).open("a").close()
                if is_new:  # The workers reopen it after the master, as their own user.
                    with suppress(PermissionError):  # A sandbox may forbid this, even if it changes nothing.
                        os.chown(file, self.cfg.uid, self.cfg.gid)
            super().reopen_files()
        except OSError as error:
            self.error("the files of the log cannot be reopened, so the old ones stay: %s", error)


def _formatter() -> logging.Formatter:
    return _JSONFormatter() if settings.log_format == "json" else _TextFormatter()


def _report(count: int) -> str:
    warning = {"levelname": "WARNING", "name": "plants.log", "process": os.getpid()}
    warning["msg"] = f"log lines that were dropped because they could not be written: {count}"
    return _formatter().format(logging.makeLogRecord(warning)) + "\n"


class _JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "msg": record.getMessage(),
        }
        if request_id := _request_id(record):
            line["request_id"] = request_id
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        request_id = _request_id(record)
        line = f"{timestamp(record.created)} {level} [{record.process}] {_one_line(record.getMessage())}"
        if request_id:
            line += f" ({request_id})"
        if record.exc_info:
            # Indent the lines, so that none of them looks like a line of the log.
            stacktrace = map(_one_line, self.formatException(record.exc_info).splitlines())
            line += "\n" + textwrap.indent("\n".join(stacktrace), "    ")
        return line


def _request_id(record: logging.LogRecord) -> str:
    request = getattr(record, "request", None) or current_request.get()
    return request.environ.get("plants.request_id", "") if request else ""


class AccessLog:
    """The log lines of requests, on standard output; ``level`` is the lowest level (of ``logging``) that is written.

    A write has one or more whole lines and at most PIPE_BUF bytes, so that processes do not mix their lines.
    """

    def __init__(self, level: int) -> None:
        # If standard output was closed at the start, its descriptor may be another file's.
        self._level = level if sys.stdout else logging.CRITICAL
        self._lines = b""
        self._output = Output(_STDOUT, _report)
        self._line = _json_line if settings.log_format == "json" else _text_line

    def write(self, request: Request, response: Response, error: tuple[int, str], seconds: float) -> None:
        """Buffer the log line of a request; ``flush`` writes it."""
        level, name = _LEVELS.get(response.status[0]) or _LEVELS_OF_SUCCESS[request.path == PLANTS_PATH]
        if level >= self._level:
            line = self._line(request, response, error, seconds, name)
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
    environ = request.environ
    code, message = error
    failure = f'"error":{code},"message":{json.dumps(message)},' if code else ""
    return (
        f'{{"ts":"{timestamp(time.time())}","level":"{level}","logger":"plants.access",'
        f'"request_id":"{environ["plants.request_id"]}","method":{_quoted(request.method)},'
        f'"path":{_quoted(request.path[:_PATH_CHARACTERS])},"status":{response.status[:3]},{failure}'
        f'"size":{len(response.body)},"duration":{seconds:.6f},"remote_ip":{_quoted(environ["REMOTE_ADDR"])}}}\n'
    )


def _text_line(request: Request, response: Response, error: tuple[int, str], seconds: float, level: str) -> str:
    environ = request.environ
    _, message = error
    line = (
        f"{timestamp(time.time())} {level} {response.status[:3]} {request.method or '-'} "
        f"{request.path[:_PATH_CHARACTERS] or '-'} {message + ' ' if message else ''}"
        f"{seconds * 1000:.1f} ms {environ['REMOTE_ADDR']} ({environ['plants.request_id']})"
    )
    return _one_line(line) + "\n"


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


def _one_line(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
