"""Proxies with the recipes in deploy/, in front of a service on this machine."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.hosted import CHECKOUT, environment
from tests.support.process import Process, accepts_connections, free_port, wait_until

COMMANDS = {
    "nginx": ["nginx", "-p", ".", "-c", "config"],
    "caddy": ["caddy", "run", "--adapter=caddyfile", "--config=config"],
    "haproxy": ["haproxy", "-db", "-f", "config"],
}
RECIPES = {"nginx": "nginx.conf", "caddy": "Caddyfile", "haproxy": "haproxy.cfg"}
NGINX = """
daemon off;
pid nginx.pid;
error_log stderr notice;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    %s
}
"""


@contextmanager
def running_proxy(name: str, upstream_port: int, folder: Path) -> Iterator[int]:
    """Run a proxy with its recipe in front of a service, and yield the proxy's port."""
    port = free_port()
    text = (CHECKOUT / "deploy" / RECIPES[name]).read_text().replace("127.0.0.1:8000", f"127.0.0.1:{upstream_port}")
    if name == "nginx":
        text = NGINX % text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    elif name == "caddy":
        text = "{\nadmin off\n}\n" + text.replace("plants.example.com", f"http://127.0.0.1:{port}")
    else:
        text = re.sub("bind .*", f"bind 127.0.0.1:{port}", text)
    (folder / "config").write_text(text)
    with Process(COMMANDS[name], cwd=folder, env=environment(HOME=str(folder))):
        wait_until(lambda: accepts_connections(port))
        yield port
