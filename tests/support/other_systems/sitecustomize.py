"""Remove the names that another system lacks, before a program imports anything else.

    PYTHONPATH=tests/support/other_systems SIMULATED_SYSTEM=macOS .venv/bin/pytest tests/server

The other systems are ``macOS``, which stands for the BSDs too, and ``Windows``. The patterns match what the package
might use. ``sys.platform`` stays, because the standard library would import modules that this system lacks.
"""

import importlib
import os
import re
import sys

LINUX_ONLY = {
    "os": "eventfd|fdatasync|getrandom|memfd_create|O_(DIRECT|NOATIME|PATH|TMPFILE)|pidfd_open|pipe2|posix_fa.*|RWF_.*",
    "resource": "prlimit",
    "select": "epoll|EPOLL.*",
    "signal": "pidfd_send_signal|sigtimedwait|sigwaitinfo|SIG(POLL|PWR|RTMAX|RTMIN|STKFLT)",
    "socket": "AF_(NETLINK|VSOCK)|SOCK_(CLOEXEC|NONBLOCK)|SO_PEERCRED|TCP_(CORK|KEEPIDLE|QUICKACK)",
}
UNIX_ONLY = {
    "os": "f?chown|fchmod|fork|(get|set)(e?[ug]id|groups|pgid|priority|sid)|getloadavg|killpg|lockf|mkfifo|nice|"
    "O_(CLOEXEC|DIRECTORY|D?SYNC|NOCTTY|NOFOLLOW|NONBLOCK)|p(read|write)v?|readv|writev|"
    "register_at_fork|sched_.*|sendfile|f?statvfs|ST_.*|sync|sysconf|uname|wait(3|4|id)?|WNOHANG|WIF.*",
    "select": "poll|POLL.*|PIPE_BUF",
    "signal": "alarm|pause|pthread_.*|setitimer|sigwait|SIG_(BLOCK|SETMASK|UNBLOCK)|"
    "SIG(ALRM|CHLD|CONT|HUP|KILL|PIPE|QUIT|STOP|TSTP|TTIN|TTOU|USR1|USR2|WINCH)",
    "socket": "AF_UNIX|CMSG_.*|recv_fds|send_fds|SCM_.*|SO_REUSEPORT",
    "time": "clock_gettime|tzset",
}
UNIX_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")


def _remove(names: dict[str, str]) -> None:
    for module_name, pattern in names.items():
        module = importlib.import_module(module_name)
        for name in [name for name in vars(module) if re.fullmatch(pattern, name)]:
            delattr(module, name)


system = os.environ.get("SIMULATED_SYSTEM")
if system:
    _remove(LINUX_ONLY)
if system == "Windows":
    import asyncio  # noqa: F401  # On Linux, it needs some of the names itself.

    _remove(UNIX_ONLY)
    sys.modules.update(dict.fromkeys(UNIX_MODULES))  # type: ignore[arg-type]  # An import of None is an ImportError.
