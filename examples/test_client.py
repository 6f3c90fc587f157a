"""Test a client with the fixture that the package installs (in this folder: pytest test_client.py)."""

import json
import urllib.error
import urllib.request

import pytest


def create(url: str, token: str, **plant: object) -> object:
    """Create a plant: this function is the client under test."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/plants", json.dumps(plant).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def test_the_client_creates_a_plant(plants_server):
    assert create(plants_server.url, plants_server.token, id=1, name="Fern") == {"name": "Fern"}


def test_the_client_raises_if_the_store_is_down(plants_server):
    plants_server.store.fail()
    with pytest.raises(urllib.error.HTTPError, match="503") as raised:
        create(plants_server.url, plants_server.token, id=1, name="Fern")
    raised.value.close()
