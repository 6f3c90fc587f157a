"""Run the service under error reporters and tracing agents, and compare what its clients get.

    python -m tests.audits.agents
    python -m tests.audits.agents --only newrelic

None needs a collector. The audit installs each into a virtual environment of its own. With each agent and each store,
16 clients add the ids 1, 1 and 2 (of their own) again and again. An agent passes if all of this is true:

- The responses are 200, 400 (40003) and 200, as without an agent.
- The log has no traceback.
- Everything that got a 200 is stored, and nothing else.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from plants import open_store
from tests.audits.report import Verdict, run_checks, together
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import CHECKOUT, Service
from tests.support.postgres_server import running_postgres, server_directory

CLIENTS = 16
ROUNDS = 10


class Agent(NamedTuple):
    """The packages of an agent, and the words before the command of the service."""

    packages: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()


INSTRUMENTATION = ("opentelemetry-instrumentation-falcon", "opentelemetry-instrumentation-wsgi")
AGENTS = {
    "none": Agent(),
    "sentry": Agent(("sentry-sdk",)),
    "opentelemetry": Agent(("opentelemetry-distro", *INSTRUMENTATION), ("opentelemetry-instrument",)),
    "ddtrace": Agent(("ddtrace",), ("ddtrace-run",)),
    "newrelic": Agent(("newrelic",), ("newrelic-admin", "run-program")),
    "elasticapm": Agent(("elastic-apm",), ("elasticapm-run",)),
}
SENTRY = 'import sentry_sdk; sentry_sdk.init("http://key@127.0.0.1:9/1", traces_sample_rate=1.0)'
QUIET = {
    "PLANTS_LOG_FORMAT": "text",
    **{f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")},
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_TRACE_STARTUP_LOGS": "false",
    "NEW_RELIC_DEVELOPER_MODE": "true",
    "NEW_RELIC_LICENSE_KEY": "0" * 40,
    "NEW_RELIC_LOG": "/dev/null",
    "ELASTIC_APM_DISABLE_SEND": "true",
    "ELASTIC_APM_CENTRAL_CONFIG": "false",
    "ELASTIC_APM_CLOUD_PROVIDER": "none",
}


def add(service: Service, client: int) -> list[tuple[int, int]]:
    """Add the plants of a client; return the id of each, and the status of its response, or the code of its error."""
    results = []
    for number in range(ROUNDS):
        for offset in (1, 1, 2):
            plant_id = (client * ROUNDS + number) * 2 + offset
            response = service.send(new_plant(id=plant_id), headers=[AUTH, JSON_TYPE])
            results.append((plant_id, 200 if response.status == 200 else response.error))
    return results


def check(bin_: Path, name: str, url: str) -> Verdict:
    """Run all clients against a service with this store under one agent."""
    command = [*AGENTS[name].wrapper, "plants", "serve", "--bind=127.0.0.1:0"]
    command[0] = str(bin_ / command[0])
    env = QUIET | {"PLANTS_TOKENS": TOKEN, "PLANTS_STORE": url, "PATH": f"{bin_}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as site:
        if name == "sentry":
            Path(site, "sitecustomize.py").write_text(SENTRY)
            env["PYTHONPATH"] = site
        with Service(command, Path(site), env) as service, ThreadPoolExecutor(CLIENTS) as threads:
            service.wait_until_it_serves()
            results = list(chain.from_iterable(threads.map(partial(add, service), range(CLIENTS))))
    found = Counter(code for _, code in results)
    holds = found == {200: 2 * CLIENTS * ROUNDS, 40003: CLIENTS * ROUNDS}
    if url != "memory:":
        acknowledged = {plant_id for plant_id, code in results if code == 200}
        with closing(open_store(url)) as store:
            holds &= {plant_id for plant_id in range(2 * CLIENTS * ROUNDS + 10) if store.get(plant_id)} == acknowledged
    tracebacks = "".join(service.lines).count("Traceback")
    return Verdict(holds and not tracebacks, f"{dict(found)}, {tracebacks} tracebacks")


def check_every_store(name: str) -> Verdict:
    """Install the service and an agent into a new environment, and run the clients with each store."""
    with server_directory() as directory, running_postgres(directory) as server:
        bin_ = directory / "venv/bin"
        subprocess.run([sys.executable, "-m", "venv", bin_.parent], check=True)
        subprocess.run([bin_ / "pip", "install", "-qq", f"{CHECKOUT}[postgres]", *AGENTS[name].packages], check=True)
        urls = ("memory:", f"sqlite:///{directory}/plants.db", server.url)
        return together(*(check(bin_, name, url) for url in urls))


if __name__ == "__main__":
    sys.exit(run_checks(__doc__, {name: partial(check_every_store, name) for name in AGENTS}))
