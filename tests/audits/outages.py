"""Measure what clients see when a database stops or fails over, and when many of them add the same ids.

python -m tests.audits.outages outage      PostgreSQL is stopped for 20 s under load
python -m tests.audits.outages fail-over   a primary is killed under load, its synchronous standby promoted
python -m tests.audits.outages race        64 clients add the same plants over two worker processes
"""

import contextlib
import itertools
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from plants import Plant, open_store
from tests.audits.bystander import Response
from tests.audits.deployment import ID_IN_USE, Client, Service, read_plant
from tests.audits.kills import Load, audit_load
from tests.audits.report import audit_parser
from tests.support.postgres_server import PostgresServer


@contextmanager
def running(service: Service) -> Iterator[Service]:
    try:
        service.start()
        yield service
    finally:
        service.kill()


@contextmanager
def polled(service: Service, path: str) -> Iterator[list[Response]]:
    """Poll a probe ten times a second."""
    responses: list[Response] = []
    over = threading.Event()

    def poll() -> None:
        with closing(Client(service.url, service.token)) as client:
            while not over.wait(0.1):
                responses.append(client.request("GET", path))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(poll)
        yield responses
        over.set()


def statuses(responses: list[Response], since: float, until: float) -> str:
    return str(
        dict(Counter(response.status for response in responses if since < response.began and response.ended < until))
    )


def outage(server: PostgresServer, seconds: float) -> None:
    server.create()
    server.start()
    service = Service(server.url)
    probes = polled(service, "/livez"), polled(service, "/readyz")
    with running(service), probes[0] as live, probes[1] as ready, Load(service, 64) as load:
        time.sleep(5)
        server.stop()
        stopped = time.monotonic()
        time.sleep(seconds)
        server.start()
        returned = time.monotonic()
        time.sleep(8)
    responses = [response for part in load.journal for attempts in part.values() for _, response in attempts]
    refused = [response for response in responses if response.status == 503]
    print(f"answers while stopped:  {statuses(responses, stopped, returned)}")
    print(f"longest wait for a 503: {max(response.ended - response.began for response in refused):.2f} s")
    print(f"503 as Error 50300 with Retry-After: {all(a.error == 50300 and a.retry_after for a in refused)}")
    print(f"/livez while stopped:   {statuses(live, stopped, returned)}")
    print(f"/readyz while stopped:  {statuses(ready, stopped + 1, returned)}")
    first = min(response.ended for response in responses if response.status == 200 and response.began > returned)
    last = max(response.ended for response in refused)
    print(f"after the return: first 200 {first - returned:.2f} s, last 503 {last - returned:.2f} s")
    audit_load(server.url, load)


def fail_over(primary: PostgresServer, standby: PostgresServer) -> None:
    primary.create()
    standby.follow(primary)
    primary.start(synchronous_standby_names="standby")
    standby.start()
    url = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    service = Service(url, "--workers 2")
    with running(service), Load(service, 32) as load:
        time.sleep(5)
        primary.kill()
        killed = time.monotonic()
        time.sleep(2)
        standby.execute("SELECT pg_promote()")
        promoted = time.monotonic()
        time.sleep(8)
    responses = [response for part in load.journal for attempts in part.values() for _, response in attempts]
    kept = sorted(response.ended for response in responses if response.status == 200)
    gap = max(later - earlier for earlier, later in itertools.pairwise(kept))
    first = min(ended for ended in kept if ended > promoted)
    print(f"promoted {promoted - killed:.2f} s after the kill; first 200 {first - promoted:.2f} s after that")
    print(f"longest gap between two 200: {gap:.2f} s")
    audit_load(url, load)


def race(store_url: str, clients: int = 64, plants: int = 1000) -> None:
    def compete(number: int) -> list[tuple[int, Response]]:
        with closing(Client(service.url, service.token)) as client:
            together.wait()
            return [(number, client.add(Plant(plant_id, f"of {number}"))) for plant_id in range(plants)]

    together = threading.Barrier(clients)
    with running(Service(store_url, "--workers 2")) as service, ThreadPoolExecutor(clients) as threads:
        rounds = list(zip(*threads.map(compete, range(clients)), strict=True))
    winners = [[number for number, response in one if response.status == 200] for one in rounds]
    others = Counter(response.error for one in rounds for _, response in one if response.status != 200)
    with closing(open_store(store_url)) as store:
        kept = sum(
            read_plant(store, plant_id) == Plant(plant_id, f"of {won[0]}") for plant_id, won in enumerate(winners)
        )
    print(f"{store_url.partition(':')[0]}: {plants} ids, wanted by {clients} clients each")
    print(f"ids by their number of winners: {dict(Counter(map(len, winners)))}; the winner's plant is kept: {kept}")
    print(f"the others were told {dict(others)} ({ID_IN_USE} is: in use)")


def main() -> None:
    parser = audit_parser(__doc__)
    parser.add_argument("scenario", choices=["outage", "fail-over", "race"])
    parser.add_argument("--seconds", type=float, default=20, help="how long the outage is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        directory.chmod(0o755)
        servers = [PostgresServer(directory / name) for name in ("postgres", "standby")]
        for server in servers:
            stack.callback(server.kill)
        if options.scenario == "outage":
            outage(servers[0], options.seconds)
        elif options.scenario == "fail-over":
            fail_over(*servers)
        else:
            race(f"sqlite:///{directory}/plants.db")
            servers[0].create()
            servers[0].start()
            race(servers[0].url)


if __name__ == "__main__":
    main()
