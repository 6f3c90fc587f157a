"""The command ``plants``, which is also ``python -m plants``."""

import signal
import sys


def main() -> None:
    """Run the command that ``sys.argv`` names. ``INT`` and ``TERM`` end it until Gunicorn handles them."""
    # A container's process 1 ignores a signal that has no handler, and the imports take long.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    from plants.hosting import cli

    cli.main()


if __name__ == "__main__":
    main()
