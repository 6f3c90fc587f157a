"""The interface of the connections of one process, which a BatchStore uses."""

import abc
import os
from collections.abc import Callable

from plants.stores import Plant

HOW_TO_RECOVER = (
    "it is not recreated, because ids already in use would become available; restore it, or restart to begin empty"
)

# The values of a byte that a process shares with its forks; it is 0 until one of them has seen the file or the table.
CREATED = 1
WAL_LOST = 2  # SQLite's write-ahead log was removed or replaced while connections were open.

Outcomes = list[Exception | None]  # For each plant, why it was not stored, or None.

_forks = [0]


def process_identity() -> tuple[int, int]:
    """Return the number of forks and the process id, which together differ from those of every ancestor.

    Neither suffices alone: the system may give a descendant the process id of an ancestor that has ended, and a fork by
    uWSGI does not call the hook that counts.
    """
    return _forks[0], os.getpid()


def _count_fork() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_count_fork)


class PlantRejected(Exception):
    """One plant made the whole transaction fail, and none was stored; ``reason`` is the error for that plant."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason


class Connections(abc.ABC):
    """The connections of one process to a store.

    A method returns, or raises StoreUnavailable, by its deadline, which is a ``time.monotonic()`` value.
    """

    @abc.abstractmethod
    def insert(self, collect: Callable[[], list[Plant]], deadline: float) -> Outcomes:
        """Store plants in one transaction; return each outcome. Of plants with the same id, only the first is stored.

        :param collect: returns the plants. Call it only when a connection is ready, because plants join the batch
            until the first call. Later calls return the same plants.
        :raises StoreUnavailable: it is not known which plants are stored.
        :raises PlantRejected: none is stored.
        """

    @abc.abstractmethod
    def find(self, plant_id: int, deadline: float) -> Plant | None:
        """Return the plant with this id, or None."""

    @abc.abstractmethod
    def check(self, deadline: float) -> None:
        """Raise StoreUnavailable if plants cannot be added now, or if the table could reject or lose a plant."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connections for good, each after the transaction that it is running."""
