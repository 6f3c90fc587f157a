"""docs/tutorial.md, followed from its first to its last block."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.hosted import CHECKOUT, Service, environment
from tests.support.needs import needs
from tests.support.process import free_port

TUTORIAL = (CHECKOUT / "docs/tutorial.md").read_text()
(_, INSTALL), *STEPS = re.findall(r"^```(\w+)\n(.*?)\n^```$", TUTORIAL, re.DOTALL | re.MULTILINE)


def run(command: str, folder: Path, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    words = ["sh", "-c", command]
    return subprocess.run(words, cwd=folder, env=env, check=True, timeout=600, capture_output=True, text=True)


@needs("curl")
@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_tutorial_works_from_the_first_to_the_last_block(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    env = environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    outputs: list[str] = []
    command = token = ""
    with ExitStack() as service:
        for language, step in STEPS:
            if language == "json":
                # If a second response follows, the reader has sent the same request again.
                output = outputs.pop() if outputs else run(command, tmp_path, env).stdout
                assert json.loads(output) == json.loads(step)
            elif step.endswith("plants serve"):
                service.close()
                start = ["sh", "-c", f"exec env {step} --bind {address}"]
                service.enter_context(Service(start, tmp_path, env)).wait_until_it_serves()
            else:
                command = step.replace("127.0.0.1:8000", address).replace("Bearer TOKEN", f"Bearer {token}")
                result = run(command, tmp_path, env)
                outputs, token = [result.stdout], result.stderr.strip()
                assert '"error"' not in result.stdout
                assert "sqlite3" not in step or f"prints `{result.stdout.splitlines()[-1]}`" in TUTORIAL
    assert (tmp_path / "tokens").read_text().startswith("sha256:")


@pytest.mark.network
def test_the_tutorial_installs_the_command(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "*.egg-info")
    shutil.copytree(CHECKOUT, tmp_path / "plants", ignore=ignored)
    command = INSTALL.replace("python3", shlex.quote(sys.executable), 1)
    assert run(f"{command} && plants --version", tmp_path / "plants", environment()).stdout.startswith("plants ")
