"""The paths beside the API: probes, interface description, redirect to the page."""

from importlib.resources import files
from typing import Any

import pytest
from webtest import TestApp as WebTestApp

import plants
from plants import MemoryStore, PlantStore, StoreUnavailable
from plants.app import build_app
from plants.auth import BearerAuth
from plants.hosting.application import PAGE, redirect_browsers
from plants.public_paths import public_resources
from plants.testing import FaultyStore
from plants.tokens import Tokens
from tests.contract import AUTH, TOKEN


def hosted(store: PlantStore, **environ: Any) -> WebTestApp:
    resources = public_resources(store) | PAGE
    auth = BearerAuth(Tokens([TOKEN]), public_paths=resources.keys())
    app = redirect_browsers(build_app(store, auth, resources))
    return WebTestApp(app, extra_environ=environ, lint=True)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/openapi.json"])
def test_a_public_path_needs_no_token_for_get_and_head(path: str) -> None:
    app = hosted(MemoryStore())
    assert app.get(path).json
    assert app.head(path).headers["Content-Length"] == str(len(app.get(path).body))
    assert app.get(path).headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/openapi.json"])
def test_a_public_path_allows_only_get_head_and_options(path: str) -> None:
    response = hosted(MemoryStore()).post(path, expect_errors=True)
    assert (response.status_int, response.json["error"], response.headers["Allow"]) == (
        405,
        40500,
        "GET, HEAD, OPTIONS",
    )


@pytest.mark.parametrize("path", ["/livez/", "//livez", "/healthz", "/", "/openapi.yaml"])
def test_only_public_paths_need_no_token(path: str) -> None:
    assert hosted(MemoryStore()).get(path, expect_errors=True).json["error"] == 40100


def test_a_service_without_its_store_is_live_but_not_ready() -> None:
    store = FaultyStore()
    store.fault = StoreUnavailable("stopped")
    app = hosted(store)
    assert app.get("/livez").status_int == 200
    response = app.get("/readyz", expect_errors=True)
    assert (response.status_int, response.json["error"]) == (503, 50300)
    assert response.headers["Retry-After"]


def test_the_service_is_not_ready_while_it_is_stopping() -> None:
    response = hosted(MemoryStore(), **{"server.stopping": True}).get("/readyz", expect_errors=True)
    assert (response.status_int, response.json["message"]) == (503, "The service is stopping.")


def test_the_interface_description_is_served_as_it_is_packaged() -> None:
    assert hosted(MemoryStore()).get("/openapi.json").body == files("plants").joinpath("openapi.json").read_bytes()


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/openapi.json"])
def test_an_embedded_app_has_no_probes(path: str) -> None:
    app = WebTestApp(plants.create_app(tokens=[TOKEN]))
    assert app.get(path, headers=dict([AUTH]), expect_errors=True).json["error"] == 40400


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def test_a_browser_is_redirected_from_the_root_to_the_page() -> None:
    app = hosted(MemoryStore())
    response = app.get("/?a=1", headers={"Accept": BROWSER})
    assert (response.status_int, response.headers["Location"]) == (302, "docs")
    message = "An interactive description is at the Location of this response."
    assert response.json == {"error": 30200, "message": message}
    head = app.head("/", headers={"Accept": BROWSER})
    assert (head.status_int, head.headers) == (302, response.headers)
    described = app.get("/openapi.json").json["components"]["schemas"]["Error"]["properties"]["error"]
    assert described["minimum"] <= response.json["error"]
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/*", "\xe9", ""], ids=ascii)
def test_only_browsers_are_redirected_from_the_root(accept: str) -> None:
    app = hosted(MemoryStore())
    assert app.get("/", headers={"Accept": accept}, expect_errors=True).json["error"] == 40100
    assert app.get("/", headers=dict([AUTH]), expect_errors=True).json["error"] == 40400
    assert app.post("/", headers={"Accept": BROWSER}, expect_errors=True).json["error"] == 40100
