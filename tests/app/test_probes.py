"""What the probes answer; when they do is tested with the hosted service."""

from typing import Any

import pytest
from webtest import TestApp as WebTestApp

from plants import MemoryStore
from plants.probes import WithoutToken, probes


@pytest.mark.parametrize(("path", "status"), [("/livez", "live"), ("/readyz", "ready")])
def test_a_probe_says_how_the_service_is(app: Any, path: str, status: str) -> None:
    assert WebTestApp(WithoutToken(app, probes(MemoryStore()))).get(path).json == {"status": status}


def test_a_service_that_stops_is_not_ready_and_says_when_to_come_back(app: Any) -> None:
    client = WebTestApp(WithoutToken(app, probes(MemoryStore())), extra_environ={"server.stopping": True})
    answer = client.get("/readyz", status=503)
    assert answer.json == {"error": 50300, "message": "The service is stopping."}
    assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/openapi.json"])
def test_a_probe_has_no_method_that_nobody_knows(app: Any, path: str) -> None:
    answer = WebTestApp(WithoutToken(app, probes(MemoryStore()))).request(path, method="FOO", expect_errors=True)
    assert (answer.status_int, answer.json["error"]) == (405, 40500)
