"""Run the service under error reporters and tracing agents, and compare what its clients get.

    python -m tests.audits.agents
    python -m tests.audits.agents --only newrelic

None needs a collector. The audit installs each into a virtual environment of its own. With each agent and each store,
several clients add the same ids at once. An agent passes if all of this is true:

- For each id, one client gets a 200 and the others an Error 40003, as without an agent.
- The log has no traceback.
- Everything that got a 200 is stored, with its name and tag.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.audits.kills import ID_IN_USE, adding_plants, audit_journal
from tests.audits.report import Verdict, run_checks, together
from tests.contract import TOKEN
from tests.support.hosted import CHECKOUT, Service
from tests.support.postgres_server import running_postgres, server_directory
from tests.support.process import wait_until

CLIENTS = 16
RESPONSES = 480


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


def check(bin_: Path, name: str, url: str) -> Verdict:
    """Run all clients against a service with this store under one agent."""
    command = [*AGENTS[name].wrapper, "plants", "serve", "--bind=127.0.0.1:0"]
    command[0] = str(bin_ / command[0])
    env = QUIET | {"PLANTS_TOKENS": TOKEN, "PLANTS_STORE": url, "PATH": f"{bin_}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as site:
        if name == "sentry":
            Path(site, "sitecustomize.py").write_text(SENTRY)
            env["PYTHONPATH"] = site
        with Service(command, Path(site), env) as service:
            service.wait_until_it_serves()
            with adding_plants(f"http://127.0.0.1:{service.port}", clients=CLIENTS) as journal:
                wait_until(lambda: len(journal) >= RESPONSES)
    found = Counter(response.error or response.status for _, response in journal)
    holds = found.keys() == {200, ID_IN_USE} and found[200] == len({plant.id for plant, _ in journal})
    if url != "memory:":
        holds &= audit_journal(url, journal).keys() == {"acknowledged and stored"}
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
