"""The command ``plants``. It imports what a command needs when that runs."""

import os
import re
import signal
import sys
from contextlib import closing
from threading import Thread
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from plants.hosting import LAST_PORT

_USAGE = """\
usage: plants serve [gunicorn options]   serve with the packaged configuration; --help lists the options
       plants check [URL]                ask whether a service is ready, by default the one that serve would start
       plants config                     print the settings that serve would have
       plants token                      print a new random token, and its line for PLANTS_TOKENS_FILE
       plants --version                  print the version, and those of what it runs on
       plants help                       print this"""

_CHECK_SECONDS = 2


def main() -> None:
    """Run the command that ``sys.argv`` names."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback.
    try:
        _run(sys.argv[1:])
        print(end="", flush=True)
    except OSError as error:
        sys.stdout = None  # Python would try again, and complain.
        stop(f"standard output takes nothing: {error.strerror}")


def _run(arguments: list[str]) -> None:
    match arguments:
        case ["serve", *_]:
            _serve()
        case ["check"]:
            _check(_own_url())
        case ["check", url] if not url.startswith("-"):
            _check(url)
        case ["config"]:
            _config()
        case ["token"]:
            _token()
        case ["--version" | "-V" | "version"]:
            _version()
        case ["help" | "--help" | "-h", *_]:
            print(_USAGE)
        case []:
            _misused(_USAGE)
        case _:
            _misused(f"plants: {' '.join(arguments)!r} is not a command; plants help lists them.")


def _misused(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


def stop(problem: object) -> NoReturn:
    """End the process with one line on standard error: the first of the problem's."""
    first, *_ = [*str(problem).strip().splitlines(), repr(problem)]
    sys.exit(f"plants: {first.rstrip(' .:')}.")


def _serve() -> None:
    _check_numbers()
    # To reload, or to open the log again, makes no sense until Gunicorn takes these over; they would end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    from plants.hosting.serve import Serve

    Serve("%(prog)s [gunicorn options]", prog="plants serve").run()


def _check_numbers() -> None:
    # Gunicorn reads these two when it is imported. A bad value would end it with a traceback.
    for name, lowest, highest in (("PORT", 0, LAST_PORT), ("WEB_CONCURRENCY", 1, 9999)):
        value = os.environ.get(name, str(lowest))
        if not re.fullmatch("[0-9]{1,5}", value) or not lowest <= int(value) <= highest:
            stop(f"{name} is not usable: set a number from {lowest} to {highest}, or unset it")


def _own_url() -> str:
    import shlex
    from argparse import ArgumentError, ArgumentParser

    _check_numbers()
    parser = ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("-b", "--bind", action="append", default=[])
    try:
        options, _ = parser.parse_known_args(shlex.split(os.environ.get("GUNICORN_CMD_ARGS", "")))
    except (ArgumentError, ValueError) as error:
        stop(f"GUNICORN_CMD_ARGS is not usable: {error}")
    # As Gunicorn reads it: several addresses may have commas between them, and the port may be left out.
    address = [*options.bind, f":{os.environ.get('PORT', '8000')}"][0].partition(",")[0].removeprefix("tcp://")
    if address.startswith(("unix:", "fd:")):
        stop(f"the service listens at {address}; plants check URL needs an http or https address")
    if not re.search(r":[^]]*$", address):
        address += ":8000"
    return f"http://127.0.0.1{address}" if address.startswith(":") else f"http://{address}"


def _check(url: str) -> None:
    address = f"{url.rstrip('/')}/readyz"
    problems = [f"no answer within {_CHECK_SECONDS} seconds"]
    # In a thread, so that the time limit covers the look-up of the name, too.
    asking = Thread(target=lambda: problems.append(_problem_at(address)), daemon=True)
    asking.start()
    asking.join(_CHECK_SECONDS)
    if problems[-1]:
        stop(f"{address}: {problems[-1]}")
    print(f"{address}: ready")


def _problem_at(address: str) -> str:
    """Say in one line why the service is not ready; empty if it is."""
    from http.client import OK, HTTPConnection, HTTPException, HTTPSConnection

    try:
        parts = urlsplit(address)
        connections: dict[str, type[HTTPConnection]] = {"http": HTTPConnection, "https": HTTPSConnection}
        if parts.scheme not in connections or not parts.hostname:
            return "this is not an http or https address"
        kind = connections[parts.scheme]
        with closing(kind(parts.hostname, parts.port or kind.default_port)) as connection:
            connection.request("GET", parts.path)
            answer = connection.getresponse()
            message = re.search(rb'"message": ?"([ !#-\[\]-~]{1,499})"', answer.read(65536))
    except HTTPException:
        return "this is not an HTTP server"
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    if answer.status == OK:
        return ""
    return f"{answer.status} {message[1].decode() if message else ''}"


def _config() -> None:
    _check_numbers()
    from plants.hosting.settings import NAMES, Settings, SettingsError

    try:
        settings = Settings.from_environ(os.environ)
    except SettingsError as error:
        stop(error)
    defaults: dict[str, object] = {name: getattr(settings, name[7:].lower(), None) for name in NAMES}
    for name, default in (defaults | {"WEB_CONCURRENCY": 1, "PORT": None}).items():
        value = os.environ.get(name)
        origin = "default" if value is None else "environment"
        if value is None:
            value = "" if default is None else str(default).removesuffix(".0")
        if name == "PLANTS_TOKENS":
            count = len(re.findall(r"[^,\s]+", os.environ.get(name, "")))
            value = "1 token, a new one at each start" if settings.new_token else f"{count} token{'s' * (count != 1)}"
        elif name == "PLANTS_STORE":
            value = _without_passwords(value)
        # A path may have bytes that are no text.
        print(f"{name}={value.encode(errors='backslashreplace').decode()}  # {origin}")


def _without_passwords(url: str) -> str:
    # A password with an @ may hide more of the URL than itself, but never less.
    url = re.sub(r"(://[^:@/]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(
        r"([^?&=]*)=([^&]*)", lambda found: f"{found[1]}=***" if "password" in unquote(found[1]) else found[0], url
    )


def _token() -> None:
    import secrets

    from plants.tokens import digest_of

    token = secrets.token_urlsafe(32)
    print(token, f"sha256:{digest_of(token).hex()}", sep="\n")


def _version() -> None:
    import platform
    from importlib.metadata import version

    used = ", ".join(f"{name} {version(name.lower())}" for name in ("Gunicorn", "Falcon"))
    print(f"plants {version('plants')} ({used}, Python {platform.python_version()})")
