"""The command line and the report of an audit: options, a line for each check or finding, and the exit status."""

import argparse
from collections import Counter
from typing import NamedTuple


class Verdict(NamedTuple):
    """The result of a check."""

    holds: bool
    seen: str


def audit_parser(description: str | None) -> argparse.ArgumentParser:
    """Return an option parser whose help is the unchanged docstring of an audit."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_service_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a service, or configure the one that is started."""
    parser.add_argument(
        "--address", default="", help="HOST:PORT of a service; by default the audit starts one for each check"
    )
    parser.add_argument("--token", default="", help="a valid token, with --address")
    parser.add_argument("--master", type=int, default=0, help="its master's process id, to measure memory and files")
    parser.add_argument(
        "--store", default="memory", choices=["memory", "sqlite"], help="the store of a service that the audit starts"
    )
    parser.add_argument("--workers", type=int, default=1, help="its number of workers")
    parser.add_argument("--request-timeout", type=float, default=5, help="its request timeout in seconds (%(default)s)")


def report(name: str, verdict: Verdict) -> bool:
    """Print the result of a check, and return whether it holds."""
    print(f"{'ok  ' if verdict.holds else 'FAIL'}  {name}: {verdict.seen}", flush=True)
    return verdict.holds


def report_findings(findings: Counter[str]) -> bool:
    """Print the number of each finding, and return whether none is a failure, which starts with "!"."""
    for finding, number in sorted(findings.items()):
        print(f"{number:9,} {finding}")
    return not any(finding.startswith("!") for finding in findings)
