"""Gunicorn as the command ``plants serve``; the user's configuration overrides the packaged one."""

import argparse
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.config import Config
from gunicorn.errors import ConfigError

from plants.hosting.settings import GUNICORN_SETTINGS, SETTINGS_HELP, stop

PACKAGED = "plants.hosting.gunicorn_conf"
_OTHER_NAMES = dict.fromkeys(("--port", "--host", "--address", "--listen"), "--bind HOST:PORT")


class _Config(Config):
    def parser(self) -> argparse.ArgumentParser:
        """Return Gunicorn's parser, with the defaults of the packaged configuration."""
        for name in GUNICORN_SETTINGS.keys() & self.settings.keys():  # Old releases of Gunicorn do not have all.
            self.settings[name].default = GUNICORN_SETTINGS[name]
        parser: argparse.ArgumentParser = super().parser()
        parser.epilog = SETTINGS_HELP
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        vars(parser)["error"] = partial(self._reject, parser)
        return parser

    def _reject(self, parser: argparse.ArgumentParser, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").partition(" ")[0].partition("=")[0]
        options = [option for setting in self.settings.values() for option in setting.cli or ()]
        meant = _OTHER_NAMES.get(unknown) or "".join(get_close_matches(unknown, options, 1))
        advice = f"did you mean {meant}?" if meant else f"see {self.prog} --help."
        parser.exit(2, f"plants: {message}; {advice}\n")


class Serve(WSGIApplication):
    """Gunicorn, with a base configuration that the user's file, ``GUNICORN_CMD_ARGS`` and options override.

    Do not change ``sys.argv``, because Gunicorn parses it here, and executes it again on ``USR2``.
    """

    cfg: Any

    def __init__(self, base: str = PACKAGED) -> None:
        """Load the configuration; if it cannot be used, stop with one line.

        :param base: the module of the base configuration.
        """
        self._base = f"python:{base}"
        super().__init__(prog="plants serve")

    def load_default_config(self) -> None:
        """Start with Gunicorn's defaults."""
        self.cfg = _Config(self.usage, prog=self.prog)

    def init(self, parser: Any, opts: Any, args: list[str]) -> None:
        """Load the base configuration, which the user's configuration then overrides."""
        if args[1:]:  # args[0] is "serve"
            raise ConfigError(f"plants serve has options, but no argument {args[1]!r}; see plants serve --help")
        super().init(parser, opts, [])
        self.chdir()  # As Gunicorn does: PLANTS_TOKENS_CHECK may be in the working directory.
        self.load_config_from_file(self._base)
        # Read only a configuration file that the user named, because another one may belong to another service.
        opts.config = opts.config or parser.parse_args(self.cfg.get_cmd_args_from_env()).config or self._base

    def load_config(self) -> None:
        """Read everything that configures Gunicorn."""
        try:
            self.cfg.set("wsgi_app", "plants.wsgi:app")
            super().load_config()
            if not all(self.cfg.bind or [""]):  # For Gunicorn, "" is port 8000 of all addresses, and [] is no address.
                raise ConfigError("--bind is empty; set HOST:PORT, or leave it out")
            _ = self.cfg.address, self.cfg.env
            _ = self.cfg.worker_class, self.cfg.logger_class  # Gunicorn reports a bad class with a traceback.
        except Exception as error:  # any error of Gunicorn's settings or of the user's file
            stop(error)

    def run(self) -> None:
        """Serve until a signal ends it, or do what ``--check-config`` and ``--print-config`` ask for."""
        try:
            if self.cfg.check_config:
                import_module(PACKAGED).check_start(self.cfg)
            super().run()
        except Exception as error:  # any error that Gunicorn does not catch at the start
            stop(error)
