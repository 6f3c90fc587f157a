"""Create the same plant twice, and print both response bodies, one per line."""

import json
import sys

from plant_store import AuthenticatedClient
from plant_store.api.plants import create_plant
from plant_store.models import NewPlant

url, token = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token)
for _ in range(2):
    print(json.dumps(create_plant.sync(client=client, body=NewPlant(id=1, name="Fern")).to_dict()))
