"""Kill the primary's node in a Patroni cluster under load, three times; then audit what was acknowledged.

    python -m tests.audits.patroni

This runs three nodes in strict synchronous mode and one etcd, on loopback, and the packaged service with a URL that
names all nodes. It needs Debian's packages patroni, python3-etcd, etcd-server and postgresql. The exit status is 0 if
all conditions of tests.audits.kills hold and no id is used by two plants.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psycopg

from tests.audits.deployment import Deployment
from tests.audits.kills import JournaledLoad, audit_load
from tests.audits.outages import running, statuses
from tests.audits.report import audit_parser
from tests.support.postgres_server import USER
from tests.support.process import children, comes_true, free_port, kill, start

# The newest installed PostgreSQL. On Debian 12, install no PostgreSQL that is newer than Debian's own, because Debian's
# Patroni does not support it.
BINARIES = str(max(Path("/usr/lib/postgresql").glob("*/bin"), default="not installed"))
# As in Patroni's defaults, loop_wait and retry_timeout are a third of the TTL.
SETTINGS = """
scope: plants
name: %(name)s
etcd3: {host: "127.0.0.1:%(etcd)d"}
restapi: {listen: "%(api)s", connect_address: "%(api)s"}
bootstrap:
  dcs:
    ttl: %(ttl)d
    loop_wait: %(third)d
    retry_timeout: %(third)d
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql: {use_pg_rewind: true}
  initdb: [data-checksums, encoding: UTF8, locale: C]
postgresql:
  listen: 127.0.0.1:%(port)d
  connect_address: 127.0.0.1:%(port)d
  data_dir: %(directory)s/data
  bin_dir: %(binaries)s
  pgpass: %(directory)s/pgpass
  parameters: {unix_socket_directories: %(directory)s}
  authentication:
    superuser: {username: postgres, password: audit}
    replication: {username: replicator, password: audit}
  pg_hba: [host all all 127.0.0.1/32 scram-sha-256, host replication all 127.0.0.1/32 scram-sha-256]
"""


def make_directory_for_postgres(directory: Path) -> None:
    directory.mkdir(0o700)
    shutil.chown(directory, USER or os.geteuid())


class Node:
    """Patroni and the PostgreSQL that it runs, with their data in one directory."""

    def __init__(self, parent: Path, name: str, etcd: int, ttl: int) -> None:
        self.name, self.port = name, free_port()
        self._api, self._directory = f"127.0.0.1:{free_port()}", parent / name
        make_directory_for_postgres(self._directory)
        self._settings = self._directory / "patroni.yml"
        values = {"name": name, "port": self.port, "api": self._api, "directory": self._directory}
        values |= {"etcd": etcd, "ttl": ttl, "third": ttl // 3, "binaries": BINARIES}
        self._settings.write_text(SETTINGS % values)

    def start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            command = ["patroni", str(self._settings)]
            self._patroni = start(command, user=USER, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill all processes of the node at once."""
        processes = [self._patroni.pid]
        with contextlib.suppress(OSError):
            postgres = int((self._directory / "data/postmaster.pid").read_text().split()[0])
            processes += [postgres, *children(postgres)]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        kill(self._patroni)

    def cluster(self) -> dict[str, dict[str, Any]]:
        """Return the cluster's members as this node reports them."""
        try:
            with urllib.request.urlopen(f"http://{self._api}/cluster", timeout=5) as response:
                return {member["name"]: member for member in json.load(response)["members"]}
        except (OSError, ValueError):
            return {}


def primary(nodes: list[Node]) -> Node | None:
    """Return the primary if each other node follows it and one is its synchronous standby, else None."""
    members = nodes[0].cluster()
    roles = [members[node.name]["role"] for node in nodes if node.name in members]
    healthy = [member for member in members.values() if member["state"] in {"running", "streaming"}]
    timelines = {member.get("timeline") for member in healthy}
    if len(healthy) < len(nodes) or len(timelines) > 1 or "leader" not in roles or "sync_standby" not in roles:
        return None
    return nodes[roles.index("leader")]


def wait_for_primary(nodes: list[Node]) -> Node:
    node = comes_true(lambda: primary(nodes), 120)
    assert node, nodes[0].cluster()
    return node


def fail_over(nodes: list[Node], load: JournaledLoad) -> float:
    """Kill the primary's node, restart it once another one accepts plants, and return the time of the kill."""
    node = wait_for_primary(nodes)
    other = next(other for other in nodes if other is not node)
    node.kill()
    killed = time.monotonic()
    # The other nodes report the killed node as the leader until its key expires.
    assert comes_true(lambda: other.cluster().get(node.name, {}).get("role") != "leader", 120)
    before = sum(load.acknowledged)
    assert comes_true(lambda: sum(load.acknowledged) > before, 60)
    node.start()
    wait_for_primary(nodes)
    return killed


def audit(nodes: list[Node], kills: int, clients: int) -> int:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    url = f"postgresql://postgres:audit@{hosts}/postgres?target_session_attrs=read-write"
    killed: list[float] = []
    wait_for_primary(nodes)
    with running(Deployment(url)) as service, JournaledLoad(service, clients) as load:
        for _ in range(kills):
            time.sleep(2)
            killed.append(fail_over(nodes, load))
        time.sleep(2)
    journal = [entry for part in load.journal for attempts in part.values() for entry in attempts]
    responses = [response for _, response in journal]
    for number, at in enumerate(killed, 1):
        first = min(response.ended for response in responses if response.status == 200 and response.began > at)
        print(f"kill {number}: first 200 after {first - at:.1f} s, until then {statuses(responses, at, first)}")
    with psycopg.connect(url) as connection:
        ids = [plant_id for (plant_id,) in connection.execute("SELECT id FROM plants")]
    acknowledged = {plant.id for plant, response in journal if response.status == 200}
    lost, twice = len(acknowledged.difference(ids)), len(ids) - len(set(ids))
    print(f"acknowledged: {len(acknowledged):,}, lost: {lost}, ids that two plants use: {twice}")
    return int(not audit_load(url, load) or lost + twice > 0)


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument("--ttl", type=int, default=30, help="the TTL of the leader's key, in seconds (%(default)s)")
    parser.add_argument("--kills", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--clients", type=int, default=4, help="(%(default)s)")
    options = parser.parse_args()
    version = subprocess.check_output(["patroni", "--version"], text=True).strip()
    postgres = subprocess.check_output([f"{BINARIES}/postgres", "--version"], text=True).strip()
    print(f"{version}, {postgres}, TTL {options.ttl} s, {options.clients} clients", flush=True)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        directory.chmod(0o755)
        make_directory_for_postgres(directory / "etcd")
        port, peers = free_port(), f"http://127.0.0.1:{free_port()}"
        command = ["etcd", f"--data-dir={name}/etcd", "--logger=zap", "--log-level=error"]
        command += [f"--{option}-client-urls=http://127.0.0.1:{port}" for option in ("listen", "advertise")]
        command += [f"--{option}-peer-urls={peers}" for option in ("listen", "initial-advertise")]
        etcd = start([*command, f"--initial-cluster=default={peers}"], user=USER)
        stack.callback(kill, etcd)
        nodes = [Node(directory, f"node{number}", port, options.ttl) for number in range(1, 4)]
        for node in nodes:
            node.start()
            stack.callback(node.kill)
        return audit(nodes, options.kills, options.clients)


if __name__ == "__main__":
    sys.exit(main())
