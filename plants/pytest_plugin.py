"""Pytest fixtures for tests that call or embed the service. Pytest finds them once the package is installed.

The fixtures import what they need, so that a session without them does not pay for it.
"""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from plants.testing import Server


@pytest.fixture
def plants_app() -> Any:
    """A ``webtest.TestApp`` that sends the first token of its ``deployment``, a new service in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # WebOb imports cgi on Python 3.11 and 3.12.
        from webtest import TestApp

    from plants.testing import Server

    deployment = Server()
    client = TestApp(deployment)
    client.authorization = ("Bearer", deployment.token)
    client.deployment = deployment
    return client


@pytest.fixture
def plants_server() -> "Iterator[Server]":
    """A new service on a real port, with ``url``, ``token``, ``headers``, ``store``, ``requests`` and ``fail()``."""
    from plants.testing import serve

    with serve() as server:
        yield server


@pytest.fixture(scope="session")
def plants_session_server() -> "Iterator[Server]":
    """One service on a real port for the whole session; ``reset()`` restores the initial state."""
    from plants.testing import serve

    with serve() as server:
        yield server
