"""``python -m plants`` is the command ``plants``."""

import sys
from pathlib import Path

if not __package__:
    # On USR2 Gunicorn executes sys.argv again, where this file is a path; what lies beside it are modules of a package.
    sys.path[0] = str(Path(__file__).parents[1])

from plants.hosting.cli import main

main()
