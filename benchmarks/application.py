"""Measure the CPU time of a create in this process, without a server, step by step.

    python -m benchmarks.application [--rounds 15] [--creates 5000]

Each round calls all applications below, one after the other, and measures the CPU time of the process. Each request has
a new WSGI environ. The first application is a Falcon application that reads the body and returns constant bytes. Each
of the others adds one step, and the last is the service. The output has the median of all rounds for each application,
and the median ratio of the last application to the first.
"""

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import falcon

import plants
from benchmarks.measure import measured_with
from plants.auth import BearerAuth
from plants.falcon_defaults import App, Router
from plants.fast_path import loader
from plants.json_body import read_json
from plants.schemas import NewPlantSchema
from plants.tokens import Tokens

TOKEN = "benchmark"
LOAD = loader(NewPlantSchema())


class Steps:
    """A resource that returns constant bytes after 0 to 3 steps of a create: parse, validate, store."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.store = plants.MemoryStore()

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = b'{"name": "Monstera", "tag": "tropical"}'
        if self.steps == 0:
            req.stream.read(req.content_length)
            return
        document = read_json(req, 1_048_576)
        if self.steps == 1:
            return
        plant = LOAD(document)
        if self.steps == 3:
            self.store.add(plant)


def with_route(app: Any, steps: int) -> Any:
    app.add_route("/plants", Steps(steps))
    return app


def bearer() -> BearerAuth:
    return BearerAuth(Tokens([TOKEN]), router=Router())


STEPS: dict[str, Callable[[], Any]] = {
    "Falcon, read the body, constant bytes": lambda: with_route(falcon.App(), 0),
    "strict methods and paths, headers": lambda: with_route(App(), 0),
    "the bearer token": lambda: with_route(App(bearer()), 0),
    "media type, strict JSON": lambda: with_route(App(bearer()), 1),
    "validation by the schema": lambda: with_route(App(bearer()), 2),
    "the dictionary store": lambda: with_route(App(bearer()), 3),
    "serialization by the schema: the whole service": lambda: plants.create_app(tokens=[TOKEN]),
}


def environ(number: int) -> dict[str, Any]:
    body = b'{"id": %d, "name": "Monstera", "tag": "tropical"}' % number
    return {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/plants",
        "QUERY_STRING": "",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_AUTHORIZATION": f"Bearer {TOKEN}",
        "HTTP_HOST": "localhost:8000",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "8000",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.url_scheme": "http",
    }


def microseconds(app: Any, creates: int) -> float:
    statuses = set()

    def start_response(status: str, _headers: object) -> None:
        statuses.add(status)

    began = time.process_time()
    for number in range(creates):
        app(environ(number), start_response)
    took = time.process_time() - began
    assert statuses == {"200 OK"}
    return took / creates * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--creates", type=int, default=5_000)
    args = parser.parse_args()
    rounds = [{name: microseconds(step(), args.creates) for name, step in STEPS.items()} for _ in range(args.rounds)]
    print(f"{measured_with()}; medians of {args.rounds} rounds of {args.creates} creates\n")
    print("| up to this step | us | more |\n|---|---|---|")
    before = 0.0
    for name in STEPS:
        median = statistics.median(round_[name] for round_ in rounds)
        print(f"| {name} | {median:.2f} | {median - before:+.2f} |")
        before = median
    first, *_, last = STEPS
    ratio = statistics.median(round_[last] / round_[first] for round_ in rounds)
    print(f"| ratio: the service / the first row | {ratio:.2f} | |")


if __name__ == "__main__":
    main()
