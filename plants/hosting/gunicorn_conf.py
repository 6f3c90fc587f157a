"""Gunicorn's configuration of the hosted service; a command-line option overrides what is set here."""

from plants.hosting.startup import THREADS, nworkers_changed, on_starting, post_fork, pre_exec

wsgi_app = "plants.wsgi:app"
worker_class = "plants.hosting.worker.Worker"
threads = THREADS
# A connection that stalls costs a few KiB, and nobody waits for it.
worker_connections = 4000
control_socket_disable = True

# The service needs nothing that a proxy could say of a request.
forwarded_allow_ips = ""
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}
