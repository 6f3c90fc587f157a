"""Remove the names, and the list of mounts, that macOS and the BSDs lack, before a program imports anything else.

    PYTHONPATH=tests/support/macos .venv/bin/pytest tests/server

The patterns match what the package might use. ``sys.platform`` stays, because the standard library would import modules
that Linux lacks.
"""

import importlib
import re
import sys
from typing import Any

LINUX_ONLY = {
    "os": "eventfd|fdatasync|getrandom|memfd_create|O_(DIRECT|NOATIME|PATH|TMPFILE)|pidfd_open|pipe2|posix_fa.*|RWF_.*",
    "resource": "prlimit",
    "select": "epoll|EPOLL.*",
    "signal": "pidfd_send_signal|sigtimedwait|sigwaitinfo|SIG(POLL|PWR|RTMAX|RTMIN|STKFLT)",
    "socket": "AF_(NETLINK|VSOCK)|SOCK_(CLOEXEC|NONBLOCK)|SO_PEERCRED|TCP_(CORK|KEEPIDLE|QUICKACK)",
}

for module_name, pattern in LINUX_ONLY.items():
    module = importlib.import_module(module_name)
    for name in [name for name in vars(module) if re.fullmatch(pattern, name)]:
        delattr(module, name)


def without_list_of_mounts(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]) == "/proc/self/mountinfo":
        raise FileNotFoundError


sys.addaudithook(without_list_of_mounts)
