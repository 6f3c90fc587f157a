"""The command ``plants``."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
from gunicorn.config import Config

import plants
from plants import MemoryStore, server
from plants.hosting import cli, gunicorn_conf, settings
from plants.hosting.settings import Settings
from plants.stores.sqlite import SQLiteStore
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import CHECKOUT, PLANTS, SERVE, Service, call, environment, run, send_to, serving
from tests.support.needs import needs_psycopg
from tests.support.process import END, PATIENCE_SECONDS, children, free_port, wait_for_workers, wait_until
from tests.support.tls_client import make_certificate

SCRIPT = [str(Path(sys.executable).with_name("plants"))]


def error_line(result: subprocess.CompletedProcess[str], status: int = 1) -> str:
    """Check that a command failed with one line, and return the line."""
    assert result.returncode == status
    assert result.stdout == ""
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("plants: ")
    return result.stderr.removeprefix("plants: ").rstrip()


@pytest.mark.parametrize("arguments", ["help", "--help", "-h"])
def test_help_names_the_commands_and_the_settings(arguments: str) -> None:
    result = call(*arguments.split())
    assert (result.returncode, result.stderr) == (0, "")
    assert re.findall(r"^    (\w+) ", result.stdout, re.MULTILINE) == ["serve", "check", "config", "token", "help"]
    for name, (default, meaning) in settings.SETTINGS.items():
        assert re.search(rf"^  {name} +{re.escape(meaning)}", result.stdout, re.MULTILINE)
        assert not default or f"(default: {default})" in result.stdout


@pytest.mark.parametrize("command", ["check", "config", "token"])
def test_each_command_has_its_own_help(command: str) -> None:
    result = call(command, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: plants {command} [-h]")
    assert call("help", command).stdout == result.stdout


def test_without_a_command_plants_prints_its_help_and_fails() -> None:
    result = call()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == call("help").stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("grow --fast", "argument COMMAND: invalid choice: 'grow' .*; see plants --help."),
        ("check a b", "unrecognized arguments: b; see plants --help."),
        ("config --fast", "unrecognized arguments: --fast; see plants --help."),
    ],
)
def test_an_unknown_command_or_argument_fails_in_one_line(arguments: str, problem: str) -> None:
    assert re.fullmatch(problem, error_line(call(*arguments.split()), 2))


@pytest.mark.parametrize("argument", ["--version", "-V"])
def test_version_prints_the_versions_of_plants_and_its_platform(argument: str) -> None:
    assert call(argument).stdout == (
        f"plants {plants.__version__} ({server.implementation()} server, Gunicorn {version('gunicorn')}, "
        f"Falcon {version('falcon')}, Python {sys.version.partition(' ')[0]})\n"
    )


def test_plants_token_prints_a_new_token_and_its_digest(tmp_path: Path) -> None:
    outputs = [call("token").stdout.splitlines() for _ in range(2)]
    assert outputs[0] != outputs[1]
    token, line = outputs[0]
    assert line.startswith("sha256:")
    (tmp_path / "tokens").write_text(line)
    assert Settings.from_environ({"PLANTS_TOKENS_FILE": str(tmp_path / "tokens")}).tokens.accepts(token)


# plants config


def plants_config(**env: str) -> dict[str, tuple[str, str]]:
    """Return the value and the origin of each setting that plants config prints."""
    result = call("config", **env)
    assert (result.returncode, result.stderr) == (0, "")
    lines = [re.fullmatch(r"(\w+)=(.*)  # (default|environment|Gunicorn)", line) for line in result.stdout.splitlines()]
    return {line[1]: (line[2], line[3]) for line in lines if line}


def test_the_configuration_can_be_read_as_json() -> None:
    env = {"PLANTS_TOKENS": TOKEN, "PORT": "80"}
    rows = json.loads(call("config", "--json", **env).stdout)
    assert {name: (row["value"], row["from"]) for name, row in rows.items()} == plants_config(**env)


def test_the_configuration_has_every_setting_and_its_default() -> None:
    assert plants_config() == {
        **dict.fromkeys(settings.SETTINGS, ("", "default")),
        "PLANTS_TOKENS": ("1 token, a new one at each start", "default"),
        "PLANTS_LOG_FORMAT": ("json", "default"),
        "PLANTS_STORE": ("memory:", "default"),
        "PLANTS_MAX_BODY_BYTES": ("1048576", "default"),
        "PLANTS_REQUEST_TIMEOUT": ("10", "default"),
        "WEB_CONCURRENCY": ("1", "default"),
        "PORT": ("", "default"),
        "bind": ("127.0.0.1:8000", "Gunicorn"),
        "threads": ("1", "Gunicorn"),
        "worker_connections": ("4000", "Gunicorn"),
        "certfile": ("", "Gunicorn"),
    }


def test_the_configuration_shows_what_the_environment_sets() -> None:
    env = {
        "PLANTS_STORE": "sqlite:///x",
        "GUNICORN_CMD_ARGS": "--worker-connections 7 -b [::1]:80 -b unix:/x -b fd://3",
    }
    found = plants_config(PLANTS_REQUEST_TIMEOUT="2.50", WEB_CONCURRENCY="1", PORT="80", PLANTS_TOKENS="one", **env)
    assert found["bind"] == ("[::1]:80,unix:/x,fd://3", "Gunicorn")
    assert found["threads"] == ("2", "Gunicorn")
    assert found["worker_connections"] == ("7", "Gunicorn")
    assert found["PLANTS_REQUEST_TIMEOUT"] == ("2.50", "environment")
    assert found["WEB_CONCURRENCY"] == ("1", "environment")
    assert found["PORT"] == ("80", "environment")


def test_the_configuration_shows_a_path_of_any_bytes(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/t\xffkens"
    Path(os.fsdecode(path)).write_text("one\n")
    result = call("config", PLANTS_TOKENS_FILE=os.fsdecode(path))
    assert (result.returncode, result.stderr) == (0, "")
    assert rf"PLANTS_TOKENS_FILE={tmp_path}/t\udcffkens  # environment" in result.stdout.splitlines()


def test_the_configuration_escapes_what_its_output_cannot_encode(tmp_path: Path) -> None:
    env = {"PLANTS_STORE": f"sqlite:///{tmp_path}/\u20ac.db", "PYTHONIOENCODING": "ascii"}
    result = run(*PLANTS, "config", PLANTS_TOKENS=TOKEN, **env)
    assert (result.returncode, result.stderr) == (0, "")
    assert rf"PLANTS_STORE=sqlite:///{tmp_path}/\u20ac.db  # environment" in result.stdout.splitlines()


def test_the_configuration_shows_only_the_number_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("seven\n")
    assert plants_config(PLANTS_TOKENS="five,six")["PLANTS_TOKENS"] == ("2 tokens", "environment")
    assert plants_config(PLANTS_TOKENS="five")["PLANTS_TOKENS"] == ("1 token", "environment")
    found = plants_config(PLANTS_TOKENS_FILE=str(tmp_path / "tokens"))
    assert found["PLANTS_TOKENS"] == ("0 tokens", "default")
    assert found["PLANTS_TOKENS_FILE"] == (str(tmp_path / "tokens"), "environment")


@needs_psycopg
@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://me:secret@a,b/db", "postgresql://me:***@a,b/db"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("postgresql://me:%40se:cret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db?password=secret&port=1", "postgresql://me@host/db?password=***&port=1"),
        ("postgresql://me@host/db?port=1&pass%77ord=secret", "postgresql://me@host/db?port=1&pass%77ord=***"),
    ],
)
def test_the_configuration_hides_a_stores_password(url: str, masked: str) -> None:
    assert plants_config(PLANTS_STORE=url)["PLANTS_STORE"] == (masked, "environment")


@pytest.mark.parametrize(
    ("env", "start"),
    [
        ({"PLANTS_STOER": "x"}, "PLANTS_STOER is not a setting"),
        ({"PLANTS_TOKENS": ""}, "PLANTS_TOKENS is not usable"),
        ({"PORT": "http"}, "PORT is not usable: set a number from 0 to 65535, or unset it."),
    ],
    ids=["name", "value", "Gunicorn's"],
)
def test_a_bad_configuration_is_reported_in_one_line(env: dict[str, str], start: str) -> None:
    assert error_line(call("config", **env)).startswith(start)


# plants check


@pytest.fixture
def long_check_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeout of ``plants check``, because the machine may be busy."""
    monkeypatch.setattr(cli, "_CHECK_SECONDS", PATIENCE_SECONDS)


