"""Gunicorn as the command ``plants serve``; the user's configuration overrides the packaged one."""

import argparse
import io
import logging
import os
import sys
from contextlib import redirect_stderr, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.errors import ConfigError, HaltServer

from plants.hosting.checks import as_workers, check, check_pid_file, check_raw_env, try_to_bind
from plants.hosting.settings import SETTINGS_HELP, stop
from plants.stores import StoreUnavailable

_PACKAGED_HELP = """
where the packaged configuration differs from Gunicorn's defaults:
  wsgi_app                plants.wsgi:app
  logger_class            plants.hosting.logs.Logger
  worker_class            plants.hosting.worker.Worker
  threads                 1 for memory:, 2 for SQLite, 4 for PostgreSQL
  worker_connections      4000
  control_socket_disable  True
  worker_tmp_dir          /dev/shm, if it is writable
  forwarded_allow_ips, forwarder_headers, secure_scheme_headers: empty"""

_log = logging.getLogger("gunicorn.error")


class _Config(Config):
    def parser(self) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().parser()
        parser.epilog = f"{SETTINGS_HELP}\n{_PACKAGED_HELP}"
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        # With parse_args, MODULE:APP could not follow an option.
        vars(parser)["parse_args"] = parser.parse_intermixed_args
        return parser


class UserConfiguration(WSGIApplication):
    """Gunicorn's defaults, overridden by the user's configuration file, ``GUNICORN_CMD_ARGS`` and options."""

    cfg: Any
    # This module has no settings of Gunicorn. If none were named here, Gunicorn would read ./gunicorn.conf.py.
    base = "python:plants.hosting"

    def load_default_config(self) -> None:
        """Start with Gunicorn's defaults."""
        self.cfg = _Config(self.usage, prog=self.prog)

    def init(self, parser: Any, opts: Any, args: list[str]) -> None:
        """Load the base configuration, which the user's configuration then overrides."""
        self.cfg.set("wsgi_app", "plants.wsgi:app")
        super().init(parser, opts, args[1:])  # args[0] is "serve"
        self.load_config_from_file(self.base)
        # Read only a configuration file that the user named, because another one may belong to another service.
        opts.config = opts.config or parser.parse_args(self.cfg.get_cmd_args_from_env()).config or self.base

    def load_config(self) -> None:
        """Read everything that configures Gunicorn; if it cannot be used, stop with one line."""
        try:
            super().load_config()
            if not all(self.cfg.bind or [""]):  # For Gunicorn, "" is port 8000 of all addresses, and [] is no address.
                raise ConfigError("--bind is empty; set HOST:PORT, or leave it out")
            self.addresses = self.cfg.address
            check_raw_env(self.cfg)
            _ = self.cfg.worker_class, self.cfg.logger_class  # Gunicorn reports a bad class with a traceback.
        except Exception as error:  # any error of Gunicorn's settings or of the user's file
            stop(error)


class Serve(UserConfiguration):
    """Gunicorn as a command that serves plants.

    Do not change ``sys.argv``, because Gunicorn parses it here, and executes it again on ``USR2``.
    """

    base = "python:plants.hosting.gunicorn_conf"

    def reload(self) -> None:
        """Reload the configuration (``HUP``); if it is not usable, keep the old one."""
        before = vars(self).copy()
        printed = io.StringIO()  # Gunicorn prints the problem, which belongs in the log.
        try:
            with redirect_stderr(printed):
                super().reload()
            self._find_application()
            Arbiter(self)
            check(self.cfg)
            check_pid_file(self.cfg)
            # If these change, Gunicorn or its workers bind all addresses again while the old workers still listen.
            if (self.addresses, self.cfg.reuse_port) != (before["addresses"], before["cfg"].reuse_port):
                try_to_bind(*self.addresses, reuse_port=self.cfg.reuse_port)
        except (Exception, SystemExit) as error:
            vars(self).update(before)
            with suppress(Exception):  # A file of the old configuration may have become unusable, too.
                self.cfg.logger_class(self.cfg)  # The new configuration may have changed or removed the log's handlers.
            try:
                check_pid_file(self.cfg)
            except SystemExit:
                self.cfg.set("pidfile", None)  # Gunicorn makes the file again, and would end the service if it cannot.
            problem = printed.getvalue().strip() or str(error).removeprefix("plants: ")
            _log.error("the new configuration cannot be used, so the old one stays: %s", problem)

    def run(self) -> None:
        """Serve until a signal ends it, or do what ``--check-config`` and ``--print-config`` ask for."""
        try:
            self._find_application()
            # A daemon cannot report what stops its start.
            if self.cfg.check_config or (self.cfg.daemon and "GUNICORN_PID" not in os.environ):
                self._check()
            super().run()
        except HaltServer as error:  # Gunicorn handles a worker that fails to start, but not a second one.
            stop(error.reason)
        except Exception as error:  # any error that Gunicorn does not catch at startup
            stop(error)

    def _find_application(self) -> None:
        for path in self.cfg.pythonpath.split(",") if self.cfg.pythonpath else ():
            sys.path.insert(0, str(Path(path).absolute()))  # Gunicorn does this later.
        module = str(self.app_uri).partition(":")[0]
        if not self.cfg.paste and not find_spec(module.partition(".")[0]):
            advice = "plants serve accepts options and, for another application, MODULE:APP"
            raise ConfigError(f"there is no module {module!r}; {advice}")

    def _check(self) -> None:
        """Check what else could stop a start; Gunicorn's own check only loads the application."""
        # Importing this reads the environment, which --help should not do.
        from plants.hosting.environment import announce_new_token, settings, store

        Arbiter(self)
        check(self.cfg)
        may_be_in_use = self.cfg.check_config  # A running service may have the addresses and the pid file.
        try_to_bind(*self.addresses, may_be_in_use=may_be_in_use, reuse_port=self.cfg.reuse_port)
        if settings.metrics_bind:
            if settings.metrics_bind in self.addresses:
                stop("PLANTS_METRICS_BIND is an address of the service itself; choose another one")
            try_to_bind(settings.metrics_bind, may_be_in_use=may_be_in_use, setting="PLANTS_METRICS_BIND")
        check_pid_file(self.cfg, may_be_in_use=may_be_in_use)
        if not self.cfg.check_config:
            announce_new_token()
            return
        try:
            with as_workers(self.cfg):
                store.prepare(create=False)
        except StoreUnavailable as error:
            _log.warning("the store cannot be used now, which is normal before its first start: %s", error)
        # Gunicorn loads the application next. This would log a generated token, although it never becomes valid.
        logging.getLogger("plants").setLevel(logging.ERROR)
