"""Run both commands of the README as they stand, in the current folder, and call the service that the first one starts.

Arguments are appended to the command that runs the tests. In the end, this user must have no other process. This needs
nothing but Python, because the machine may have nothing else.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

README = Path("README.md").read_text(encoding="utf-8")
START, CURL, TEST = re.findall(r"```console\n(.*?)\n```", README, re.DOTALL)


def _send_the_request_of_the_readme(port: int) -> str:
    words = shlex.split(CURL)
    headers = dict(words[number + 1].split(": ") for number, word in enumerate(words) if word == "-H")
    request = urllib.request.Request(f"http://127.0.0.1:{port}/plants", words[-1].encode(), headers)
    with urllib.request.urlopen(request) as response:
        return str(response.read().decode()).removesuffix("\n")


def _processes_left_behind() -> list[str]:
    """Return the command lines of this user's processes, except for zombies, this one, and those that started it."""
    found = {}
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == os.getuid():
                status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
                parents[int(folder.name)] = int(status["PPid"])
                if status["State"][0] not in "ZX":
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):  # It has ended.
            continue
    process: int | None = os.getpid()
    while process:
        found.pop(process, None)
        process = parents.get(process)
    return list(found.values())


with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
environ = os.environ | {"GUNICORN_CMD_ARGS": f"--bind 127.0.0.1:{port}"}
shell = subprocess.Popen(START, shell=True, env=environ, stderr=subprocess.PIPE, start_new_session=True, text=True)
try:
    assert shell.stderr
    for line in shell.stderr:
        print(line, end="", flush=True)
        if "Booting worker" in line:
            break
    assert f"the response is `{_send_the_request_of_the_readme(port)}`" in README
finally:
    os.killpg(shell.pid, signal.SIGTERM)
    shell.communicate()
failed = subprocess.call(f"{TEST} {shlex.join(sys.argv[1:])}", shell=True)
for _ in range(10):
    if not (left := _processes_left_behind()):
        break
    time.sleep(1)
sys.exit(f"The tests left processes behind: {left}" if left else failed)
