"""What the probes answer; when they do is tested with the hosted service."""

from typing import Any

import pytest
from webtest import TestApp as WebTestApp

from plants import MemoryStore
from plants.probes import WithoutToken, probes


@pytest.mark.parametrize(("path", "status"), [("/livez", "live"), ("/readyz", "ready")])
def test_a_probe_says_how_the_service_is(app: Any, path: str, status: str) -> None:
    assert WebTestApp(WithoutToken(app, probes(MemoryStore()))).get(path).json == {"status": status}