@contextmanager
def responding_with(response: bytes) -> Iterator[str]:
    """Run a server that sends this response to every client, or nothing if the response is empty; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        clients = []

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                clients.append(client)
                if response:
                    client.recv(65536)
                    client.sendall(response)
                    client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for client in clients:
            client.close()


@pytest.mark.usefixtures("long_check_timeout")
def test_plants_check_finds_a_service_by_settings_or_by_url() -> None:
    with serving() as service:
        ready = f"http://127.0.0.1:{service.port}/readyz: ready\n"
        assert call("check", PORT=str(service.port)).stdout == ready
        bind = f"127.0.0.1:{service.port}"
        for options in (f"-w 1 --bind {bind} -b x", f"-btcp://{bind}", f"-b :{service.port}"):
            assert call("check", GUNICORN_CMD_ARGS=options, PORT="1").stdout == ready
        result = call("check", f"http://127.0.0.1:{service.port}/")
        assert (result.stdout, result.stderr, result.returncode) == (ready, "", 0)


def test_plants_check_connects_to_gunicorns_default_port() -> None:
    for options, host in [
        ("", "127.0.0.1"),
        ("-b localhost", "localhost"),
        ("-b [::1]", "[::1]"),
    ]:
        result = call("check", GUNICORN_CMD_ARGS=options)
        assert f"http://{host}:8000/readyz: " in result.stdout + result.stderr


@pytest.mark.usefixtures("long_check_timeout")
def test_plants_check_reports_why_a_service_is_not_ready(tmp_path: Path) -> None:
    file = tmp_path / "plants.db"
    with serving(PLANTS_STORE=f"sqlite:///{file}") as service:
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200
        file.unlink()
        # For half a second after an add, the probe does not check the store.
        wait_until(lambda: call("check", PORT=str(service.port)).returncode)
        result = call("check", PORT=str(service.port))
        line = error_line(result)
        assert line.endswith("/readyz: 503 The plant store cannot be reached now; try again later.")


@pytest.mark.usefixtures("long_check_timeout")
@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "302."),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "this is not an HTTP server."),
        (b"SSH-2.0-OpenSSH\r\n", "this is not an HTTP server."),
        (b'HTTP/1.1 503 x\r\n\r\n{"message": "two\nlines"}', "503."),
    ],
    ids=["redirection", "no status", "another protocol", "two lines"],
)
def test_plants_check_reports_an_unexpected_response(response: bytes, reason: str) -> None:
    with responding_with(response) as url:
        assert error_line(call("check", url)) == f"{url}/readyz: {reason}"


def test_plants_check_times_out_when_a_server_is_silent() -> None:
    with responding_with(b"") as url:
        assert error_line(call("check", url)) == f"{url}/readyz: no response within 2 seconds."


def test_plants_check_reports_a_refused_connection() -> None:
    port = free_port()
    assert error_line(call("check", PORT=str(port))) == f"http://127.0.0.1:{port}/readyz: Connection refused."


def test_plants_check_uses_tls_for_an_https_address() -> None:
    with responding_with(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        assert "SSL" in error_line(call("check", url.replace("http", "https")))


NOT_AN_ADDRESS = "this is not an http, https or unix address."


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("127.0.0.1:8000", NOT_AN_ADDRESS),
        ("ftp://a", NOT_AN_ADDRESS),
        ("http://", NOT_AN_ADDRESS),
        ("http://a:b", "Port could not be cast to integer value as 'b'."),
        ("http://[", "Invalid IPv6 URL."),
        ("", NOT_AN_ADDRESS),
    ],
    ids=repr,
)
def test_plants_check_rejects_an_invalid_address(url: str, reason: str) -> None:
    assert error_line(call("check", url)) == f"{url.rstrip('/')}/readyz: {reason}"


@pytest.mark.usefixtures("long_check_timeout")
def test_plants_check_connects_through_a_unix_socket(tmp_path: Path) -> None:
    bind = f"unix:{tmp_path}/socket"
    with serving("--bind", bind):
        assert call("check", GUNICORN_CMD_ARGS=f"--bind {bind}").stdout == f"{bind}: ready\n"
    assert error_line(call("check", bind)) == f"{bind}: No such file or directory."


@pytest.mark.usefixtures("long_check_timeout")
def test_plants_check_finds_the_service_with_tls(tmp_path: Path) -> None:
    options = f"--certfile {make_certificate(tmp_path)}"
    (tmp_path / "mine.py").write_text(f"certfile = '{options.split()[1]}'\n")
    port = free_port()
    env = {"PLANTS_TOKENS": TOKEN, "PORT": str(port), "GUNICORN_CMD_ARGS": f"--log-level=info {options}"}
    with Service(SERVE, CHECKOUT, env) as service:
        service.wait_for("Listening at")
        ready = f"https://127.0.0.1:{port}/readyz: ready\n"
        for arguments in (options, f"--config {tmp_path}/mine.py"):
            assert call("check", GUNICORN_CMD_ARGS=arguments, PORT=str(port)).stdout == ready
        assert "certificate verify failed" in error_line(call("check", f"https://127.0.0.1:{port}"))


def test_plants_check_cannot_connect_to_a_bound_descriptor() -> None:
    line = error_line(call("check", GUNICORN_CMD_ARGS="--bind fd://3"))
    assert line == "the service listens on fd://3, whose address is unknown here; run plants check URL."


@pytest.mark.parametrize("port", ["", "http", "99999"], ids=repr)
def test_plants_check_validates_the_port_as_serve_does(port: str) -> None:
    line = "PORT is not usable: set a number from 0 to 65535, or unset it."
    assert error_line(call("check", PORT=port)) == line


def test_plants_check_parses_gunicorns_options_as_serve_does() -> None:
    assert error_line(call("check", GUNICORN_CMD_ARGS="-b '")) == "No closing quotation."


@pytest.mark.parametrize("url", [[], ["ftp:"]], ids=["own service", "URL"])
def test_plants_check_imports_no_framework(url: list[str]) -> None:
    code = (
        f"import sys, json, plants.hosting.cli as cli; sys.argv = ['plants', 'check', *{url}]\n"
        "try: cli.main()\n"
        "except SystemExit: print(json.dumps([*sys.modules]))"
    )
    modules = json.loads(run(sys.executable, "-c", code, PORT=str(free_port())).stdout)
    assert not {"falcon", "marshmallow"} & {*modules}
    assert ("gunicorn.arbiter" in modules) == (not url)  # Without a URL, Gunicorn parses the address.


# plants serve


FORMAT_ERROR = "incomplete format" if sys.version_info < (3, 15) else "stray % at position 0"
unusable_configurations = pytest.mark.parametrize(
    ("options", "env", "line"),
    [
        ("", {"PORT": "99999"}, "PORT is not usable: set a number from 0 to 65535, or unset it."),
        ("", {"PORT": ""}, "PORT is not usable: set a number from 0 to 65535, or unset it."),
        ("", {"WEB_CONCURRENCY": "two"}, "WEB_CONCURRENCY is not usable: set a number from 1 to 9999, or unset it."),
        ("", {"WEB_CONCURRENCY": "0"}, "WEB_CONCURRENCY is not usable: set a number from 1 to 9999, or unset it."),
        ("-b 127.0.0.1:http", {}, "'http' is not a valid port number."),
        ("", {"GUNICORN_CMD_ARGS": "-b '"}, "No closing quotation."),
        ("-c /missing.py", {}, "'/missing.py' doesn't exist."),
        ("-k nonexistent", {}, "class uri 'nonexistent' invalid or not found."),
        ("--logger-class nonexistent", {}, "class uri 'nonexistent' invalid or not found."),
        (
            "--log-config-json /missing",
            {},
            "cannot use /missing (No such file or directory); choose another file with --log-config-json.",
        ),
        (
            "--statsd-host 127.0.0.1:8125",
            {},
            "--statsd-host has no effect without --logger-class gunicorn.instrument.statsd.Statsd.",
        ),
        ("--cert-reqs 2", {}, "cert_reqs has no effect without a certificate; set --certfile and --keyfile."),
        ("-b=", {}, "--bind is empty; set HOST:PORT, or leave it out."),
        (
            "--access-logformat %",
            {},
            f"cannot use the access log's format ({FORMAT_ERROR}); choose another one with --access-logformat.",
        ),
        ("-w 0", {}, "the service needs a worker process: set WEB_CONCURRENCY or --workers to 1 or more."),
        (
            "-e FOO=1 -e PLANTS_STORE=memory:",
            {},
            "PLANTS_STORE has no effect in --env or raw_env; set it in the environment.",
        ),
        (
            "-k gthread",
            {"PLANTS_METRICS_BIND": "127.0.0.1:9100"},
            "PLANTS_METRICS_BIND needs the packaged worker class, so do not set another one (-k, worker_class).",
        ),
        (
            "",
            {"PLANTS_STORE": "memory"},
            "PLANTS_STORE is not usable: the dictionary store takes no path and no options: its URL is 'memory:'.",
        ),
        ("", {"GUNICORN_CMD_ARGS": "-e X"}, "environment setting 'X' invalid."),
        *[
            (options, {}, f"cannot use the certificate ({reason}); choose another one with --certfile and --keyfile.")
            for options, reason in [
                ("--certfile /missing", "No such file or directory"),
                ("--certfile /", "Is a directory"),
                ("--keyfile /missing", "certfile should be a valid filesystem path"),
            ]
        ],
        *[
            (f"--worker-tmp-dir {folder}", {}, f"{line} (No such file or directory); {remedy}")
            for folder in ("/missing", "/proc")
            for line, remedy in [("cannot make a file for a worker", "choose another folder with --worker-tmp-dir.")]
        ],
        *[
            (f"-b unix:{path}", {}, f"cannot listen on unix:{path} ({reason}); {remedy}")
            for path, reason in [("/missing/socket", "No such file or directory"), ("/etc/hosts", "not a socket")]
            for remedy in ["choose another address with --bind HOST:PORT."]
        ],
    ],
    ids=lambda value: str(value)[:30],
)


@unusable_configurations
def test_a_configuration_that_cannot_serve_fails_in_one_line(options: str, env: dict[str, str], line: str) -> None:
    assert error_line(call("serve", "--log-level=error", *options.split(), PLANTS_TOKENS=TOKEN, **env)) == line


@unusable_configurations
@pytest.mark.usefixtures("no_subprocess_coverage")
def test_check_config_fails_with_the_same_line_as_a_start(options: str, env: dict[str, str], line: str) -> None:
    assert error_line(call("serve", *options.split(), "--check-config", PLANTS_TOKENS=TOKEN, **env)) == line


@pytest.mark.parametrize("options", [[], ["--check-config"]], ids=["start", "check"])
def test_an_unknown_application_is_reported_in_one_line(options: list[str], tmp_path: Path) -> None:
    line = "there is no module 'foo'; plants serve accepts options and, for another application, MODULE:APP."
    for app in ("foo", "foo:app"):
        assert error_line(call("serve", app, f"--pythonpath={tmp_path}", *options, PLANTS_TOKENS=TOKEN)) == line


def test_check_config_reports_a_bad_configuration_in_one_line() -> None:
    address = f"127.0.0.1:{free_port()}"
    cases: list[tuple[list[str], dict[str, str], str]] = [
        (["-w", "2"], {}, "cannot be shared by 2 worker processes"),
        ([], {"WEB_CONCURRENCY": "2"}, "cannot be shared by 2 worker processes"),
        ([], {"PLANTS_STORE": "x:"}, "PLANTS_STORE is not usable"),
        (["-b", "192.0.2.1:80"], {}, "cannot listen on 192.0.2.1:80 (Cannot assign requested address); "),
        (["-b", "127.0.0.1:99999"], {}, "cannot listen on 127.0.0.1:99999 (bind(): port must be 0-65535.); "),
        (["-b", "nonexistent.invalid:80"], {}, "cannot listen on nonexistent.invalid:80 ("),
        (["--pid", "/missing/pid"], {}, "cannot make /missing/pid (No such file or directory); "),
        (["--log-file", "/"], {}, "Is a directory"),
        (["--log-level", "all"], {}, "--log-level all is not a level; choose one of critical, error, warning, "),
        (["-b", address], {"PLANTS_METRICS_BIND": address}, "an address of the service itself"),
    ]
    for options, env, problem in cases:
        assert problem in error_line(call("serve", "--check-config", *options, **env))


def test_check_config_passes_beside_the_running_service(tmp_path: Path) -> None:
    with serving() as service:
        for address in (f"127.0.0.1:{service.port}", f"unix:{tmp_path}/socket"):
            result = call("serve", "--check-config", "--bind", address, PLANTS_TOKENS=TOKEN)
            assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_check_config_warns_of_an_unavailable_store(tmp_path: Path) -> None:
    result = call("serve", "--check-config", PLANTS_TOKENS=TOKEN, PLANTS_STORE=f"sqlite:///{tmp_path}/gone/plants.db")
    line = json.loads(result.stderr)
    assert (result.returncode, line["level"]) == (0, "warning")
    assert line["msg"].startswith("the store cannot be used now, which is normal before its first start: ")
    assert list(tmp_path.iterdir()) == []


def test_check_config_logs_no_generated_token() -> None:
    result = call("serve", "--check-config")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def printed_config(result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the settings that --print-config prints."""
    assert result.returncode == 0, result.stderr
    return dict(re.findall(r"^(\w+)\s+= (.*)$", result.stdout, re.MULTILINE))


