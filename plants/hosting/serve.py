"""``plants serve``: Gunicorn, with the packaged configuration below the user's."""

import io
import logging
from contextlib import redirect_stderr
from typing import Any

from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.arbiter import Arbiter
from gunicorn.sock import ssl_context

from plants.hosting.cli import stop

_LAST_PORT = 65535
_PACKAGED = "python:plants.hosting.gunicorn_conf"

_log = logging.getLogger("gunicorn.error")


class Serve(WSGIApplication):
    """Gunicorn as a command that serves plants.

    Gunicorn reads ``sys.argv`` here, and executes it again on ``USR2``, so it stays as the user wrote it.
    """

    cfg: Any

    def init(self, parser: Any, opts: Any, args: list[str]) -> None:
        """Read the packaged configuration, before Gunicorn reads all others over it."""
        super().init(parser, opts, args[1:])  # Without "serve".
        self.load_config_from_file(_PACKAGED)
        # Read only a file that is named; the one in the working directory may belong to another service.
        opts.config = opts.config or parser.parse_args(self.cfg.get_cmd_args_from_env()).config or _PACKAGED

    def load_config(self) -> None:
        """Read everything that configures Gunicorn.

        :raises SystemExit: it cannot be used; the message is a line that says why.
        """
        try:
            super().load_config()
            addresses = self.cfg.address
        except Exception as error:  # whatever Gunicorn's settings and the user's file raise
            stop(error)
        for host, port in _ports(addresses):
            if not 0 <= port <= _LAST_PORT:
                stop(f"cannot listen at {host}:{port}; a port is a number from 0 to {_LAST_PORT}")

    def reload(self) -> None:
        """Reload the configuration (``HUP``); if it is not usable, the old one stays."""
        before = vars(self).copy()
        printed = io.StringIO()  # Gunicorn prints the problem; the log gets it as a line of its own.
        try:
            with redirect_stderr(printed):
                super().reload()
        except SystemExit as error:
            vars(self).update(before)
            problem = printed.getvalue().strip() or error
            _log.error("the new configuration cannot be used, the old one stays: %s", problem)

    def run(self) -> None:
        """Serve until a signal ends it, or do what ``--check-config`` and ``--print-config`` ask for."""
        if self.cfg.check_config:
            self._check()
        super().run()

    def _check(self) -> None:
        # Gunicorn's own check only loads the application. This checks what else could stop a start.
        try:
            Arbiter(self)
            if self.cfg.is_ssl:
                ssl_context(self.cfg)
        except Exception as error:
            stop(error)
        from plants.hosting.service import settings  # not sooner: these read the environment
        from plants.hosting.startup import try_to_bind

        for address in (*_ports(self.cfg.address), settings.metrics_bind):
            if address:
                try_to_bind(*address, may_be_in_use=True)  # by the service itself


def _ports(addresses: list[Any]) -> list[tuple[str, int]]:
    return [address for address in addresses if isinstance(address, tuple)]
