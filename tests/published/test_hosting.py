"""The service behind the proxies for which deploy/ has recipes."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import pytest

from tests.contract import AUTH, JSON_TYPE, new_plant
from tests.support.hosted import send_to, serving
from tests.support.needs import needs
from tests.support.proxies import COMMANDS, running_proxy


@pytest.fixture(scope="module", params=[pytest.param(name, marks=needs(name)) for name in COMMANDS])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a proxy in front of a service."""
    folder = tmp_path_factory.mktemp("proxy")
    with serving() as service, running_proxy(request.param, service.port, folder) as port:
        yield port


def test_the_service_works_behind_a_proxy_with_a_prefix(port: int) -> None:
    headers = [AUTH, JSON_TYPE]
    created = send_to(port, new_plant(), path="/v1/plants", headers=[*headers, ("X-Request-ID", "own-1")])
    assert (created.plant, created.headers["x-request-id"]) == ({"name": "Fern"}, "own-1")
    assert send_to(port, new_plant(), path="/v1/plants", headers=headers).error == 40003
    assert b"docs/page.js" in send_to(port, method="GET", path="/v1/docs", headers=[]).body
    description: Any = json.loads(send_to(port, method="GET", path="/v1/openapi.json", headers=[]).body)
    assert urljoin("http://host/v1/openapi.json", description["servers"][0]["url"]) == "http://host/v1/"


@pytest.mark.parametrize("port", [pytest.param("nginx", marks=needs("nginx"))], indirect=True)
def test_nginx_adds_the_cors_headers_to_every_response(port: int) -> None:
    asked = [("Origin", "https://garden.example.com"), ("Access-Control-Request-Method", "POST")]
    preflight = send_to(port, method="OPTIONS", path="/v1/plants", headers=asked)
    refused = send_to(port, new_plant(), path="/v1/plants", headers=[JSON_TYPE])
    assert (preflight.status, refused.status) == (204, 401)
    assert preflight.headers["access-control-allow-headers"] == "Authorization, Content-Type, X-Request-ID"
    for response in (preflight, refused):
        assert response.headers["access-control-allow-origin"] == "https://garden.example.com"
        assert response.headers["access-control-expose-headers"] == "Retry-After, X-Request-ID"
