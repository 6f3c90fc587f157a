"""``python -m plants`` is the command ``plants``."""

from plants.hosting.cli import main

main()
