"""A store of another package: with this one installed, PLANTS_STORE=redis://host:6379/0 works everywhere."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from plants import Plant, PlantIdInUse, PlantStore, StoreUnavailable


class RedisStore(PlantStore):
    """Plants as JSON, under a key each. They survive a power cut if the server has ``appendfsync always``."""

    worker_threads = 16
    multiprocess = True

    def __init__(self, url: str) -> None:
        # Without a retry: after a lost response, it would find the id in use by its own plant.
        retry = Retry(NoBackoff(), 0)
        self._redis = Redis.from_url(url, retry=retry, socket_timeout=2, socket_connect_timeout=2)

    def add(self, plant: Plant) -> None:
        """Store a plant whose id is not in use."""
        with _unavailable():
            added = self._redis.set(f"plant:{plant.id}", json.dumps(plant[1:]), nx=True)
        if not added:
            raise PlantIdInUse(plant.id)

    def get(self, plant_id: int) -> Plant | None:
        """Return the plant with this id, or None."""
        with _unavailable():
            found = self._redis.get(f"plant:{plant_id}")
        return Plant(plant_id, *json.loads(found)) if found else None

    def check(self) -> None:
        """Raise StoreUnavailable if Redis cannot be reached, or accepts no writes."""
        with _unavailable():
            self._redis.set("plants:check", "")

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise StoreUnavailable(f"Redis: {type(error).__name__}") from error
