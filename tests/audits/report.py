"""The options of an audit, and the lines that it prints about its checks and findings."""

import argparse
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple


class Verdict(NamedTuple):
    """Whether a check holds, and what it has measured."""

    holds: bool
    summary: str


def audit_parser(description: str | None) -> argparse.ArgumentParser:
    """Return an option parser whose help shows the docstring of an audit with its own line breaks."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_only_option(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Add the option that selects checks by their names."""
    help_text = "run only the check of this name; may be given several times"
    parser.add_argument("--only", action="append", default=[], choices=names, help=help_text)


def report(name: str, verdict: Verdict) -> bool:
    """Print the result of a check, and return whether it holds."""
    print(f"{'ok  ' if verdict.holds else 'FAIL'}  {name}: {verdict.summary}", flush=True)
    return verdict.holds


def report_findings(findings: Counter[str]) -> bool:
    """Print how often each finding occurred, and return whether none is a failure.

    The text of a failure starts with "!".
    """
    for finding, number in sorted(findings.items()):
        print(f"{number:9,} {finding}")
    return not any(finding.startswith("!") for finding in findings)
