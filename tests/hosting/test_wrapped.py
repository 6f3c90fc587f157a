"""A service whose application somebody has wrapped: the wrapper may block, and may copy the environ."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract import AUTH, JSON_TYPE, Response, new_plant
from tests.support.hosted import SERVE, serving

WRAPPER = """
import time
from functools import partial
from pathlib import Path
from plants.wsgi import app as wrapped

def app(environ, start_response):
    while not Path(environ["QUERY_STRING"]).exists():  # An empty path is the working directory.
        time.sleep(0.01)
    return wrapped(dict(environ), start_response)
"""


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_a_wrapper_that_blocks_or_copies_delays_and_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    with (
        serving(command=[*SERVE, "wrapper:app"], cwd=tmp_path, PLANTS_STORE="sqlite:///plants.db") as service,
        ThreadPoolExecutor(1) as thread,
    ):

        def send(plant_id: int, method: str = "POST", path: str = "/plants") -> Response:
            return service.send(new_plant(id=plant_id), method=method, path=path, headers=[AUTH, JSON_TYPE])

        for plant_id, method, path in [(2, "GET", "/livez"), (3, "POST", "/plants")]:
            waiting = thread.submit(send, plant_id, method, f"{path}?{method}")
            assert send(plant_id * 10).status == 200
            assert send(1, "GET", "/livez").status == 200
            assert not waiting.done()
            (tmp_path / method).touch()
            assert waiting.result().status == 200
        response = send(3)
        assert response.error == 40003
        assert service.line_of(response.headers["x-request-id"])["error_code"] == 40003
