"""The private or undocumented names of libraries that the package relies on, and what would break without each.

CI also runs these tests, and those of the application, with the newest releases, pre-releases too, to see a change
before users do.
"""

from typing import Any

import falcon
import falcon.routing
import gunicorn.http.message
import gunicorn.sock
import psycopg
import psycopg.conninfo
import pytest
import waitress.trigger
from gunicorn import glogging
from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.workers import base
from marshmallow import ValidationError, fields

# A class or a module must have the names. A function must use them, as attributes or parameters.
NAMES: list[tuple[Any, str, str]] = [
    (base.Worker.__init__, "sockets cfg log max_requests", "the worker serves no socket, or restarts never"),
    (base.Worker.__init__, "alive ppid", "the worker does not stop at TERM, or when the master has ended"),
    (base.Worker.init_process, "PIPE load_wsgi run", "no thread wakes the event loop, or there is no loop"),
    (base.Worker.init_signals, "PIPE set_wakeup_fd", "a signal does not wake the event loop"),
    (base.Worker.init_signals, "handle_quit handle_usr1", "INT cuts responses off, USR1 opens no access log again"),
    (base.Worker.load_wsgi, "wsgi", "there is no application, or a wrapped one is taken for the service's"),
    (base.Worker, "notify", "the master kills workers, and no line of the error log is written"),
    (Arbiter.reload, "app reload", "HUP with an unusable configuration or certificate ends the service"),
    (Arbiter.start, "LISTENERS on_starting when_ready", "the log does not name the addresses"),
    (Arbiter.num_workers.fset, "nworkers_changed", "TTIN starts a second process beside a dictionary"),
    (Arbiter.reap_workers, "child_exit", "the gauges of an ended worker stay in the metrics"),
    (glogging.Logger.setup, "loglevel error_log", "the log has the wrong level or format"),
    (glogging.Logger._set_handler, "_gunicorn", "the error log has Gunicorn's format, or a user's handler has ours"),
    (gunicorn.sock, "ssl_context", "no TLS"),
    (gunicorn.http.message, "MAX_HEADERS", "limit_request_fields = 0 allows no field"),
    (WSGIApplication, "chdir init load_config_from_file", "plants serve ignores the packaged configuration"),
    (Config, "get_cmd_args_from_env is_ssl", "plants serve ignores -c in GUNICORN_CMD_ARGS, or a certificate"),
    (falcon.App, "_META_METHODS", "the method WEBSOCKET is a 400 before the token is checked"),
    (falcon.Response, "_headers", "a success does not have the headers of every response"),
    (falcon.routing.CompiledRouter, "find map_http_methods", "//plants is /plants, or an unknown method is a 400"),
    (fields.Field.__init__, "validators", "the fast path accepts a name with U+0000"),
    (ValidationError, "messages_dict", "a NewPlant that is not valid is a 500"),
    (psycopg.Cursor.execute, "wait", "a statement waits for ever for a server whose machine is gone"),
    (psycopg.Connection.wait, "gen interval timeout", "the same, or no statement can be executed"),
    (waitress.trigger.trigger.pull_trigger, "lock thunks", "a test server does not end"),
    (psycopg.conninfo, "timeout_from_conninfo", "a connect_timeout that is no number is found at the first create"),
]


@pytest.mark.parametrize(("place", "names", "broken"), NAMES, ids=[names for _, names, _ in NAMES])
def test_a_library_still_has_the_names(place: Any, names: str, broken: str) -> None:
    code = getattr(place, "__code__", None)
    found = {*code.co_names, *code.co_varnames} if code else set(dir(place))
    assert set(names.split()) <= found, f"otherwise: {broken}"
