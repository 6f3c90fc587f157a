"""What a hosted service adds around the application."""

from typing import Final

LAST_PORT: Final = 65535
