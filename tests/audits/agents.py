"""Run the service under error reporters and tracing agents, and compare what its clients get.

    python -m tests.audits.agents
    python -m tests.audits.agents --only newrelic

None needs a collector. The audit installs them into a virtual environment of its own. With each agent and each store,
16 clients add the ids 1, 1 and 2 (of their own) again and again. An agent passes if all of this is true:

- The responses are 200, 400 (40003) and 200, as without an agent.
- The log has no traceback.
- Everything that got a 200 is stored, and nothing else.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from plants import open_store
from tests.audits.report import Verdict, add_only_option, audit_parser, report
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import CHECKOUT, environment, send_to
from tests.support.postgres_server import PostgresServer, server_directory
from tests.support.process import end, free_port, start, wait_until
from tests.support.servers import is_ready

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


@contextmanager
def serving(bin_: Path, agent: str, url: str, log: Path) -> Iterator[int]:
    """Serve the store at ``url`` under an agent, and yield the port."""
    port = free_port()
    env = environment(PLANTS_TOKENS=TOKEN, PLANTS_STORE=url) | QUIET
    env["PATH"] = f"{bin_}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as site, log.open("w") as output:
        if agent == "sentry":
            (Path(site) / "sitecustomize.py").write_text(SENTRY)
            env["PYTHONPATH"] = site
        command = [*AGENTS[agent], "plants", "serve", "--bind", f"127.0.0.1:{port}"]
        process = start([bin_ / command[0], *command[1:]], env=env, cwd=site, stdout=subprocess.DEVNULL, stderr=output)
        try:
            wait_until(lambda: is_ready(port) or process.poll() is not None)
            yield port
        finally:
            process.terminate()
            end(process)


def add(port: int, client: int) -> list[tuple[int, int, int]]:
    """Add the plants of a client; return the id, the status and the error code of each response."""
    results = []
    for number in range(ROUNDS):
        for offset in (1, 1, 2):
            plant_id = (client * ROUNDS + number) * 2 + offset
            response = send_to(port, new_plant(id=plant_id), headers=[AUTH, JSON_TYPE])
            code = json.loads(response.body).get("error", 0) if response.status != 200 else 0
            results.append((plant_id, response.status, code))
    return results


def check(bin_: Path, agent: str, url: str, log: Path) -> Verdict:
    """Run all clients against the service under one agent."""
    with serving(bin_, agent, url, log) as port, ThreadPoolExecutor(CLIENTS) as executor:
        results = [each for client in executor.map(lambda client: add(port, client), range(CLIENTS)) for each in client]
    found = Counter((status, code) for _, status, code in results)
    holds = found == {(200, 0): 2 * CLIENTS * ROUNDS, (400, 40003): CLIENTS * ROUNDS}
    acknowledged = {plant_id for plant_id, status, _ in results if status == 200}
    if not url.startswith("memory"):
        with closing(open_store(url)) as store:
            stored = {plant_id for plant_id in range(2 * CLIENTS * ROUNDS + 10) if store.get(plant_id)}
        holds = holds and stored == acknowledged
    tracebacks = log.read_text().count("Traceback")
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
                holds &= report(f"{agent}, {store}", check(bin_, agent, url, directory / "log"))
    sys.exit(not holds)


if __name__ == "__main__":
    main()
