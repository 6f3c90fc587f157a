"""The parts of a hosted service around the application."""

from typing import Final

LAST_PORT: Final = 65535
