"""The command ``plants``, for operators: Gunicorn as ``plants serve``, and what checks a service or makes a token."""

import os
import secrets
import sys
from argparse import ArgumentParser, Namespace
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import plants
from plants import server
from plants.hosting.settings import SETTINGS, exit_with
from plants.tokens import digest_of

CHECK_SECONDS: Final = 2
_PACKAGED: Final = "python:plants.hosting.gunicorn_conf"


def main() -> None:
    """Run the command that ``sys.argv`` names."""
    if sys.argv[1:2] == ["serve"]:  # Gunicorn parses its options, again after USR2.
        _serve()
    else:
        options = _parser().parse_args()
        options.run(options)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("plants", epilog=f"The settings, from the environment, are {', '.join(SETTINGS)}.")
    version = f"plants {plants.__version__} ({server.implementation()} server)"
    parser.add_argument("-V", "--version", action="version", version=version)
    parser.set_defaults(run=lambda _options: parser.print_help())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands.add_parser("serve", help="start the service; its options are Gunicorn's")
    purpose = "check whether a service is ready; the exit status is 0 if it is, else 1"
    check = commands.add_parser("check", help=purpose, description=purpose)
    check.set_defaults(run=_check)
    check.add_argument("url", nargs="?", metavar="URL", help="the service's URL (default: PORT, or 8000, on localhost)")
    purpose = "print a new token to standard error, and its line for PLANTS_TOKENS_FILE to standard output"
    commands.add_parser("token", help=purpose, description=purpose).set_defaults(run=_token)
    return parser


def _serve() -> None:
    from gunicorn.app.wsgiapp import WSGIApplication

    class Serve(WSGIApplication):
        cfg: Any

        def init(self, parser: Any, opts: Any, args: list[str]) -> None:
            """Load the packaged configuration. Gunicorn then loads another file only if the user has named it."""
            self.chdir()  # PLANTS_TOKENS_CHECK may be in the working directory.
            self.load_config_from_file(_PACKAGED)
            opts.config = opts.config or parser.parse_args(self.cfg.get_cmd_args_from_env()).config or _PACKAGED
            super().init(parser, opts, args[1:])  # args[0] is "serve".

    serve = Serve("plants serve [options]", prog="plants serve")
    if serve.cfg.check_config:
        from plants.hosting.gunicorn_conf import check

        check(serve.cfg)
    serve.run()


def _check(options: Namespace) -> None:
    url = (options.url or f"localhost:{os.environ.get('PORT', '8000')}").rstrip("/")
    address = f"{url}/readyz" if "://" in url else f"http://{url}/readyz"
    try:
        build_opener(ProxyHandler({})).open(address, timeout=CHECK_SECONDS).close()
    except HTTPError as error:
        with error:  # It has a connection, and Python 3.14 warns if it is not closed.
            exit_with(f"{address}: {error}")
    except (OSError, ValueError, HTTPException) as error:
        exit_with(f"{address}: {getattr(error, 'reason', error)}")
    print(f"{address}: ready")


def _token(_options: Namespace) -> None:
    token = secrets.token_urlsafe(32)
    print(token, file=sys.stderr)
    print(f"sha256:{digest_of(token).hex()}")
