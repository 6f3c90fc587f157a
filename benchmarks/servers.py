"""Measure how fast each WSGI server serves the hosted application, with one worker and the dictionary store.

    python -m benchmarks.servers [--rounds 3] [--seconds 3] [--connections 16] [--equal-heads]
    python -m benchmarks.servers --only "Gunicorn, as packaged" "Gunicorn, gthread" --connections 1 16 64 256
    python -m benchmarks.servers --only "Gunicorn, as packaged" "Granian, 1 thread" --compiled OTHER_VENV/bin

Each round starts every server afresh. The output has the medians of all rounds, and the sum of the failures. A ratio
compares a server with the first one; it is the median of the rounds' ratios.
"""

import argparse
import itertools
import os
import shlex
import subprocess
from collections import defaultdict
from pathlib import Path

from benchmarks.measure import TOKEN, Load, load, measured_with, median, median_ratio
from tests.support.servers import COMMANDS, running_server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[16])
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="SERVER")
    parser.add_argument("--equal-heads", action="store_true", help="make all requests equal except for the plant's id")
    parser.add_argument(
        "--compiled", metavar="BIN", help="also measure a compiled server; BIN is the folder of its command plants"
    )
    args = parser.parse_args()
    servers = {name: COMMANDS[name] for name in args.only}
    if args.compiled:
        plants = Path(args.compiled).resolve() / "plants"
        assert b"compiled server" in subprocess.check_output([plants, "--version"])
        servers["Gunicorn, compiled"] = f"{shlex.quote(str(plants))} serve --bind 127.0.0.1:PORT"
    env = os.environ | {"PLANTS_TOKENS": TOKEN, "PLANTS_STORE": "memory:"}
    found: dict[tuple[str, int], list[Load]] = defaultdict(list)
    for _, name in itertools.product(range(args.rounds), servers):
        with running_server(servers[name], env) as port:
            first_ids = itertools.count(10**9, 10**7)
            load(port, 16, 1, next(first_ids))  # Warm up.
            for count in args.connections:
                figures = load(port, count, args.seconds, next(first_ids), equal_heads=args.equal_heads)
                found[name, count].append(figures)
    headers = "equal headers" if args.equal_heads else "one header differs"
    print(f"{measured_with()}; {headers}; medians of {args.rounds} rounds\n")
    print("| connections | server | creates/s | ratio | p99 ms | failures |\n|---|---|---|---|---|---|")
    for count, name in itertools.product(args.connections, servers):
        loads = found[name, count]
        rate, p99, failures = median(loads)
        ratio = median_ratio(loads, to=found[args.only[0], count])
        print(f"| {count} | {name} | {rate:.0f} | {ratio:.2f} | {p99:.1f} | {failures} |")


if __name__ == "__main__":
    main()
