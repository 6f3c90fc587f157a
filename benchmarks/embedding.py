"""Measure import and start-up times in new processes, for hosts that embed the package and for its pytest plugin.

    python -m benchmarks.embedding [--rounds 21]

Each round runs each row in a new process; the output is the medians.
"""

import argparse
import statistics
import subprocess
import sys

from benchmarks.measure import measured_with

PRELUDE = "import time; {before}; began = time.perf_counter(); {timed}; print(time.perf_counter() - began)"
ROWS = {
    "import falcon, marshmallow": ("pass", "import falcon, marshmallow"),
    "from plants import create_app": ("pass", "from plants import create_app"),
    "a call of create_app, after its import": ("from plants import create_app", "create_app(tokens=['a'])"),
    "from plants import create_app, after falcon and marshmallow": (
        "import falcon, marshmallow",
        "from plants import create_app",
    ),
    "the pytest plugin, in a session": ("import pytest, _pytest.fixtures", "import plants.pytest_plugin"),
    "plants_server, with its first response and its shutdown": (
        "import pytest, plants.pytest_plugin, http.client",
        (
            "from plants.testing import serve; context = serve(); server = context.__enter__();"
            "client = http.client.HTTPConnection(server.url.removeprefix('http://')); client.request('GET', '/');"
            "client.getresponse().read(); client.close(); context.__exit__(None, None, None)"
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {row: [] for row in ROWS}
    for _ in range(args.rounds):
        for row, (before, timed) in ROWS.items():
            code = PRELUDE.format(before=before, timed=timed)
            output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            seconds[row].append(float(output))
    print(f"{measured_with()}; medians of {args.rounds} rounds\n\n| what | ms |\n|---|---|")
    for row, values in seconds.items():
        print(f"| {row} | {statistics.median(values) * 1e3:.1f} |")


if __name__ == "__main__":
    main()
