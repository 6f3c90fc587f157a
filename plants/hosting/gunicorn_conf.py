"""Gunicorn's configuration of the hosted service; a command-line option overrides what is set here."""

import os

# Import this first, because it stops the start with one line if a setting is not usable.
from plants.hosting.hooks import (
    child_exit,
    nworkers_changed,
    on_reload,
    on_starting,
    post_worker_init,
    pre_exec,
    pre_fork,
    when_ready,
)

# isort: split
from plants.hosting.environment import store

wsgi_app = "plants.wsgi:app"
logger_class = "plants.hosting.logs.Logger"
worker_class = "plants.hosting.worker.Worker"
threads = store.worker_threads
# A stalled connection costs only the memory of its own buffers, and does not delay the others.
worker_connections = 4000
control_socket_disable = True
# The root of a container may be read-only and without /tmp.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # Gunicorn makes a new file

# The service needs no information from a proxy.
forwarded_allow_ips = ""
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}
