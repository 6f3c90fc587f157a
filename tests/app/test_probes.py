"""The responses of the probes."""

from typing import Any

import pytest
from webtest import TestApp as WebTestApp

from plants import MemoryStore
from plants.app import build_app
from plants.auth import BearerAuth
from plants.public_paths import public_resources
from plants.tokens import Tokens
from tests.contract import TOKEN


def client(**environ: Any) -> WebTestApp:
    store = MemoryStore()
    resources = public_resources(store)
    app = build_app(store, BearerAuth(Tokens([TOKEN]), public_paths=resources.keys()), resources)
    return WebTestApp(app, extra_environ=environ, lint=True)


@pytest.mark.parametrize(("path", "status"), [("/livez", "live"), ("/readyz", "ready")])
def test_a_probe_reports_the_status_of_the_service(path: str, status: str) -> None:
    assert client().get(path).json == {"status": status}


def test_a_stopping_service_is_not_ready_and_sends_retry_after() -> None:
    response = client(**{"server.stopping": True}).get("/readyz", status=503)
    assert response.json == {"error": 50300, "message": "The service is stopping."}
    assert response.headers["Retry-After"] == "1"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/openapi.json"])
def test_a_public_path_rejects_an_unknown_method(path: str) -> None:
    response = client().request(path, method="FOO", expect_errors=True)
    assert (response.status_int, response.json["error"]) == (405, 40500)


@pytest.mark.parametrize("path", ["/livez/", "//livez", "/livez%00", "/Livez", "/", "", "/plants"], ids=repr)
def test_a_path_that_is_not_public_needs_a_token(path: str) -> None:
    assert client().get(path, expect_errors=True).json["error"] == 40100
