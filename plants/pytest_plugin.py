"""Fixtures for the tests of those who call the service or embed it; installed with the package, nothing to import."""

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from plants.testing import Client, Server


@pytest.fixture
def plants_app() -> "Client":
    """A WebTest client of a service in the process, with a new store and a valid token set."""
    client: Client = _testing().Client()
    return client


@pytest.fixture
def plants_server() -> "Iterator[Server]":
    """A service on a real port, with ``url``, ``token`` and ``store``."""
    with _testing().serve() as server:
        yield server


def _testing() -> ModuleType:
    # Not at the top: a session that uses none of this does not wait for it.
    try:
        import plants.testing
    except ModuleNotFoundError as error:
        pytest.fail(f"there is no {error.name}: run pip install 'plants[testing]'", pytrace=False)
    return plants.testing
