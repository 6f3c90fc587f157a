"""``python -m plants`` is the command ``plants``."""

import sys
from pathlib import Path

if not __package__:
    # On USR2 Gunicorn runs this file by its path, and Python puts the package's own folder on sys.path. That would make
    # plants.errors importable as errors.
    sys.path[0] = str(Path(__file__).parents[1])

from plants.hosting.cli import main

main()
