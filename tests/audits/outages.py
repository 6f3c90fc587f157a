"""Measure what clients see when a database stops or fails over, and when many clients add the same ids.

    python -m tests.audits.outages outage      PostgreSQL is stopped for 20 s under load
    python -m tests.audits.outages failover    a primary is killed under load, its synchronous standby promoted
    python -m tests.audits.outages race        64 clients add the same ids to a service with two workers

The exit status is 0 if all conditions of tests.audits.kills hold. In an outage or a failover, each request must also
get a 200, an Error 40003, or an Error 50300 with Retry-After.
"""

import contextlib
import itertools
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from plants import open_store
from tests.audits.bystander import Response
from tests.audits.deployment import ID_IN_USE, Client, Deployment
from tests.audits.kills import JournaledLoad, audit_load, audit_race, compete
from tests.audits.report import audit_parser, report_findings
from tests.support.postgres_server import PostgresServer


@contextmanager
def running(service: Deployment) -> Iterator[Deployment]:
    try:
        service.start()
        yield service
    finally:
        service.kill()


@contextmanager
def polled(service: Deployment, path: str) -> Iterator[list[Response]]:
    """Poll a probe up to ten times a second."""
    responses: list[Response] = []
    over = threading.Event()

    def poll() -> None:
        with closing(Client(service.url, service.token)) as client:
            while not over.wait(0.1):
                responses.append(client.request("GET", path))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(poll)
        try:
            yield responses
        finally:
            over.set()


def failures_in(responses: list[Response]) -> list[Response]:
    """Return the failures. An id in use is not a failure, because an earlier attempt may have been committed."""
    return [response for response in responses if response.status != 200 and response.error != ID_IN_USE]


def all_promised(failures: list[Response]) -> bool:
    """Return whether every failure is an Error 50300 with Retry-After, and print the others."""
    others = Counter(
        response.error or response.status
        for response in failures
        if response.error != 50300 or response.retry_after is None
    )
    print(f"failures other than an Error 50300 with Retry-After: {dict(others)}")
    return not others


def statuses(responses: list[Response], since: float, until: float) -> str:
    return str(
        dict(Counter(response.status for response in responses if since < response.began and response.ended < until))
    )


def outage(server: PostgresServer, seconds: float) -> bool:
    server.create()
    server.start()
    service = Deployment(server.url)
    probes = polled(service, "/livez"), polled(service, "/readyz")
    with running(service), probes[0] as live, probes[1] as ready, JournaledLoad(service, 64) as load:
        time.sleep(5)
        server.stop()
        stopped = time.monotonic()
        time.sleep(seconds)
        server.start()
        returned = time.monotonic()
        time.sleep(8)
    responses = [response for part in load.journal for attempts in part.values() for _, response in attempts]
    failures = failures_in(responses)
    print(f"creates while stopped:  {statuses(responses, stopped, returned)}")
    print(f"longest failed request: {max(response.ended - response.began for response in failures):.2f} s")
    print(f"/livez while stopped:   {statuses(live, stopped, returned)}")
    print(f"/readyz while stopped:  {statuses(ready, stopped + 1, returned)}")
    first = min(response.ended for response in responses if response.status == 200 and response.began > returned)
    last = max(response.ended for response in failures)
    print(f"after the restart: first 200 {first - returned:.2f} s, last failure {last - returned:.2f} s")
    return all_promised(failures) & audit_load(server.url, load)


def fail_over(primary: PostgresServer, standby: PostgresServer) -> bool:
    primary.create()
    standby.follow(primary)
    primary.start(synchronous_standby_names="standby")
    standby.start()
    url = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    service = Deployment(url, "--workers 2")
    with running(service), JournaledLoad(service, 32) as load:
        time.sleep(5)
        primary.kill()
        killed = time.monotonic()
        time.sleep(2)
        standby.execute("SELECT pg_promote()")
        promoted = time.monotonic()
        time.sleep(8)
    responses = [response for part in load.journal for attempts in part.values() for _, response in attempts]
    acknowledged = sorted(response.ended for response in responses if response.status == 200)
    gap = max(later - earlier for earlier, later in itertools.pairwise(acknowledged))
    first = min(ended for ended in acknowledged if ended > promoted)
    print(f"promoted {promoted - killed:.2f} s after the kill; first 200 {first - promoted:.2f} s after that")
    print(f"longest gap between two 200 responses: {gap:.2f} s")
    failures = failures_in(responses)
    return all_promised(failures) & audit_load(url, load)


def race_in(store_url: str, clients: int = 64, ids: int = 1000) -> bool:
    print(f"{store_url.partition(':')[0]}: {ids} ids, each added by {clients} clients")
    with running(Deployment(store_url, "--workers 2")) as service, closing(open_store(store_url)) as store:
        return report_findings(audit_race(store, compete([service], clients, ids)))


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument("scenario", choices=["outage", "failover", "race"])
    parser.add_argument("--seconds", type=float, default=20, help="the duration of the outage (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        directory.chmod(0o755)
        servers = [PostgresServer(directory / name) for name in ("postgres", "standby")]
        for server in servers:
            stack.callback(server.kill)
        if options.scenario == "outage":
            return int(not outage(servers[0], options.seconds))
        if options.scenario == "failover":
            return int(not fail_over(*servers))
        servers[0].create()
        servers[0].start()
        return int(not all([race_in(f"sqlite:///{directory}/plants.db"), race_in(servers[0].url)]))


if __name__ == "__main__":
    sys.exit(main())