@pytest.mark.parametrize("source", ["option", "environment"])
def test_a_configuration_file_overrides_the_packaged_one(tmp_path: Path, source: str) -> None:
    (tmp_path / "mine.py").write_text("worker_connections = 7\nkeepalive = 11\n")
    options, env = (["-c", "mine.py"], {}) if source == "option" else ([], {"GUNICORN_CMD_ARGS": "-c mine.py"})
    result = call("serve", "--print-config", "--keep-alive", "13", *options, PLANTS_TOKENS=TOKEN, **env, cwd=tmp_path)
    found = printed_config(result)
    assert (found["worker_connections"], found["keepalive"]) == ("7", "13")
    assert (found["wsgi_app"], found["worker_class"]) == ("plants.wsgi:app", "plants.hosting.worker.Worker")


def test_a_configuration_file_that_is_not_named_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "gunicorn.conf.py").write_text("worker_connections = 7\n")
    found = printed_config(call("serve", "--print-config", PLANTS_TOKENS=TOKEN, cwd=tmp_path))
    assert (found["worker_connections"], found["config"]) == ("4000", "python:plants.hosting.gunicorn_conf")


def test_serve_accepts_the_name_of_another_application(tmp_path: Path) -> None:
    (tmp_path / "wrapped.py").write_text(
        "from plants.wsgi import app as wrapped\n"
        "def app(environ, start_response):\n"
        "    return wrapped(environ | {'PATH_INFO': '/livez'}, start_response)\n"
    )
    with serving("wrapped:app", "--chdir=.", cwd=tmp_path) as service:  # --bind precedes the name.
        assert service.send(method="GET", path="/anything", headers=[]).body == b'{"status": "live"}'


