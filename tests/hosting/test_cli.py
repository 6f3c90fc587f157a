"""The command ``plants``."""

import re
import socket
import sys
from pathlib import Path

import plants
from plants import server
from plants.hosting.settings import SETTINGS
from tests.contract import TOKEN
from tests.support.hosted import Service, call, error_line, run
from tests.support.process import free_port


def test_help_and_version_name_commands_settings_and_the_server() -> None:
    result = call("--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.findall(r"^    (\w+) ", result.stdout, re.MULTILINE) == ["serve", "check", "token"]
    assert re.findall(r"PLANTS_\w+(?=[,.])", result.stdout) == list(SETTINGS)
    assert call().stdout == result.stdout
    assert "the exit status is 0 if it is, else 1" in call("check", "--help").stdout
    assert "print a new token to standard error" in call("token", "--help").stdout
    assert [len(token) for token in {call("token").stderr, call("token").stderr}] == [44, 44]  # with the line's end
    assert call("--version").stdout == f"plants {plants.__version__} ({server.implementation()} server)\n"


def test_plants_check_reports_that_a_service_is_ready_or_why_not(service: Service) -> None:
    name, url = f"127.0.0.1:{service.port}", f"http://127.0.0.1:{service.port}"
    local = f"http://localhost:{service.port}"
    proxy = {"http_proxy": f"http://127.0.0.1:{free_port()}", "no_proxy": ""}  # It must not be asked.
    for result, found in ((call("check", PORT=str(service.port)), local), (call("check", f"{name}/", **proxy), url)):
        assert (result.stdout, result.stderr, result.returncode) == (f"{found}/readyz: ready\n", "", 0)
    result = run(sys.executable, "-m", "plants", "check")  # Any service may listen there.
    assert "http://localhost:8000/readyz: " in result.stdout + result.stderr
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        checked = run(sys.executable, "-m", "plants", "check", PORT=port)
        assert error_line(checked) == f"http://localhost:{port}/readyz: timed out."
    for url, reason in [
        (f"http://127.0.0.1:{free_port()}/v1", "Connection refused."),
        ("http://a:b", "nonnumeric port: 'b'."),
        ("git://localhost", "unknown url type: git."),
    ]:
        line = error_line(call("check", url))
        assert line.startswith(url)
        assert line.endswith(reason)


def test_a_configuration_file_overrides_the_packaged_one(tmp_path: Path) -> None:
    (tmp_path / "gunicorn.conf.py").write_text("worker_connections = 8\n")  # It is not named, so it is not read.
    (tmp_path / "mine.py").write_text("worker_connections = 7\nkeepalive = 11\n")
    options = ["-c", "mine.py", "--check-config", "--print-config", "--keep-alive", "13"]
    result = call("serve", *options, PLANTS_TOKENS=TOKEN, PLANTS_STORE="sqlite:///plants.db", cwd=tmp_path)
    assert not (tmp_path / "plants.db").exists()
    found = dict(re.findall(r"^(\w+)\s+= (.*)$", result.stdout, re.MULTILINE))
    assert (found["worker_connections"], found["keepalive"]) == ("7", "13")
    assert (found["bind"], found["threads"], found["control_socket_disable"]) == ("['127.0.0.1:8000']", "4", "True")
    assert found["worker_class"] == "plants.hosting.worker.Worker"
