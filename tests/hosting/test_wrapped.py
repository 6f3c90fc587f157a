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
    del environ["REMOTE_ADDR"]
    while not Path(environ["QUERY_STRING"]).exists():  # An empty path is the working directory.
        time.sleep(0.01)
    return wrapped(dict(environ), start_response)
"""


LIVE, READY, CREATE = ("GET", "/livez"), ("GET", "/readyz"), ("POST", "/plants")


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_a_wrapper_that_blocks_or_copies_delays_and_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    with (
        serving("--threads=1", command=[*SERVE, "wrapper:app"], cwd=tmp_path, PLANTS_STORE="sqlite:///p.db") as service,
        ThreadPoolExecutor(30) as threads,
    ):

        def send(plant_id: int, method: str = "POST", path: str = "/plants") -> Response:
            return service.send(new_plant(id=plant_id), method=method, path=path, headers=[AUTH, JSON_TYPE])

        # Each of these has a thread of its own, so none waits for another, not even for many of another.
        for number, (blocked, count, others) in enumerate(
            [(LIVE, 1, [READY, CREATE]), (READY, 30, [LIVE, CREATE]), (CREATE, 1, [LIVE, READY])]
        ):
            method, path = blocked
            waiting = [threads.submit(send, number, method, f"{path}?{number}") for _ in range(count)]
            for other in others:
                assert send(number * 10 + 10, *other).status == 200
            assert not any(each.done() for each in waiting)
            (tmp_path / str(number)).touch()
            assert {each.result().status for each in waiting} == {200}
        for response, error in ((send(2), 40003), (send(2, "PUT"), 40500), (send(2, "PUT", "/no"), 40400)):
            line = service.line_of(response.headers["x-request-id"])
            assert (response.error, line["error_code"], line["remote_ip"]) == (error, error, "127.0.0.1")