@pytest.mark.parametrize("command", [SERVE, [*SCRIPT, "serve"]], ids=["python -m plants", "plants"])
def test_usr2_starts_the_same_command_with_the_generated_token(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("worker_connections = 7\nworkers = 1\n")
    command = ["env", "-u", "PLANTS_TOKENS", *command]
    with serving("--config", "mine.py", "--chdir", "/", command=command, cwd=tmp_path) as service:
        token = service.wait_for(r"no token is set; .*: ([\w-]+)")[1]
        service.wait_for("Booting worker")
        old = children(service.process.pid)
        before = len(service.lines)
        service.process.send_signal(signal.SIGUSR2)
        service.wait_for("Listening at", after=before)
        service.wait_for("Booting worker", after=before)
        [new] = {*children(service.process.pid)} - {*old}
        arguments = Path(f"/proc/{new}/cmdline").read_bytes().decode().split("\0")
        assert arguments[2:-1] == ["serve", "--bind", "127.0.0.1:0", "--config", "mine.py", "--chdir", "/"]
        service.process.terminate()
        service.process.wait(60)
        try:
            # Only the new master still serves.
            response = send_to(service.port, new_plant(), headers=[("Authorization", f"Bearer {token}"), JSON_TYPE])
            assert response.plant == {"name": "Fern"}
        finally:
            os.kill(new, signal.SIGTERM)
            service.wait_for(re.escape(END))


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_a_new_master_that_cannot_start_leaves_no_pid_file(tmp_path: Path) -> None:
    file, pid_file = tmp_path / "mine.py", tmp_path / "pid"
    file.touch()
    with serving("-c", str(file), "--pid", str(pid_file)) as service:
        file.write_text("certfile = '/missing'\n")
        service.process.send_signal(signal.SIGUSR2)
        service.wait_for("plants: cannot use the certificate")
        wait_until(lambda: not Path(f"{pid_file}.2").exists())
        assert pid_file.read_text() == f"{service.process.pid}\n"
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200
        assert service.stop() == 0
    assert not pid_file.exists()


def test_a_daemon_prints_its_generated_token(tmp_path: Path) -> None:
    port, pid_file = free_port(), tmp_path / "pid"
    result = run(*SERVE, "--daemon", f"--pid={pid_file}", f"--bind=127.0.0.1:{port}", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "")
    token = re.fullmatch(r".*no token is set; .*: ([\w-]+)[^\w-]*\n", result.stderr)
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    try:
        headers = [("Authorization", f"Bearer {token and token[1]}"), JSON_TYPE]
        wait_until(lambda: call("check", PORT=str(port)).returncode == 0)
        assert send_to(port, new_plant(), headers=headers).plant == {"name": "Fern"}
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGTERM)
        wait_until(lambda: not pid_file.exists())


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_a_daemon_that_cannot_start_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        line = f"cannot listen on {address} (Address already in use); choose another address with "
        for bind, metrics, setting in (
            (address, {}, "--bind HOST:PORT"),
            ("127.0.0.1:0", {"PLANTS_METRICS_BIND": address}, "PLANTS_METRICS_BIND"),
        ):
            result = run(*SERVE, "--daemon", "--bind", bind, cwd=tmp_path, PLANTS_TOKENS=TOKEN, **metrics)
            assert error_line(result) == f"{line}{setting}."


