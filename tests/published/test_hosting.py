"""The service as docs/hosting.md starts it, over TLS, and behind proxies."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urljoin

import pytest

from tests.contract import AUTH, JSON_TYPE, new_plant
from tests.support.hosted import CHECKOUT, environment, send_to, serving
from tests.support.needs import needs
from tests.support.process import Process, free_port, wait_until

HOSTING = (CHECKOUT / "docs/hosting.md").read_text()
COMMANDS = {
    "nginx": ["nginx", "-p", ".", "-c", "config"],
    "caddy": ["caddy", "run", "--adapter=caddyfile", "--config=config"],
}
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


def snippet(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", HOSTING, re.DOTALL)
    return str(text)


def accepts_connections(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module", params=[pytest.param(name, marks=needs(name)) for name in COMMANDS])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a proxy in front of a service."""
    port, folder = free_port(), tmp_path_factory.mktemp("proxy")
    with ExitStack() as stack:
        service = stack.enter_context(serving())
        text = snippet(request.param).replace("127.0.0.1:8000", f"127.0.0.1:{service.port}")
        if request.param == "nginx":
            text = NGINX % f"server {{ listen 127.0.0.1:{port}; {text} }}"
        else:
            text = "{\nadmin off\n}\n" + text.replace("plants.example.com", f"http://127.0.0.1:{port}")
        (folder / "config").write_text(text)
        env = environment(HOME=str(folder))
        stack.enter_context(Process(COMMANDS[request.param], cwd=folder, env=env))
        wait_until(lambda: accepts_connections(port))
        yield port


def test_the_service_works_behind_a_proxy_with_a_prefix(port: int) -> None:
    headers = [AUTH, JSON_TYPE]
    assert send_to(port, new_plant(), path="/v1/plants", headers=headers).plant == {"name": "Fern"}
    assert send_to(port, new_plant(), path="/v1/plants", headers=headers).error == 40003
    assert b"docs/page.js" in send_to(port, method="GET", path="/v1/docs", headers=[]).body
    description: Any = json.loads(send_to(port, method="GET", path="/v1/openapi.json", headers=[]).body)
    assert urljoin("http://host/v1/openapi.json", description["servers"][0]["url"]) == "http://host/v1/"


@pytest.mark.parametrize("port", [pytest.param("nginx", marks=needs("nginx"))], indirect=True)
def test_nginx_adds_the_cors_headers_to_every_response(port: int) -> None:
    preflight = send_to(port, method="OPTIONS", path="/v1/plants", headers=[])
    refused = send_to(port, new_plant(), path="/v1/plants", headers=[JSON_TYPE])
    assert (preflight.status, refused.status) == (204, 401)
    assert preflight.headers["access-control-allow-headers"] == "Authorization, Content-Type"
    for response in (preflight, refused):
        assert response.headers["access-control-allow-origin"] == "https://garden.example.com"
