"""The command ``plants``. A subcommand loads Gunicorn's configuration and the environment only if it needs them."""

import os
import re
import secrets
import ssl
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, InvalidURL
from io import TextIOWrapper
from typing import Any, Final, NoReturn
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import plants
from plants.hosting.settings import LAST_PORT, SETTINGS_HELP, stop
from plants.tokens import digest_of

CHECK_SECONDS: Final = 2
_SERVE_HELP = f"""\
usage: plants serve [options]

  -b, --bind ADDRESS         HOST:PORT or unix:PATH; may be repeated (default: 127.0.0.1:8000)
  -w, --workers NUMBER       worker processes (default: 1)
  --threads NUMBER           threads of a process (default: 1 for memory:, 2 for SQLite, 4 for PostgreSQL)
  --worker-connections NUMBER
                             maximum connections of a process (default: 1000)
  --certfile FILE --keyfile FILE
                             serve TLS
  -u, --user USER; -g, --group GROUP
                             run the worker processes as this user and group (default: the current ones)
  -p, --pid FILE             write the process id into this file
  -c, --config FILE          a configuration file of Gunicorn
  --log-level LEVEL          debug, info, warning, error or critical (default: info)
  --graceful-timeout SECONDS how long a stop may wait for responses (default: 30)
  --check-config             check the settings and the store, and exit
  --print-config             print Gunicorn's settings, and exit
The other options are Gunicorn's, which "gunicorn --help" lists.

{SETTINGS_HELP}"""


def main() -> None:
    """Run the command that ``sys.argv`` names."""
    if isinstance(sys.stdout, TextIOWrapper):  # It is None if it was closed at the start.
        sys.stdout.reconfigure(errors="backslashreplace")  # A path may have bytes that are not text.
    if sys.argv[1:2] == ["serve"]:  # Gunicorn parses its options.
        _serve()
    else:
        options = _parser().parse_args()
        options.run(options)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"plants: {message}; see {self.prog} --help.\n")


def _parser() -> ArgumentParser:
    parser = _Parser("plants", epilog=SETTINGS_HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("-V", "--version", action="store_const", const=_version, dest="run", help="print the versions")
    parser.set_defaults(run=lambda _options: parser.exit(2, parser.format_help()))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands.add_parser("serve", help="start the service")
    check = _add_command(commands, "check", "check whether a service is ready", _check)
    check.add_argument("url", nargs="?", metavar="URL", help="the service's URL (default: that of plants serve)")
    purpose = "print a new token to standard error, and its line for PLANTS_TOKENS_FILE to standard output"
    _add_command(commands, "token", purpose, _token)
    return parser


def _add_command(commands: Any, name: str, purpose: str, run: Callable[[Namespace], None]) -> ArgumentParser:
    command: ArgumentParser = commands.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
    command.set_defaults(run=run)
    return command


def _serve() -> None:
    if {"-h", "--help"} & {*sys.argv[2:]}:
        print(_SERVE_HELP)
        return
    _check_environment()
    from plants.hosting.serve import Serve

    serve = Serve()
    if serve.cfg.check_config:
        from plants.hosting.gunicorn_conf import check_start

        check_start(serve.cfg)
    serve.run()


def _check_environment() -> None:
    # When gunicorn.config is imported, it reads these two. A WEB_CONCURRENCY that is not a number causes a traceback.
    for name, lowest, highest in (("PORT", 0, LAST_PORT), ("WEB_CONCURRENCY", 1, 9999)):
        value = os.environ.get(name, str(lowest))
        if not re.fullmatch("[0-9]{1,5}", value) or not lowest <= int(value) <= highest:
            stop(f"{name} is not usable: set a number from {lowest} to {highest}, or unset it")


def _check(options: Namespace) -> None:
    url = options.url or _own_url()
    address = f"{url.rstrip('/')}/readyz"
    if problem := _problem_at(address, verify=options.url is not None):
        origin = "" if options.url else " (where plants serve would listen with these settings)"
        stop(f"{address}{origin}: {problem}")
    print(f"{address}: ready")


def _own_url() -> str:
    _check_environment()
    from plants.hosting.serve import WITHOUT_SERVICE, Serve
    from plants.hosting.startup import name_of, url_of

    sys.argv[1:] = ["serve"]  # Gunicorn parses these.
    cfg = Serve(WITHOUT_SERVICE).cfg
    address = cfg.address[0]
    if not isinstance(address, tuple):
        stop(f"the service listens on {name_of(address)}, which has no URL; run plants check URL")
    return url_of(address, cfg)


def _problem_at(address: str, *, verify: bool) -> str:
    """Return in one line why the service is not ready, or an empty string if it is."""
    context = ssl.create_default_context()
    if not verify:  # The certificate of this machine's service is for another name, and the request has no secret.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    try:
        if not address.startswith(("http://", "https://")):
            raise ValueError("this is not an http or https address")
        opener.open(address, timeout=CHECK_SECONDS).close()
    except HTTPError as error:
        body = b""
        with error, suppress(OSError, HTTPException):  # The body may be cut short, but the status is known.
            body = error.read(65536)
        message = re.search(rb'"message": ?"([ !#-\[\]-~]{1,499})"', body)
        return f"{error.status} {message[1].decode() if message else ''}"
    except (OSError, ValueError, InvalidURL) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return f"no response within {CHECK_SECONDS} seconds"
        if isinstance(reason, ssl.SSLCertVerificationError):
            return f"{reason.verify_message}; if you trust the certificate's authority, set SSL_CERT_FILE to its file"
        return str(getattr(reason, "strerror", None) or reason)
    except HTTPException:
        return "this is not an HTTP server"
    return ""


def _token(_options: Namespace) -> None:
    token = secrets.token_urlsafe(32)
    print(token, file=sys.stderr)
    print(f"sha256:{digest_of(token).hex()}")


def _version(_options: Namespace) -> None:
    from importlib.metadata import version
    from platform import python_version

    from plants import server

    used = ", ".join(f"{name} {version(name.lower())}" for name in ("Gunicorn", "Falcon"))
    print(f"plants {plants.__version__} ({server.implementation()} server, {used}, Python {python_version()})")
