"""Shared parts of the benchmarks: load with wrk, medians, and a line with the date, the commit and the machine.

Needs wrk (https://github.com/wg/wrk) on the PATH.
"""

import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.support.process import children

TOKEN = "benchmark"
# One header differs in each request, as behind a proxy, unless EQUAL_HEADS is set. All ids have ten digits, so that all
# bodies have the same length.
WRK_SCRIPT = """
local id = tonumber(os.getenv('FIRST_ID'))
local field = os.getenv('EQUAL_HEADS') and 'X-Request-ID: 1\\r\\n' or 'X-Request-ID: %d\\r\\n'
local head = 'POST /plants HTTP/1.1\\r\\nHost: localhost\\r\\nAuthorization: Bearer ' .. os.getenv('TOKEN') .. '\\r\\n'
local body = 'Content-Type: application/json\\r\\nContent-Length: 52\\r\\n\\r\\n' ..
  '{"id":%d,"name":"Monstera","tag":"tropical"}'
request = function()
  id = id + 1
  return head .. string.format(field, id) .. string.format(body, id)
end
done = function(summary, latency)
  local errors = summary.errors
  io.write(string.format('[%f, %f, %d, %f, %d]\\n', summary.requests / summary.duration * 1e6,
    latency:percentile(99) / 1e3, errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1e3, summary.requests - errors.status))
end
"""


class Load(NamedTuple):
    """The result of wrk: responses per second, percentiles of the latency in ms, failed requests, and creates."""

    rate: float
    p99: float
    failures: int
    p50: float
    created: int


def load(port: int, connections: int, seconds: int, first_id: int, *, equal_heads: bool = False) -> Load:
    """Create plants as fast as a service responds; ``first_id`` must have ten digits."""
    environ = {"FIRST_ID": str(first_id), "TOKEN": TOKEN} | ({"EQUAL_HEADS": "1"} if equal_heads else {})
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(WRK_SCRIPT)
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}", "-s", script.name, f"http://127.0.0.1:{port}"]
        output = subprocess.check_output(command, env=os.environ | environ, text=True)
    return Load(*json.loads(output.splitlines()[-1]))


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process and its descendants have used so far; 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        descendants = children(process)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # proc_pid_stat(5): utime, stime, and the same of the children that have ended
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, descendants))


def median(loads: Iterable[Load]) -> Load:
    """Return the medians of several rounds, and the sums of the failures and of the creates."""
    rates, p99s, failures, p50s, created = zip(*loads, strict=True)
    middle = statistics.median
    return Load(middle(rates), middle(p99s), sum(failures), middle(p50s), sum(created))


def median_ratio(loads: Iterable[Load], to: Iterable[Load]) -> float:
    """Divide the rates of two loads in each round, and return the median of these ratios."""
    return statistics.median(one.rate / other.rate for one, other in zip(loads, to, strict=True))


def measured_with() -> str:
    """Return a line with the date, the commit, the machine and the Python version."""
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True).strip()
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next(line.partition(": ")[2] for line in cpuinfo.splitlines() if line.startswith("model name"))
    cores = len(os.sched_getaffinity(0))
    return f"{time.strftime('%Y-%m-%d')}, {commit}, {model}, {cores} cores, Python {platform.python_version()}"
