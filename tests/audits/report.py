"""Run the checks of an audit, and print a line about each."""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Verdict(NamedTuple):
    """Whether a check holds, and what it has measured."""

    holds: bool
    summary: str


def together(*verdicts: Verdict) -> Verdict:
    """Return the verdict on a check with several parts."""
    return Verdict(all(verdict.holds for verdict in verdicts), "; ".join(verdict.summary for verdict in verdicts))


def verdict_on(findings: Counter[str]) -> Verdict:
    """Return how often each finding occurred; a check holds unless the text of a finding starts with "!"."""
    summary = ", ".join(f"{number:,} x {finding}" for finding, number in sorted(findings.items()))
    return Verdict(not any(finding.startswith("!") for finding in findings), summary)


def audit_parser(description: str | None) -> argparse.ArgumentParser:
    """Return an option parser whose help shows the docstring of an audit with its own line breaks."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def report(name: str, verdict: Verdict) -> int:
    """Print the result of a check, and return the exit status: 0 if the check holds."""
    print(f"{'ok  ' if verdict.holds else 'FAIL'}  {name}: {verdict.summary}", flush=True)
    return int(not verdict.holds)


def run_checks(description: str | None, checks: Mapping[str, Callable[[], Verdict]]) -> int:
    """Run all checks, or those that the command line names, and return the exit status."""
    parser = audit_parser(description)
    help_text = "run only the check of this name; may be given several times"
    parser.add_argument("--only", action="append", choices=checks, help=help_text)
    return max(report(name, checks[name]()) for name in parser.parse_args().only or checks)
