"""Pytest fixtures for tests that call or embed the service. Pytest finds them once the package is installed."""

import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from plants.testing import Server


@pytest.fixture
def plants_app() -> Any:
    """A ``webtest.TestApp`` of a new in-process service, its ``deployment``, which sends the service's first token."""
    deployment = _need("plants.testing").Deployment()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # WebOb imports cgi on Python 3.11 and 3.12.
        client = _need("webtest").TestApp(deployment)
    client.authorization = ("Bearer", deployment.token)
    client.deployment = deployment
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


def _need(module: str) -> Any:
    # The import is here so that a session without these fixtures does not pay for it.
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        pytest.fail(f"there is no {error.name}: run pip install 'plants[testing]'", pytrace=False)