@pytest.mark.parametrize(
    ("options", "content", "line"),
    [
        (
            "--certfile={}",
            "def ssl_context(_, make): make()",
            r"cannot use the certificate \(the hook ssl_context returned None\); .*",
        ),
        (
            "",
            "def ssl_context(_, make): return make()",
            r"ssl_context has no effect without a certificate; set --certfile and --keyfile\.",
        ),
    ],
    ids=["no result", "no certificate"],
)
def test_tls_settings_that_yield_no_tls_stop_the_start(options: str, content: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(content)
    option = [options.format(make_certificate(tmp_path))] if options else []
    result = call("serve", "--log-level=error", "-c", "mine.py", *option, cwd=tmp_path, PLANTS_TOKENS=TOKEN)
    assert re.fullmatch(line, error_line(result))


def test_a_blocking_store_gets_a_thread_even_if_threads_is_1(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [])\n"
        "    return [str(environ['server.deferred_response']).encode()]\n"
    )
    for store, is_threaded in (("memory:", b"False"), (f"sqlite:///{tmp_path}/plants.db", b"True")):
        with serving("--threads=1", command=[*SERVE, "threaded:app"], cwd=tmp_path, PLANTS_STORE=store) as service:
            assert service.send(method="GET", path="/", headers=[]).body == is_threaded


