"""Run the service under error reporters and tracing agents, and compare what its clients get.

    python -m tests.audits.agents
    python -m tests.audits.agents --only newrelic

None needs a collector. The audit installs them into a virtual environment of its own. With each agent and each store,
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
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from plants import open_store
from tests.audits.report import Verdict, add_only_option, audit_parser, report
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import CHECKOUT, Service
from tests.support.postgres_server import PostgresServer, server_directory

CLIENTS = 16
ROUNDS = 10
PACKAGES = ["sentry-sdk", "opentelemetry-distro", "opentelemetry-instrumentation-falcon"]
PACKAGES += ["opentelemetry-instrumentation-wsgi", "ddtrace", "newrelic", "elastic-apm"]
SENTRY = 'import sentry_sdk; sentry_sdk.init("http://key@127.0.0.1:9/1", traces_sample_rate=1.0)'
# The words before the command, for each agent.
AGENTS: dict[str, list[str]] = {
    "none": [],
    "sentry": [],
    "opentelemetry": ["opentelemetry-instrument"],
    "ddtrace": ["ddtrace-run"],
    "newrelic": ["newrelic-admin", "run-program"],
    "elasticapm": ["elasticapm-run"],
}
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


def install(directory: Path) -> Path:
    """Install the service and the agents into a new environment, and return the folder of its commands."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    pip = [str(directory / "bin/pip"), "install", "--quiet"]
    subprocess.run([*pip, f"{CHECKOUT}[postgres]", *PACKAGES], check=True)
    return directory / "bin"


def add(service: Service, client: int) -> list[tuple[int, int]]:
    """Add the plants of a client; return the id of each, and the status of its response, or the code of its error."""
    results = []
    for number in range(ROUNDS):
        for offset in (1, 1, 2):
            plant_id = (client * ROUNDS + number) * 2 + offset
            response = service.send(new_plant(id=plant_id), headers=[AUTH, JSON_TYPE])
            results.append((plant_id, 200 if response.status == 200 else response.error))
    return results


def check(bin_: Path, agent: str, url: str) -> Verdict:
    """Run all clients against a service with this store under one agent."""
    command = [*AGENTS[agent], "plants", "serve", "--bind=127.0.0.1:0"]
    command[0] = str(bin_ / command[0])
    env = QUIET | {"PLANTS_TOKENS": TOKEN, "PLANTS_STORE": url, "PATH": f"{bin_}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as site:
        if agent == "sentry":
            Path(site, "sitecustomize.py").write_text(SENTRY)
            env["PYTHONPATH"] = site
        with Service(command, Path(site), env) as service, ThreadPoolExecutor(CLIENTS) as threads:
            service.wait_until_it_serves()
            results = [each for part in threads.map(partial(add, service), range(CLIENTS)) for each in part]
    found = Counter(code for _, code in results)
    holds = found == {200: 2 * CLIENTS * ROUNDS, 40003: CLIENTS * ROUNDS}
    if url != "memory:":
        acknowledged = {plant_id for plant_id, code in results if code == 200}
        with closing(open_store(url)) as store:
            holds &= {plant_id for plant_id in range(2 * CLIENTS * ROUNDS + 10) if store.get(plant_id)} == acknowledged
    tracebacks = "".join(service.lines).count("Traceback")
    return Verdict(holds and not tracebacks, f"{dict(found)}, {tracebacks} tracebacks")


def main() -> None:
    """Run the checks, and exit with 1 if one fails."""
    parser = audit_parser(__doc__)
    add_only_option(parser, AGENTS)
    only = parser.parse_args().only or AGENTS
    holds = True
    with ExitStack() as stack:
        directory = stack.enter_context(server_directory())
        bin_ = install(directory / "venv")
        server = PostgresServer(directory / "postgres")
        server.create()
        server.start()
        stack.callback(server.stop)
        for agent in only:
            server.execute("DROP TABLE IF EXISTS plants")
            urls = {"memory": "memory:", "sqlite": f"sqlite:///{directory}/{agent}.db", "postgres": server.url}
            for store, url in urls.items():
                holds &= report(f"{agent}, {store}", check(bin_, agent, url))
    sys.exit(not holds)


if __name__ == "__main__":
    main()
