"""Print options of bwrap, one word a line, that give a sandbox this machine's settings of pip.

The settings may name files and folders. Bind these, too.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

VARIABLES = re.compile(r"PIP_|SSL_CERT_FILE$|SSL_CERT_DIR$|REQUESTS_CA_BUNDLE$|(?i:https?|no)_proxy$")
settings = {name: value for name, value in os.environ.items() if VARIABLES.match(name)}
command = [sys.executable, "-m", "pip", "config", "list"]
for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
    name, value = line.split("=", 1)
    option = name.rpartition(".")[2].upper().replace("-", "_")
    settings.setdefault(f"PIP_{option}", " ".join(ast.literal_eval(value).split()))
for name, value in settings.items():
    print("--setenv", name, value, sep="\n")
named = [re.fullmatch(r"(file://)?(/.*)", word) for value in settings.values() for word in value.split()]
# An index in a folder has links to files beside it.
for path in sorted({Path(match[2]).parent if match[1] else Path(match[2]) for match in named if match}):
    if path.exists():
        # Otherwise, bwrap would make the folder of a file for root alone.
        print("--perms", "0755", "--dir", path.parent, "--ro-bind", path, path, sep="\n")
