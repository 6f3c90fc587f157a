"""What a line of the log costs, to a file, and a request's place in the metrics: CPU time, without a server.

    python -m benchmarks.observing [--rounds 15] [--requests 20000]

Printed are the medians of all rounds. The requests differ in their ids and times, as they do in life.
"""

import argparse
import itertools
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

ANSWERS = {
    "a success": ("200 OK", b'{"name": "Monstera", "tag": "tropical"}'),
    "a failure": ("400 Bad Request", b'{"error": 40003, "message": "The id 17 is in use."}'),
}


def microseconds(step: Callable[[dict[str, Any], Any, float], None], answer: Any, requests: int) -> float:
    environs = [
        {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/plants",
            "REMOTE_ADDR": "127.0.0.1",
            "plants.request_id": f"0123456789ab-{number:x}",
        }
        for number in range(requests)
    ]
    seconds = [number % 1000 / 1e6 for number in range(requests)]
    began = time.process_time()
    for environ, taken in zip(environs, seconds, strict=True):
        step(environ, answer, taken)
    return (time.process_time() - began) / requests * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=20_000)
    options = parser.parse_args()
    # The results go to where standard output was, and the lines of the log to a file in its place.
    with (
        os.fdopen(os.dup(1), "w") as results,
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryDirectory() as folder,
    ):
        os.dup2(log.fileno(), 1)
        os.environ |= {"PROMETHEUS_MULTIPROC_DIR": folder, "PLANTS_TOKENS": "benchmark", "PLANTS_LOG_FORMAT": "json"}
        from plants.hosting.logs import AccessLog
        from plants.hosting.metrics import Metrics
        from plants.server.answer import make_answer

        steps = {"a line of the log": AccessLog(logging.INFO).write, "a request counted": Metrics().count_answer}
        for (step, call), (answer, parts) in itertools.product(steps.items(), ANSWERS.items()):
            whole = make_answer(parts[0], [], parts[1], is_head=False)
            rounds = [microseconds(call, whole, options.requests) for _ in range(options.rounds)]
            print(f"{step}, {answer:10} {statistics.median(rounds):6.2f} us", file=results, flush=True)


if __name__ == "__main__":
    main()
