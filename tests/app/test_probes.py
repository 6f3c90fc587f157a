"""The public paths: probes and the interface description."""

from importlib.resources import files

import pytest
from webtest import TestApp as WebTestApp

import plants
from plants.errors import HEADERS
from plants.testing import Server
from tests.contract import AUTH, TOKEN
from tests.support.calls import sender

PUBLIC_BODIES = {
    "/livez": b'{"status": "live"}\n',
    "/readyz": b'{"status": "ready"}\n',
    "/openapi.json": files("plants").joinpath("openapi.json").read_bytes(),
}


@pytest.mark.parametrize(("path", "body"), PUBLIC_BODIES.items(), ids=PUBLIC_BODIES)
def test_a_public_path_needs_no_token_and_allows_only_get(path: str, body: bytes) -> None:
    app = WebTestApp(Server(), lint=True)
    response = app.get(path, headers={"Authorization": "Bearer wrong"})
    assert (response.body, {name: response.headers[name] for name in HEADERS}) == (body, HEADERS)
    assert app.head(path).headers == response.headers
    for method in ("POST", "FOO"):
        response = app.request(path, method=method, expect_errors=True)
        assert (response.json["error"], response.headers["Allow"]) == (40500, "GET, HEAD, OPTIONS")
    assert path == "/readyz" or app.options(path).headers["Allow"] == "GET, HEAD"
    embedded = plants.create_app(tokens=[TOKEN])
    assert sender(embedded)(method="GET", path=path, headers=[AUTH]).error == 40400


@pytest.mark.parametrize("path", ["/livez/", "//livez", "/livez%00", "/Livez", "/", "", "/plants"], ids=repr)
def test_a_path_that_is_not_public_needs_a_token(path: str) -> None:
    assert WebTestApp(Server(), lint=True).get(path, status=401).json["error"] == 40100


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("stopping", [False, True], ids=["no store", "stopping"])
def test_readyz_is_503_and_livez_200_without_a_store_or_at_the_end(method: str, stopping: bool) -> None:
    server = Server()
    app = WebTestApp(server, lint=True)
    app.request("/readyz", method=method, status=200)
    if stopping:
        app.extra_environ["server.stopping"] = True
    else:
        server.store.fail()
    app.request("/livez", method=method, status=200)
    response = app.request("/readyz", method=method, status=503)
    assert response.headers["Retry-After"] == "1"
    assert method == "HEAD" or response.json["error"] == 50300
