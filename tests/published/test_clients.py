"""Clients of the service that tools generate from the interface description."""

import json
import shlex
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from plants.testing import Server
from tests.support.hosted import CHECKOUT
from tests.support.needs import needs

PYTHON_CLIENT = (
    f"{shlex.quote(sys.executable)} -m venv env && env/bin/pip install --quiet openapi-python-client >&2 && "
    "env/bin/openapi-python-client generate --path openapi.json --output-path plant_store --meta none >&2 && "
    "env/bin/python client.py URL TOKEN"
)
TYPESCRIPT_CLIENT = (
    "npm install --silent --no-audit --no-fund && npm run --silent build >&2 && node client.js URL TOKEN"
)


@pytest.mark.network
@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(PYTHON_CLIENT, id="openapi-python-client"),
        pytest.param(TYPESCRIPT_CLIENT, marks=needs("node", "npm"), id="openapi-typescript and openapi-fetch"),
    ],
)
def test_a_client_creates_a_plant_and_gets_an_error(plants_server: Server, tmp_path: Path, commands: str) -> None:
    shutil.copytree(CHECKOUT / "tests/published/clients", tmp_path, dirs_exist_ok=True)
    (tmp_path / "openapi.json").write_bytes(files("plants").joinpath("openapi.json").read_bytes())
    script = commands.replace("URL", plants_server.url).replace("TOKEN", f"'{plants_server.token}'")
    result = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    plant, error = map(json.loads, result.stdout.splitlines())
    assert plant == {"name": "Fern"}
    assert error["error"] == 40003
