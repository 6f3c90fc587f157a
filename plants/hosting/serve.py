"""Gunicorn as the command ``plants serve``; the user's configuration overrides the packaged one."""

import argparse
import sys
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.config import Config
from gunicorn.errors import ConfigError, HaltServer

from plants.hosting.settings import GUNICORN_SETTINGS, SETTINGS_HELP, stop

_PACKAGED = "plants.hosting.gunicorn_conf"
# The settings that --help shows.
_COMMON = (
    "bind",
    "workers",
    "threads",
    "worker_connections",
    "certfile",
    "keyfile",
    "config",
    "pidfile",
    "user",
    "group",
    "loglevel",
    "errorlog",
    "graceful_timeout",
    "keepalive",
    "check_config",
)
_DEFAULTS = GUNICORN_SETTINGS | {"threads": "1 for memory:, 2 for SQLite, 4 for PostgreSQL"}
_OTHER_NAMES = dict.fromkeys(("--port", "--host", "--address", "--listen"), "--bind HOST:PORT")


class _Config(Config):
    def parser(self) -> argparse.ArgumentParser:
        """Return Gunicorn's parser, whose help has our defaults and, unless it is ``--help-all``, few options."""
        for name, default in _DEFAULTS.items():
            self.settings[name].default = default
        parser: argparse.ArgumentParser = super().parser()
        help_of_all = parser.format_help
        brief = argparse.ArgumentParser(
            prog=self.prog,
            usage="%(prog)s [options]",
            epilog=SETTINGS_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for name in _COMMON:
            self.settings[name].add_option(brief)
        for every in (parser, brief):
            every.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all of Gunicorn's options and exit")
        reject = partial(self._reject, parser)
        vars(parser).update(help_of_all=help_of_all, format_help=brief.format_help, error=reject)
        return parser

    def _reject(self, parser: argparse.ArgumentParser, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").partition(" ")[0].partition("=")[0]
        options = [option for setting in self.settings.values() for option in setting.cli or ()]
        meant = _OTHER_NAMES.get(unknown) or "".join(get_close_matches(unknown, options, 1))
        advice = f"did you mean {meant}?" if meant else f"see {self.prog} --help."
        parser.exit(2, f"plants: {message}; {advice}\n")


class _HelpAll(argparse.Action):
    def __call__(self, parser: Any, *_: Any) -> None:
        sys.stdout.write(parser.help_of_all())
        parser.exit()


class UserConfiguration(WSGIApplication):
    """Gunicorn's defaults, overridden by the user's configuration file, ``GUNICORN_CMD_ARGS`` and options."""

    cfg: Any
    # This module has no settings of Gunicorn. If none were named here, Gunicorn would read ./gunicorn.conf.py.
    base = "plants.hosting"

    def load_default_config(self) -> None:
        """Start with Gunicorn's defaults."""
        self.cfg = _Config(self.usage, prog=self.prog)

    def init(self, parser: Any, opts: Any, args: list[str]) -> None:
        """Load the base configuration, which the user's configuration then overrides."""
        if args[1:]:  # args[0] is "serve"
            raise ConfigError(f"plants serve has options, but no argument {args[1]!r}; see plants serve --help")
        super().init(parser, opts, [])
        self.chdir()  # As Gunicorn does: PLANTS_TOKENS_CHECK may be in the working directory.
        base = f"python:{self.base}"
        self.load_config_from_file(base)
        # Read only a configuration file that the user named, because another one may belong to another service.
        opts.config = opts.config or parser.parse_args(self.cfg.get_cmd_args_from_env()).config or base

    def load_config(self) -> None:
        """Read everything that configures Gunicorn; if it cannot be used, stop with one line."""
        try:
            super().load_config()
            if not all(self.cfg.bind or [""]):  # For Gunicorn, "" is port 8000 of all addresses, and [] is no address.
                raise ConfigError("--bind is empty; set HOST:PORT, or leave it out")
            _ = self.cfg.address, self.cfg.env
            _ = self.cfg.worker_class, self.cfg.logger_class  # Gunicorn reports a bad class with a traceback.
        except Exception as error:  # any error of Gunicorn's settings or of the user's file
            stop(error)


class Serve(UserConfiguration):
    """Gunicorn as a command that serves plants.

    Do not change ``sys.argv``, because Gunicorn parses it here, and executes it again on ``USR2``.
    """

    base = _PACKAGED

    def run(self) -> None:
        """Serve until a signal ends it, or do what ``--check-config`` and ``--print-config`` ask for."""
        try:
            if self.cfg.check_config:
                import_module(_PACKAGED).check_start(self.cfg)
            super().run()
        except HaltServer as error:  # A second worker failed to start while Gunicorn was stopping.
            stop(error.reason)
        except Exception as error:  # any error that Gunicorn does not catch at the start
            stop(error)
