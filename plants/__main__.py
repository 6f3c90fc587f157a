"""``python -m plants`` is the command ``plants``."""

import sys
from pathlib import Path

if not __package__:
    # On USR2 Gunicorn runs sys.argv again, in which this file is a path. Its folder on sys.path would make top-level
    # modules of the package's own.
    sys.path[0] = str(Path(__file__).parents[1])

from plants.hosting.cli import main

main()
