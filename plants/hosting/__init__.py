"""The hosted service: the application with settings, logs, metrics and a command, run by Gunicorn."""

import signal
import sys


def exit_on_signals() -> None:
    """Exit on ``INT`` and ``TERM`` until Gunicorn handles them.

    A container's process 1 ignores a signal that has no handler, and the imports before that take long.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
