"""The two commands of the README, and the package that the first one installs."""

import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

from tests.support.hosted import CHECKOUT, Service, output_of
from tests.support.needs import needs

README = (CHECKOUT / "README.md").read_text()
START, CURL, _TEST = re.findall(r"```console\n(.*?)\n```", README, re.DOTALL)
# The last part starts the service.
INSTALL, _, SERVE = START.rpartition(" && ")


def start_and_send(start: str, folder: Path) -> None:
    """Start a service, send the README's request twice, and compare the responses with the README's."""
    command = ["sh", "-c", f"exec env {start}"]
    with Service(command, folder, {"GUNICORN_CMD_ARGS": "--bind 127.0.0.1:0"}) as service:
        service.wait_until_it_serves()
        request = CURL.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}")
        for sentence in ("the response is `{}`", "`{}`"):
            assert sentence.format(output_of("sh", "-c", request).removesuffix("\n")) in README
        assert service.stop() == 0


@needs("curl")
@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_readme_shows_the_responses_to_its_requests() -> None:
    start_and_send(SERVE.replace(".venv", shlex.quote(sys.prefix)), CHECKOUT)


@needs("curl")
@pytest.mark.network
def test_a_clean_copy_needs_only_the_readmes_commands(tmp_path: Path) -> None:
    copy = tmp_path / "plants"
    ignored = shutil.ignore_patterns(".git*", ".venv", ".*_cache", "build", "*.egg-info", "__pycache__")
    shutil.copytree(CHECKOUT, copy, ignore=ignored)
    # Pretend that an earlier build left a module that has been deleted since.
    (copy / "build/lib/plants").mkdir(parents=True)
    (copy / "build/lib/plants/deleted.py").touch()
    install = INSTALL.replace("python3", shlex.quote(sys.executable), 1)
    subprocess.run(["sh", "-c", install], cwd=copy, check=True, timeout=600)
    start_and_send(SERVE, copy)
    assert not [*copy.glob("*.egg-info")]  # The owner of the checkout could not replace that of root.
    installed = {path.name for path in copy.glob(".venv/lib/*/site-packages/plants/*.py")}
    assert installed == {path.name for path in CHECKOUT.glob("plants/*.py")}
    assert "interpreted server" in output_of(copy / ".venv/bin/plants", "--version")


def test_the_description_for_a_package_index_has_no_dead_link() -> None:
    description = metadata("plants")["Description"]
    assert "the errors (docs/interface.md#errors)" in description
    assert [link for link in re.findall(r"\]\(([^)]*)\)", description) if not link.startswith("https://")] == []
