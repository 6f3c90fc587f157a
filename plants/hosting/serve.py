"""``plants serve``: Gunicorn, with the packaged configuration below the user's."""

import io
import logging
from contextlib import redirect_stderr
from typing import Any

from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.arbiter import Arbiter

from plants.hosting.cli import stop

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
        """Read everything that configures Gunicorn; ``SystemExit`` says in a line why it cannot be used."""
        try:
            super().load_config()
            self._addresses = self.cfg.address
            self._worker_class = self.cfg.worker_class  # Gunicorn would show a traceback of a class that is none.
        except Exception as error:  # whatever Gunicorn's settings and the user's file raise
            stop(error)

    def reload(self) -> None:
        """Reload the configuration (``HUP``); if it is not usable, the old one stays."""
        from plants.hosting.startup import check, try_to_bind

        before = vars(self).copy()
        printed = io.StringIO()  # Gunicorn prints the problem; the log gets it as a line of its own.
        try:
            with redirect_stderr(printed):
                super().reload()
            Arbiter(self)
            check(self.cfg)
            # Gunicorn listens anew at all of them, and the old workers keep theirs until they end.
            for address in self._addresses if self._addresses != before["_addresses"] else ():
                try_to_bind(address, may_be_in_use=self.cfg.reuse_port)
        except (Exception, SystemExit) as error:
            vars(self).update(before)
            problem = printed.getvalue().strip() or str(error).removeprefix("plants: ")
            _log.error("the new configuration cannot be used, the old one stays: %s", problem)

    def run(self) -> None:
        """Serve until a signal ends it, or do what ``--check-config`` and ``--print-config`` ask for."""
        from plants.hosting.service import settings
        from plants.hosting.startup import check, try_to_bind

        try:
            if self.cfg.check_config:
                # Gunicorn's own check only loads the application. This checks what else could stop a start.
                Arbiter(self)
                check(self.cfg)
                for address in self._addresses:
                    try_to_bind(address, may_be_in_use=True)  # perhaps by the service that this is for
                if settings.metrics_bind in self._addresses:
                    stop("PLANTS_METRICS_BIND is an address of the service itself; choose another one")
                try_to_bind(settings.metrics_bind, may_be_in_use=True, setting="PLANTS_METRICS_BIND")
                # The application, which Gunicorn loads now, would log a new token, and that is never valid.
                logging.getLogger("plants").setLevel(logging.ERROR)
            super().run()
        except Exception as error:  # whatever Gunicorn lets pass at a start
            stop(error)
