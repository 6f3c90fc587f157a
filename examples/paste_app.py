"""The application factories of paste.ini."""

from collections.abc import Callable, Iterable
from typing import Any

import plants


def store(_global_config: dict[str, str], tokens: str) -> Any:
    """Return the plant store with the tokens of the ini file."""
    return plants.create_app(tokens=tokens.split())


def garden(_global_config: dict[str, str]) -> Callable[..., Iterable[bytes]]:
    """Return the application of the host's own page."""

    def app(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"garden"]

    return app
