"""The command ``plants``."""

import secrets
import sys

from gunicorn.app.wsgiapp import WSGIApplication

from plants.tokens import digest_of

_USAGE = """\
usage: plants serve [gunicorn options]   serve with the packaged configuration; --help lists the options
       plants token                      print a new random token, and its line for PLANTS_TOKENS_FILE"""


def main() -> None:
    """Run the command that ``sys.argv`` names."""
    match sys.argv[1:]:
        case ["serve", *options]:
            # Gunicorn reads sys.argv itself; a --config among the options comes later, and so wins.
            sys.argv[1:] = ["--config", "python:plants.hosting.gunicorn_conf", *options]
            WSGIApplication("%(prog)s [gunicorn options]", prog="plants serve").run()
        case ["token"]:
            token = secrets.token_urlsafe(32)
            print(token, f"sha256:{digest_of(token).hex()}", sep="\n")
        case ["-h" | "--help"]:
            print(_USAGE)
        case _:
            sys.exit(_USAGE)