def test_hup_reloads_the_configuration_unless_it_is_bad(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    hook = "def post_worker_init(worker): worker.log.warning('worker %s is here', {!r})\n"
    file.write_text(hook.format("one"))
    with serving("-c", str(file)) as service:
        service.wait_for("worker one is here")
        # The new text has another length. If size and mtime (in whole seconds) were the same, Python would reuse the
        # bytecode of the old text.
        file.write_text(hook.format("another"))
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("worker another is here")
        for content, problem in [("workers = 'many'\n", "Invalid value for workers: many"), ("workers =", "Failed to")]:
            file.write_text(content)
            before = len(service.lines)
            service.process.send_signal(signal.SIGHUP)
            service.wait_for(rf"the new configuration cannot be used, so the old one stays: {problem}", after=before)
            service.wait_for("worker another is here", after=before)
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200
        assert service.stop() == 0


def assert_hup_keeps_the_configuration(service: Service, problem: str) -> None:
    """Send HUP; check that the log names the problem, and that new workers serve with the old configuration."""
    before = len(service.lines)
    service.process.send_signal(signal.SIGHUP)
    service.wait_for(f"the new configuration cannot be used, so the old one stays: {problem}", after=before)
    service.wait_for("Worker exiting", after=before)
    assert service.send(method="GET", path="/livez", headers=[]).status == 200


def test_hup_ignores_a_configuration_that_cannot_serve(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    good = "bind = '127.0.0.1:0'\n"
    file.write_text(good)
    (tmp_path / "pid").write_text("1\n")
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        Service([*SERVE, "-c", str(file)], CHECKOUT, {"PLANTS_TOKENS": TOKEN}) as service,
    ):
        service.wait_until_it_serves()
        for content, problem in [
            ("bind = '192.0.2.1:80'\n", "cannot listen on 192.0.2.1:80"),
            ("bind = '127.0.0.1:99999'\n", "cannot listen on 127.0.0.1:99999 "),
            (good + "worker_class = 'nonexistent'\n", ".*nonexistent"),
            (good + "certfile = '/missing'\n", ".*No such file or directory"),
            (good + "workers = 2\n", ".*cannot be shared by 2 worker processes"),
            (good + "worker_tmp_dir = '/missing'\n", "cannot make a file for a worker "),
            (good + "pidfile = '/missing/pid'\n", "cannot make /missing/pid "),
            (good + f"pidfile = '{tmp_path}'\n", ".*Is a directory"),
            (good + f"pidfile = '{tmp_path}/pid'\n", ".*/pid has the id of another process, 1; choose another file "),
            (good + "wsgi_app = 'nonexistent:app'\n", "there is no module 'nonexistent'; "),
            (good + "errorlog = '/missing/log'\n", "Error: '/missing/log' isn't writable "),
            (good + "accesslog = '/missing/log'\n", "Error: '/missing/log' isn't writable "),
            ("bind = []\n", "--bind is empty; "),
            ("bind = 'unix:/proc/socket'\n", "cannot listen on unix:/proc/socket "),
            (f"bind = '127.0.0.1:{other.getsockname()[1]}'\n", r"cannot listen on .* \(Address already in use\)"),
            (f"bind = ['127.0.0.1:0', '0.0.0.0:{service.port}']\n", r"cannot listen on .* \(Address already in use\)"),
        ]:
            file.write_text(content)
            assert_hup_keeps_the_configuration(service, problem)
        assert service.stop() == 0


@pytest.mark.usefixtures("no_subprocess_coverage")
@pytest.mark.parametrize("reuse_port", [False, True])
def test_hup_cannot_change_reuse_port(reuse_port: bool, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"reuse_port = {reuse_port}\n")
    port = free_port()
    with Service([*SERVE, "-c", str(file)], CHECKOUT, {"PLANTS_TOKENS": TOKEN, "PORT": str(port)}) as service:
        service.port = port
        wait_for_workers(service.process.pid, 1)
        file.write_text(f"reuse_port = {not reuse_port}\n")
        assert_hup_keeps_the_configuration(service, r"cannot listen on .* \(Address already in use\)")
        assert service.stop() == 0


@pytest.mark.usefixtures("long_check_timeout", "no_subprocess_coverage")
def test_workers_start_after_the_certificate_becomes_unusable(tmp_path: Path) -> None:
    pem = make_certificate(tmp_path)
    address = {"PORT": str(free_port()), "GUNICORN_CMD_ARGS": f"--log-level=info --certfile={pem}"}
    with Service(SERVE, CHECKOUT, {"PLANTS_TOKENS": TOKEN} | address) as service:
        service.wait_for("Listening at")
        wait_for_workers(service.process.pid, 1)
        pem.write_text("")
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("the new configuration cannot be used, so the old one stays: cannot use the certificate")
        worker = service.wait_for(r"Booting worker with pid: (\d+)", times=2)[1]
        os.kill(int(worker), signal.SIGKILL)
        service.wait_for("Booting worker", times=3)
        assert call("check", **address).stdout.endswith(": ready\n")
        assert service.stop() == 0


def test_hup_does_not_stop_a_service_whose_folder_is_missing(tmp_path: Path) -> None:
    files, pids = tmp_path / "files", tmp_path / "pids"
    files.mkdir()
    pids.mkdir()
    with serving(f"--worker-tmp-dir={files}", f"--pid={pids}/pid") as service:
        for folder, problem in ((files, "cannot make a file for a worker"), (pids, f"cannot make {pids}/pid")):
            shutil.rmtree(folder)
            assert_hup_keeps_the_configuration(service, problem)
        assert files.exists()
        pids.mkdir()
        service.process.send_signal(signal.SIGHUP)
        wait_until((pids / "pid").exists)
        assert service.stop() == 0
    assert not (pids / "pid").exists()


def test_usr2_without_the_working_directory_harms_no_worker(tmp_path: Path) -> None:
    directory, pid, address = tmp_path / "service", tmp_path / "pid", tmp_path / "socket"
    directory.mkdir()
    env = {"PLANTS_TOKENS": TOKEN, "PYTHONPATH": str(CHECKOUT)}
    with Service([*SERVE, f"--bind=unix:{address}", f"--pid={pid}"], directory, env) as service:
        wait_for_workers(service.process.pid, 1)
        workers = children(service.process.pid)
        directory.rename(tmp_path / "elsewhere")
        service.process.send_signal(signal.SIGUSR2)
        service.wait_for("a new master cannot start: .*No such file or directory")
        wait_until(lambda: children(service.process.pid) == workers)
        assert address.exists()
        assert pid.exists()


# Signals during the start, and output that cannot be written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "TERM"])
def test_a_stop_signal_ends_a_start_without_a_traceback(tmp_path: Path, number: int) -> None:
    (tmp_path / "mine.py").write_text(f"import os\nos.kill(os.getpid(), {int(number)})\n")
    result = run(*SERVE, "-c", "mine.py", PLANTS_TOKENS=TOKEN, cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (-number, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "TERM"])
def test_a_stop_signal_during_a_start_leaves_no_files_behind(tmp_path: Path, number: int) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "from plants.hosting import hooks\n"
        "def on_starting(server):\n"
        "    hooks.on_starting(server)\n"
        "    assert sorted(os.listdir('files')) == ['metrics', 'pid'] and os.listdir('files/metrics')\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
    )
    (tmp_path / "files" / "metrics").mkdir(parents=True)
    options = ["-c", "mine.py", "--bind=127.0.0.1:0", "--pid=files/pid", "--worker-tmp-dir=files/metrics"]
    env = {"PLANTS_TOKENS": TOKEN, "PLANTS_METRICS_BIND": f"127.0.0.1:{free_port()}"}
    result = run(*SERVE, "--log-level=error", *options, cwd=tmp_path, **env)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert [*(tmp_path / "files").rglob("*")] == [tmp_path / "files" / "metrics"]


