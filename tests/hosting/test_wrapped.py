"""A service whose application somebody has wrapped: the wrapper may block, and may copy the environ."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract import AUTH, JSON_TYPE, new_plant
from tests.support.hosted import Service, serving

WRAPPER = """
import time
from functools import partial
from pathlib import Path
from plants.wsgi import app as wrapped

def app(environ, start_response):
    while environ["QUERY_STRING"] == "wait" and not Path("continue").exists():
        time.sleep(0.01)
    return wrapped(dict(environ), start_response)
"""
CONFIGURATION = """
from plants.hosting.gunicorn_conf import *
wsgi_app = "wrapper:app"
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    (tmp_path / "conf.py").write_text(CONFIGURATION)
    with serving("--config=conf.py", cwd=tmp_path, PLANTS_STORE="sqlite:///plants.db") as service:
        yield service


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_call_that_blocks_delays_no_other_client(service: Service, tmp_path: Path, method: str) -> None:
    path = {"GET": "/livez", "POST": "/plants"}[method]
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(
            service.send, new_plant(), method=method, path=f"{path}?wait", headers=[AUTH, JSON_TYPE]
        )
        for plant_id in range(2, 6):
            assert service.send(new_plant(id=plant_id), headers=[AUTH, JSON_TYPE]).status == 200
            assert service.send(method="GET", path="/livez", headers=[]).status == 200
        assert not waiting.done()
        (tmp_path / "continue").touch()
        assert waiting.result().status == 200


def test_the_log_has_the_code_of_an_error_whatever_wraps_the_application(service: Service) -> None:
    for _ in range(2):
        response = service.send(new_plant(), headers=[AUTH, JSON_TYPE])
    assert response.error == 40003
    assert service.line_of(response.headers["x-request-id"])["error_code"] == 40003
