"""The commands and the snippets of the README."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import metadata
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import plants
from tests.contract import TOKEN
from tests.support.calls import call
from tests.support.hosted import CHECKOUT, Service
from tests.support.needs import needs

README = (CHECKOUT / "README.md").read_text()
START, CURL, _TEST = re.findall(r"```console\n(.*?)\n```", README, re.DOTALL)
(EMBEDDING,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def curl(command: str, service: Service) -> dict[str, str]:
    """Send the request of a curl command to the service's own port, and return the response's body."""
    _, url, *words = shlex.split(command)
    options = list(zip(words[::2], words[1::2], strict=True))
    headers = [(name, value) for option, header in options if option == "-H" for name, value in [header.split(": ")]]
    (body,) = [value.encode() for option, value in options if option == "-d"]
    assert urlsplit(url).netloc == "127.0.0.1:8000"
    document: dict[str, str] = json.loads(service.send(body, path=urlsplit(url).path, headers=headers).body)
    return document


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy of the checkout, in which the README's first command has made a virtual environment."""
    clone = tmp_path_factory.mktemp("clone") / "plants"
    # Tests read .ci/run and .dockerignore, so leave out only those hidden files that no test needs.
    hidden = (".git*", ".venv", ".*_cache", ".coverage*", ".hypothesis")
    shutil.copytree(CHECKOUT, clone, ignore=shutil.ignore_patterns(*hidden, "build", "*.egg-info", "__pycache__"))
    # Pretend that an earlier build left a module that has been deleted since.
    (clone / "build/lib/plants").mkdir(parents=True)
    (clone / "build/lib/plants/deleted.py").touch()
    # Drop the last part, which starts the service; each test starts its own.
    setup, _, _ = START.rpartition(" && ")
    command = setup.replace("python3", shlex.quote(sys.executable), 1)
    subprocess.run(["sh", "-c", command], cwd=clone, check=True, timeout=600)
    return clone


def files_of(clone: Path) -> set[Path]:
    """Return the paths of the files in the clone, without its virtual environment and bytecode."""
    paths = {path.relative_to(clone) for path in clone.rglob("*") if path.is_file()}
    return {path for path in paths if path.parts[0] != ".venv" and "__pycache__" not in path.parts}


def responses_of_a_start(folder: Path, environment: Path) -> list[dict[str, str]]:
    """Start the service with the README's command, send the README's requests, and return the responses."""
    command = START.rpartition(" && ")[2].replace(".venv", shlex.quote(str(environment)))
    with Service(["sh", "-c", f"exec env {command}"], folder, {"GUNICORN_CMD_ARGS": "--bind 127.0.0.1:0"}) as service:
        service.wait_until_it_serves()
        responses = [curl(CURL, service), curl(CURL, service)]
        assert service.stop() == 0
    return responses


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_readme_shows_the_responses_to_its_requests() -> None:
    plant, error = map(json.dumps, responses_of_a_start(CHECKOUT, Path(sys.prefix)))
    assert f"the response is `{plant}`" in README
    assert f"`{error}`" in README


@pytest.mark.network
def test_a_clean_copy_needs_only_the_readmes_commands(clone: Path) -> None:
    plant, error = responses_of_a_start(clone, Path(".venv"))
    assert ("error" in plant, "error" in error) == (False, True)
    installed = {path.name for path in clone.glob(".venv/lib/*/site-packages/plants/*.py")}
    assert installed == {path.name for path in CHECKOUT.glob("plants/*.py")}
    version = subprocess.run([clone / ".venv/bin/plants", "--version"], capture_output=True, text=True, check=True)
    assert "interpreted server" in version.stdout


@pytest.mark.network
@needs("cc")
def test_compiling_a_wheel_writes_nothing_into_the_checkout(clone: Path, tmp_path: Path) -> None:
    """A checkout may be read-only."""
    before = files_of(clone)
    build = [str(clone / ".venv/bin/pip"), "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), "."]
    subprocess.run(build, cwd=clone, env=os.environ | {"PLANTS_COMPILE": "1"}, check=True, timeout=600)
    (wheel,) = tmp_path.iterdir()
    assert not wheel.name.endswith("-any.whl")
    assert files_of(clone) == before


@pytest.mark.network
def test_the_wheel_alone_serves_from_an_empty_directory(clone: Path, tmp_path: Path) -> None:
    command = [str(clone / ".venv/bin/plants"), "serve", "--bind", "127.0.0.1:0"]
    with Service(command, tmp_path, {"PLANTS_TOKENS": "secret"}) as service:
        service.wait_until_it_serves()
        assert "error" not in curl(CURL, service)
        description = service.send(method="GET", path="/openapi.json", headers=[])
        assert json.loads(description.body)["info"]["version"] == "1.0.0"
        assert service.stop() == 0


@pytest.mark.network
def test_the_source_distribution_has_all_that_its_tests_need(clone: Path) -> None:
    checkout = {path for path in files_of(clone) if not path.parts[0].endswith(("build", "egg-info"))}
    script = "python -m venv .builder && .builder/bin/pip install --quiet build && .builder/bin/python -m build --sdist"
    command = script.replace("python", shlex.quote(sys.executable), 1)
    subprocess.run(["sh", "-c", command], cwd=clone, check=True, timeout=300)
    (archive,) = (clone / "dist").iterdir()
    with tarfile.open(archive) as files:
        packed = {name.partition("/")[2] for name in files.getnames()}
    assert {str(path) for path in checkout} - packed == set()


def test_the_description_for_a_package_index_has_no_dead_link() -> None:
    description = metadata("plants")["Description"]
    assert description.startswith("# Plant Store Service")
    assert "the errors (docs/interface.md#errors)" in description
    assert [link for link in re.findall(r"\]\(([^)]*)\)", description) if not link.startswith("https://")] == []


def test_the_snippet_creates_an_application() -> None:
    names: dict[str, object] = {}
    exec(EMBEDDING.replace("secret", TOKEN), names)
    assert call(names["app"], None, CONTENT_LENGTH="0").error == 40001


def test_every_public_name_exists() -> None:
    assert sorted(plants.__all__) == plants.__all__
    assert all(hasattr(plants, name) for name in plants.__all__)