# The first worker waits until the second one has blocked SIGTERM. The second one fails while Gunicorn is stopping.
TWO_FAILING_WORKERS = """
import signal
def post_fork(server, worker):
    if worker.age == 1:
        open("pipe").close()
    else:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        open("pipe", "w").close()
        signal.sigwait({signal.SIGTERM})
    raise ValueError("no worker can start")
"""


def test_a_second_failing_worker_causes_no_second_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TWO_FAILING_WORKERS)
    os.mkfifo(tmp_path / "pipe")
    options = ["-c", "mine.py", "--bind=127.0.0.1:0", "--workers=2", "--log-level=critical"]
    result = run(*SERVE, *options, cwd=tmp_path, PLANTS_TOKENS=TOKEN, PLANTS_STORE="sqlite:///plants.db")
    lines = ["no worker can start", "no worker can start", "plants: Worker failed to boot."]
    assert (result.returncode, result.stderr.splitlines()) == (1, lines)


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_gunicorns_other_signals_do_not_end_or_suspend_a_start(tmp_path: Path) -> None:
    numbers = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)
    signals = "".join(f"os.kill(os.getpid(), {int(number)})\n" for number in numbers)
    (tmp_path / "mine.py").write_text(f"import os\n{signals}")
    with serving("-c", "mine.py", cwd=tmp_path) as service:
        assert service.send(method="GET", path="/readyz", headers=[]).status == 200


