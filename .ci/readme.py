"""Run both commands of the README as they stand, in the current folder, and call the service that the first one starts.

This needs nothing but Python, because the machine may have nothing else.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

README = Path("README.md").read_text(encoding="utf-8")
START, CURL, TEST = re.findall(r"```console\n(.*?)\n```", README, re.DOTALL)


def _send_the_request_of_the_readme(port: int) -> str:
    words = shlex.split(CURL)
    headers = dict(words[number + 1].split(": ") for number, word in enumerate(words) if word == "-H")
    request = urllib.request.Request(f"http://127.0.0.1:{port}/plants", words[-1].encode(), headers)
    with urllib.request.urlopen(request) as response:
        return str(response.read().decode())


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
sys.exit(subprocess.call(TEST, shell=True))
