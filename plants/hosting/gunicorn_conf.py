"""Gunicorn's configuration of the hosted service; a command-line option overrides what is set here."""

from plants.hosting.startup import nworkers_changed, on_starting, post_fork

wsgi_app = "plants.wsgi:app"
worker_class = "gthread"
threads = 4
control_socket_disable = True

# The service needs nothing that a proxy could say of a request.
forwarded_allow_ips = ""
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}
