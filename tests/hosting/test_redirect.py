"""The redirect from the root to the page."""

import pytest
from webtest import TestApp as WebTestApp

from plants import MemoryStore
from plants.app import build_app
from plants.auth import BearerAuth
from plants.hosting.application import PAGE, redirect_browsers
from plants.public_paths import public_resources
from plants.tokens import Tokens
from tests.contract import AUTH, TOKEN

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture
def hosted() -> WebTestApp:
    store = MemoryStore()
    resources = public_resources(store) | PAGE
    auth = BearerAuth(Tokens([TOKEN]), public_paths=resources.keys())
    return WebTestApp(redirect_browsers(build_app(store, auth, resources)), lint=True)


def test_a_browser_is_redirected_from_the_root_to_the_page(hosted: WebTestApp) -> None:
    response = hosted.get("/?a=1", headers={"Accept": BROWSER})
    assert (response.status_int, response.headers["Location"]) == (302, "docs")
    message = "An interactive description is at the Location of this response."
    assert response.json == {"error": 30200, "message": message}
    head = hosted.head("/", headers={"Accept": BROWSER})
    assert (head.status_int, head.headers) == (302, response.headers)
    described = hosted.get("/openapi.json").json["components"]["schemas"]["Error"]["properties"]["error"]
    assert described["minimum"] <= response.json["error"]
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/*", "\xe9", ""], ids=ascii)
def test_only_browsers_are_redirected_from_the_root(hosted: WebTestApp, accept: str) -> None:
    assert hosted.get("/", headers={"Accept": accept}, expect_errors=True).json["error"] == 40100
    assert hosted.get("/", headers=dict([AUTH]), expect_errors=True).json["error"] == 40400
    assert hosted.post("/", headers={"Accept": BROWSER}, expect_errors=True).json["error"] == 40100
