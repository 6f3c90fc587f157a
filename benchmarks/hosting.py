"""What the worker gives beside Gunicorn's threads: creates a second, and what a thousand stalled clients do to others.

    python -m benchmarks.hosting [--rounds 3] [--seconds 3] [--connections 1,16,64,256] [--stalled 1000]

Needs wrk (https://github.com/wg/wrk) on the PATH. Each round starts every server below afresh, one process with the
dictionary store, and loads it over loopback with each number of connections in turn. Printed are the medians of the
rounds; a ratio is the median of the rounds' own ratios.
"""

import argparse
import http.client
import itertools
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

TOKEN = "benchmark"
WORKER = "--worker-class=plants.hosting.worker.Worker"
THREADS = "gthread, 4 threads"
SERVERS = {
    "this worker": [WORKER, "--threads=1"],
    "this worker, 4 threads": [WORKER, "--threads=4"],
    THREADS: ["--worker-class=gthread", "--threads=4"],
}
DEADLINE_SECONDS = 5
# All ids have ten digits, so that the client makes a request by joining three strings.
WRK_SCRIPT = """
local head = 'POST /plants HTTP/1.1\\r\\nHost: localhost\\r\\nAuthorization: Bearer %s\\r\\n' ..
  'Content-Type: application/json\\r\\nContent-Length: 52\\r\\n\\r\\n{"id":'
local tail = ',"name":"Monstera","tag":"tropical"}'
local id = tonumber(os.getenv('FIRST_ID'))
request = function()
  id = id + 1
  return head .. string.format('%%d', id) .. tail
end
done = function(summary, latency, requests)
  io.write(string.format('{"creates":%%d,"seconds":%%f,"p99":%%f,"failures":%%d}\\n', summary.requests,
    summary.duration / 1e6, latency:percentile(99) / 1e3, summary.errors.status + summary.errors.connect
    + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
"""


class Server(NamedTuple):
    port: int
    worker: int


@contextmanager
def serving(options: list[str], log: int = subprocess.DEVNULL, **environ: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "plants", "serve", "--bind=127.0.0.1:0", "--keep-alive=75"]
    command += ["--worker-connections=4000", *options]
    settings = {"PLANTS_TOKENS": TOKEN, "PLANTS_STORE": "memory:"} | environ
    with subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        said = ""
        while not (worker := re.search(r"Booting worker with pid: (\d+)", said)):
            said += process.stderr.readline()
        address = re.search(r"Listening at: http://127.0.0.1:(\d+)", said)
        assert address
        try:
            create(int(address[1]), 0)
            yield Server(int(address[1]), int(worker[1]))
        finally:
            process.terminate()
            process.stderr.read()


def create(port: int, number: int, timeout: float = 30) -> float:
    """Create a plant on a new connection; give the seconds it took."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request("POST", "/plants", json.dumps({"id": number, "name": "Fern"}), headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    finally:
        connection.close()
    return time.perf_counter() - start


def load(port: int, connections: int, seconds: float, first_id: int) -> dict[str, float]:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(WRK_SCRIPT % TOKEN)
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}", "-s", script.name, f"http://127.0.0.1:{port}"]
        output = subprocess.check_output(command, env=os.environ | {"FIRST_ID": str(first_id)}, text=True)
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def measure_load(rounds: int, seconds: int, counts: list[int]) -> None:
    results: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for name, options in SERVERS.items():
            with serving(options) as server:
                load(server.port, 16, 1, 10**9)
                for place, count in enumerate(counts, start=2):
                    result = load(server.port, count, seconds, place * 10**9)
                    results.setdefault((name, count), []).append(result)
    print("| connections | server | creates/s | ratio | p99 ms | failures |")
    print("|---|---|---|---|---|---|")
    for count in counts:
        baseline = [result["creates"] / result["seconds"] for result in results[THREADS, count]]
        for name in SERVERS:
            found = results[name, count]
            rates = [result["creates"] / result["seconds"] for result in found]
            ratio = statistics.median(rate / base for rate, base in zip(rates, baseline, strict=True))
            p99 = statistics.median(result["p99"] for result in found)
            failures = sum(result["failures"] for result in found)
            print(f"| {count} | {name} | {statistics.median(rates):.0f} | {ratio:.2f} | {p99:.1f} | {failures:.0f} |")


def resident_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])


def measure_stalled(count: int) -> None:
    print("| server | stalled clients | slowest answer to another, ms | memory of each, KiB | all gone after, s |")
    print("|---|---|---|---|---|")
    for name, options in SERVERS.items():
        with serving(options, PLANTS_REQUEST_TIMEOUT=str(DEADLINE_SECONDS)) as server:
            print(f"| {name} | {count} | {stall(server, count)} |")


def stall(server: Server, count: int) -> str:
    head = b"POST /plants HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n"
    stalls = [b"", head, head + b'\r\n{"id": 1']
    numbers = itertools.count(1)
    for number in itertools.islice(numbers, 300):
        create(server.port, number)
    before = resident_kib(server.worker)
    start = time.monotonic()
    slowest = memory = 0.0
    clients: list[socket.socket] = []
    try:
        while time.monotonic() < start + DEADLINE_SECONDS or not all(map(is_answered, clients)):
            if len(clients) < count:
                for place in range(50):
                    clients.append(socket.create_connection(("127.0.0.1", server.port)))
                    clients[-1].sendall(stalls[place % len(stalls)])
            else:
                memory = memory or (resident_kib(server.worker) - before) / len(clients)
                time.sleep(0.005)
            slowest = max(slowest, create(server.port, next(numbers), timeout=DEADLINE_SECONDS))
    except TimeoutError:
        return f"no answer in {DEADLINE_SECONDS} s | |"
    finally:
        for client in clients:
            client.close()
    return f"{slowest * 1e3:.1f} | {memory:.1f} | {time.monotonic() - start:.1f}"


def is_answered(client: socket.socket) -> bool:
    try:
        return client.recv(65536, socket.MSG_DONTWAIT | socket.MSG_PEEK).startswith(b"HTTP/1.1 408 ")
    except BlockingIOError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", default="1,16,64,256")
    parser.add_argument("--stalled", type=int, default=1000)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    measure_load(arguments.rounds, arguments.seconds, [int(count) for count in arguments.connections.split(",")])
    print()
    measure_stalled(arguments.stalled)


if __name__ == "__main__":
    main()
