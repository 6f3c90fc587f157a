"""Each store over HTTP, hosted by the packaged configuration: creates a second, and the worker's CPU for each.

The rounds are interleaved: memory, SQLite, PostgreSQL, with each number of connections in turn. Every head differs from
the one before, as behind a proxy. Needs wrk (https://github.com/wg/wrk) on the PATH.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.support.deployment import TOKEN, Service
from tests.support.postgres_server import PostgresServer

# All ids have ten digits, so that all bodies have one length.
WRK_SCRIPT = """
local id = tonumber(os.getenv('FIRST_ID'))
local head = 'POST /plants HTTP/1.1\\r\\nHost: localhost\\r\\nAuthorization: Bearer %s\\r\\nX-Request-ID: %%d\\r\\n' ..
  'Content-Type: application/json\\r\\nContent-Length: 52\\r\\n\\r\\n{"id":%%d,"name":"Monstera","tag":"tropical"}'
request = function()
  id = id + 1
  return string.format(head, id, id)
end
done = function(summary)
  local errors = summary.errors
  io.write(string.format('[%%d, %%f, %%d]\\n', summary.requests, summary.duration / 1e6,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
"""


class Figures(NamedTuple):
    rate: float
    cpu: float


def cpu_seconds(pids: list[int]) -> float:
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def load(service: Service, connections: int, seconds: int, first_id: int) -> Figures:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(WRK_SCRIPT % TOKEN)
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}", "-s", script.name, service.url]
        before = cpu_seconds(service.workers())
        output = subprocess.check_output(command, env=os.environ | {"FIRST_ID": str(first_id)}, text=True)
        used = cpu_seconds(service.workers()) - before
    creates, took, failures = json.loads(output.splitlines()[-1])
    assert failures == 0, (urlsplit(service.url).port, output)
    return Figures(creates / took, used / creates * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", default="16,64")
    parser.add_argument("--workers", type=int, default=1, help="of the stores that keep (%(default)s)")
    parser.add_argument("--serve", default="", help="options for Gunicorn")
    options = parser.parse_args()
    counts = [int(count) for count in options.connections.split(",")]
    first_ids = itertools.count(10**9, 20_000_000)
    found: dict[tuple[str, int], list[Figures]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        directory.chmod(0o755)
        server = PostgresServer(directory / "postgres")
        server.create()
        stack.callback(server.kill)
        server.start()
        urls = {"memory": "memory:", "SQLite": f"sqlite:///{directory}/plants.db", "PostgreSQL": server.url}
        services = {}
        for store, url in urls.items():
            workers = 1 if store == "memory" else options.workers
            services[store] = Service(url, f"--workers {workers} {'' if store == 'memory' else options.serve}")
            stack.callback(services[store].kill)
            services[store].start()
        for _, count, (store, service) in itertools.product(range(options.rounds), counts, services.items()):
            found.setdefault((store, count), []).append(load(service, count, options.seconds, next(first_ids)))
    print(f"medians of {options.rounds} rounds of {options.seconds} s; CPU of the worker, in microseconds a create")
    for count, store in itertools.product(counts, urls):
        rates, costs = zip(*found[store, count], strict=True)
        beyond = statistics.median(
            f.cpu - m.cpu for f, m in zip(found[store, count], found["memory", count], strict=True)
        )
        part = statistics.median(
            f.rate / m.rate for f, m in zip(found[store, count], found["memory", count], strict=True)
        )
        print(
            f"{count:4} connections {store:10} {statistics.median(rates):8,.0f} creates/s ({part:.2f} of memory), "
            f"CPU {statistics.median(costs):5.0f}, beyond memory {beyond:4.0f}"
        )


if __name__ == "__main__":
    main()
