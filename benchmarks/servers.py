"""Measure how fast each WSGI server serves the hosted application, with one worker and the dictionary store.

    python -m benchmarks.servers [--rounds 3] [--seconds 3] [--connections 16] [--equal-heads]
    python -m benchmarks.servers --only "Gunicorn, as packaged" "Gunicorn, gthread" --connections 1 16 64 256
    python -m benchmarks.servers --only "Gunicorn, as packaged" --also "compiled=/other/venv/bin/plants serve -b :PORT"
    python -m benchmarks.servers --only "Gunicorn, as packaged" Granian --also "Go=/the/file PORT" --cores 1 2

``--also`` adds any program that serves ``POST /plants`` and ``GET /readyz`` on PORT, such as those in benchmarks/peers,
which say how they are started. Each round starts every server afresh, once for each of ``--cores``, on whose first ones
it is pinned by taskset. The output has the medians of all rounds, and the sum of the failures. A ratio compares a
server's creates/s with those of the first one on as many cores; it is the median of the rounds' ratios. The CPU time is
that of all processes of the server.
"""

import argparse
import itertools
import os
import statistics
from collections import defaultdict

from benchmarks.measure import TOKEN, Load, cpu_seconds, load, measured_with, median, median_ratio
from tests.support.servers import COMMANDS, running_server


def main() -> None:
    own_cores = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[16])
    parser.add_argument("--cores", type=int, nargs="+", default=[len(own_cores)])
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="SERVER")
    parser.add_argument("--equal-heads", action="store_true", help="make all requests equal except for the plant's id")
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME=COMMAND", help="measure another program, too")
    args = parser.parse_args()
    servers = {name: COMMANDS[name] for name in args.only}
    servers |= dict(also.split("=", 1) for also in args.also)
    env = os.environ | {"PLANTS_TOKENS": TOKEN, "PLANTS_STORE": "memory:"}
    found: dict[tuple[str, int, int], list[Load]] = defaultdict(list)
    cpu_us: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for _, name, cores in itertools.product(range(args.rounds), servers, args.cores):
        pinned = ["taskset", "--cpu-list", ",".join(map(str, own_cores[:cores]))]
        with running_server(servers[name], env, prefix=pinned) as (port, process):
            first_ids = itertools.count(10**9, 10**7)
            load(port, 16, 1, next(first_ids))  # Warm up.
            for count in args.connections:
                before = cpu_seconds(process)
                figures = load(port, count, args.seconds, next(first_ids), equal_heads=args.equal_heads)
                found[name, cores, count].append(figures)
                cpu = (cpu_seconds(process) - before) / (figures.rate * args.seconds)
                cpu_us[name, cores, count].append(cpu * 1e6)
    headers = "equal headers" if args.equal_heads else "one header differs"
    print(f"{measured_with()}; {headers}; medians of {args.rounds} rounds\n")
    print("| connections | cores | server | creates/s | ratio | CPU us | p99 ms | failures |\n" + "|---" * 8 + "|")
    for count, cores, name in itertools.product(args.connections, args.cores, servers):
        loads = found[name, cores, count]
        rate, p99, failures, *_ = median(loads)
        ratio = median_ratio(loads, to=found[args.only[0], cores, count])
        cpu = statistics.median(cpu_us[name, cores, count])
        print(f"| {count} | {cores} | {name} | {rate:.0f} | {ratio:.2f} | {cpu:.1f} | {p99:.1f} | {failures} |")


if __name__ == "__main__":
    main()
