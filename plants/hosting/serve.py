"""Gunicorn as the command ``plants serve``."""

from typing import Any

from gunicorn.app.wsgiapp import WSGIApplication

PACKAGED = "plants.hosting.gunicorn_conf"  # The first import makes the service.
WITHOUT_SERVICE = "plants.hosting"  # It has no settings of Gunicorn.


class Serve(WSGIApplication):
    """Gunicorn; the user's file, ``GUNICORN_CMD_ARGS`` and options override the base configuration, a module."""

    cfg: Any

    def __init__(self, base: str = PACKAGED) -> None:
        self._base = f"python:{base}"
        super().__init__("plants serve [options]", prog="plants serve")

    def init(self, parser: Any, opts: Any, args: list[str]) -> None:
        """Load the base configuration, and let Gunicorn read another file only if the user named it."""
        if args[1:]:  # args[0] is "serve"
            parser.error(f"there is no argument {args[1]!r}, only options")
        super().init(parser, opts, [])
        self.chdir()  # PLANTS_TOKENS_CHECK may be in the working directory.
        self.cfg.set("wsgi_app", "plants.wsgi:app")
        self.load_config_from_file(self._base)
        opts.config = opts.config or parser.parse_args(self.cfg.get_cmd_args_from_env()).config or self._base
