"""Pytest fixtures for tests that call or embed the service. Pytest finds them once the package is installed."""

import warnings
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from plants._webtest import Client
    from plants.testing import Server


@pytest.fixture
def plants_app() -> "Client":
    """A WebTest client of a new in-process service; it sends the service's first token."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # WebOb imports cgi on Python 3.11 and 3.12.
        client: Client = _need("plants._webtest").Client()
    return client


@pytest.fixture
def plants_server() -> "Iterator[Server]":
    """A new service on a real port, with ``url``, ``token``, ``headers``, ``store``, ``requests`` and ``fail()``."""
    with _need("plants.testing").serve() as server:
        yield server


@pytest.fixture(scope="session")
def plants_session_server() -> "Iterator[Server]":
    """One service on a real port for the whole session; ``reset()`` restores the initial state."""
    with _need("plants.testing").serve() as server:
        yield server


def _need(module: str) -> ModuleType:
    # The import is here so that a session without these fixtures does not pay for it.
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        pytest.fail(f"there is no {error.name}: run pip install 'plants[testing]'", pytrace=False)
