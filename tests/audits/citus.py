"""Audit the service on a distributed engine such as Citus, while nodes of the cluster are killed and stopped.

    python -m tests.audits.citus --url postgresql://coordinator/plants --url postgresql://coordinator/plants \\
        --fault "ssh node3 pkill -9 postgres" "ssh node3 pg_ctl start" \\
        --fault "ssh node3 pkill -STOP postgres" "ssh node3 pkill -CONT postgres"

The cluster must run, and it must already have the table ``plants``; docs/stores.md has the statements that create this
table. Citus is at https://github.com/citusdata/citus. The audit starts a service for each URL. ``--fault`` takes two
commands: one that causes the fault, and one that ends it. A plain PostgreSQL server can be audited in the same way. The
exit status is 0 if every acknowledged plant is stored, no id is used by two plants, and every other plant is stored
whole or not at all.
"""

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain

import psycopg

from tests.audits.deployment import Deployment
from tests.audits.kills import adding_plants, audit_journal
from tests.audits.report import audit_parser, report, verdict_on

CLIENTS_PER_SERVICE = 16


def run(urls: Sequence[str], faults: Sequence[Sequence[str]], seconds: float, pause: float = 0) -> int:
    """Audit one service for each URL; return the exit status."""
    with ExitStack() as stack:
        services = [stack.enter_context(Deployment(url)) for url in urls]
        clients = CLIENTS_PER_SERVICE * len(services)
        with adding_plants(*(service.url for service in services), clients=clients, pause=pause) as journal:
            time.sleep(seconds)
            for command in chain.from_iterable(faults):
                subprocess.run(shlex.split(command), check=True)
                time.sleep(seconds)
        for service in services:
            service.start()  # This waits until the database is available again.
        findings = audit_journal(urls[0], journal)
        with psycopg.connect(urls[0]) as connection:
            [(twice,)] = connection.execute("SELECT count(*) - count(DISTINCT id) FROM plants").fetchall()
        if twice:
            findings["! ids that two plants use"] = twice
    slowest = max(response.ended - response.began for _, response in journal)
    print(f"slowest response: {slowest:.2f} s")
    return report("plants", verdict_on(findings))


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument(
        "--url", action="append", required=True, help="the URL of the coordinator; clients use all services at once"
    )
    parser.add_argument("--fault", action="append", nargs=2, default=[], metavar=("COMMAND", "END"))
    parser.add_argument(
        "--seconds",
        type=float,
        default=20,
        help="the seconds of load before the first fault and after each command (%(default)s)",
    )
    options = parser.parse_args()
    return run(options.url, options.fault, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