@pytest.mark.parametrize("command", ["token", "config", "help"])
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_standard_output_is_reported_in_one_line(command: str, unbuffered: str) -> None:
    env = environment(PYTHONUNBUFFERED=unbuffered)
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*PLANTS, command], env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (result.returncode, result.stderr) == (
        1,
        "plants: cannot write to standard output: No space left on device.\n",
    )


def test_a_deleted_working_directory_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    monkeypatch.setattr(sys, "argv", ["plants", "serve"])
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(
            SystemExit, match=r"^plants: the working directory cannot be used: No such file or directory\.$"
        ):
            cli.main()
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(13, "Permission denied", "/x"), "/x: Permission denied."),
        (OSError(5, "I/O error"), "[Errno 5] I/O error."),
    ],
    ids=["file", "no file"],
)
def test_an_os_error_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, error: OSError, line: str) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "_serve", fail)
    assert error_line(call("serve")) == line


@needs_psycopg
def test_serve_help_lists_gunicorns_options() -> None:
    from plants.stores.postgres import PostgresStore

    result = call("serve", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("usage: plants serve [gunicorn options]\n")
    assert "--worker-connections" in result.stdout
    assert settings.SETTINGS_HELP in result.stdout
    threads = f"{MemoryStore.worker_threads} for memory:, {SQLiteStore.worker_threads} for SQLite"
    assert f"  threads                 {threads}, {PostgresStore.worker_threads} for PostgreSQL\n" in result.stdout
    packaged = {name: value for name, value in vars(gunicorn_conf).items() if name in Config().settings}
    listed = result.stdout.partition("packaged configuration differs")[2]
    assert [name for name, value in packaged.items() if not callable(value) and name not in listed] == []
    assert gunicorn_conf.wsgi_app in listed
    assert gunicorn_conf.logger_class in listed
    assert gunicorn_conf.worker_class in listed


def test_an_unknown_option_of_serve_is_named() -> None:
    result = call("serve", "--nonsense", PLANTS_TOKENS=TOKEN)
    assert result.returncode == 2
    assert result.stderr == (
        "usage: plants serve [gunicorn options]\nplants serve: error: unrecognized arguments: --nonsense\n"
    )


def test_python_m_plants_is_the_same_command_as_plants() -> None:
    outputs = {subprocess.check_output([*command, "help"]) for command in (PLANTS, SCRIPT)}
    assert len(outputs) == 1
