"""The interface of the stores, their errors, and the choice of a store by its URL. A store knows nothing of HTTP."""

import abc
import logging
import os
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, get_args, get_type_hints

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


class Plant(NamedTuple):
    """A plant as it is stored.

    ``id`` is from -2^63 to 2^63-1; ``name`` and ``tag`` have any length, but no U+0000 and no lone surrogates.
    """

    id: int
    name: str
    tag: str | None = None


class Column(NamedTuple):
    """A member of ``Plant``, as a column of a table; ``type`` is ``int`` (64 bits) or ``str``."""

    name: str
    type: type
    nullable: bool

    def define(self, types: dict[Any, str]) -> str:
        """Return the definition of the column in SQL; ``types`` are the database's names for the types."""
        constraint = " PRIMARY KEY" if self.name == "id" else "" if self.nullable else " NOT NULL"
        return f"{self.name} {types[self.type]}{constraint}"


#: The columns of a table of plants, in the order of the members; ``id`` is the key.
COLUMNS: Final = tuple(
    Column(name, (get_args(hint) or (hint,))[0], nullable=bool(get_args(hint)))  # Only ``int | None`` has arguments.
    for name, hint in get_type_hints(Plant).items()
)

GONE: Final = "is gone; it is not recreated, because ids already in use would become available"
TABLE_GONE: Final = f"the table plants {GONE}; restore it, and do not restart before that"
_FORKED: Final = (
    "this process was forked after the first use of the store; open a store in each process, "
    "or fork before the first use"
)

#: Takes the outcomes of work that ended together, each with the key of its work: None, or the exception.
Done = Callable[[list[tuple[Any, Exception | None]]], None]
#: Begins work, and returns at once; the store passes the outcome with the key to ``done``, from any thread.
Wait = Callable[[Done, Any], None]

_log = logging.getLogger(__name__)


class PlantIdInUse(Exception):
    """The id is in use; the stored plant is unchanged."""

    def __init__(self, plant_id: int) -> None:
        super().__init__(plant_id)  # Pass only the id, because copy and pickle call the class with these arguments.
        self.plant_id = plant_id

    def __str__(self) -> str:
        """Name the id."""
        return f"a plant with the id {self.plant_id} is already in the store"


class PlantRefused(Exception):
    """The table does not accept this plant, for example because of an operator's CHECK. A retry cannot succeed.

    The message names the constraint, and never quotes the plant.
    """


class StoreUnavailable(Exception):
    """The store cannot be reached or cannot keep its promise now; the same call may succeed later."""


class StoreUnusable(StoreUnavailable):
    """The store cannot become usable by itself: its folder does not exist, for example. A start ends with this."""


class OwnerProcess:
    """The process that first used a store. A store's connections and locks are of no use in a fork."""

    pid = 0  #: 0 before the first use
    _logged_pid = 0

    def check(self) -> None:
        """Make this process the owner if the store has none.

        :raises StoreUnavailable: another process is the owner.
        """
        pid = os.getpid()
        if self.pid == pid:
            return
        if self.pid:
            # Log it once in each process, because every request fails. A fork may have inherited a lock that is held.
            if self._logged_pid != pid:
                self._logged_pid = pid
                _log.error("the store is unavailable: %s", _FORKED)
            raise StoreUnavailable(_FORKED)
        self.pid = pid


class PlantStore(abc.ABC):
    """The interface of a store. Threads may share a store.

    A hosted service needs the first two variables, and does not start if one is missing. They have no defaults,
    because a wrong one would go unnoticed.
    """

    #: how many threads of one server process should call the store; 0 if ``begin`` never blocks, so that an event loop
    #: may call it, and the store logs its own outages
    worker_threads: ClassVar[int]
    multiprocess: ClassVar[bool]  #: whether several processes can share the store

    @abc.abstractmethod
    def add(self, plant: Plant) -> None:
        """Store a plant whose id is not in use.

        When this returns, the plant is stored as durably as the store promises. Of concurrent calls with the same id at
        most one returns.

        :raises PlantIdInUse: the id is in use; the stored plant is unchanged.
        :raises PlantRefused: the table does not accept the plant.
        :raises StoreUnavailable: the plant cannot be stored now, or it is not known whether it was.
        :raises Exception: the store cannot hold this plant, because it is not as ``Plant`` describes.
        """

    @abc.abstractmethod
    def get(self, plant_id: int) -> Plant | None:
        """Return the plant with this id, or None, without waiting for a commit.

        :raises StoreUnavailable: the store cannot be read now.
        """

    @abc.abstractmethod
    def check(self) -> None:
        """Raise StoreUnavailable if an ``add`` would fail.

        The result may be that of a commit or a check some seconds ago.
        """

    def begin(self, plant: Plant | None) -> Wait | None:
        """Add a plant, or check the store (None), for a server that waits for the outcome itself.

        Return None if the work is done, or a function that begins it and does not wait.

        :raises Exception: as ``add`` and ``check`` do, if the outcome is known.
        """
        outcome: object = self.check() if plant is None else self.add(plant)
        if outcome is not None:  # An asynchronous store returns a coroutine, and has done nothing.
            raise TypeError(f"the store returned {type(outcome).__name__}, not None")
        return None

    def prepare(self) -> None:  # noqa: B027  # A store may have nothing to prepare.
        """Create the file or the table of a new store, check it, and leave nothing open that a fork would inherit.

        Call this once, before forking. Once it has succeeded, no process recreates the file or the table. Without this
        call, the first use creates what is missing.

        :raises StoreUnusable: the store cannot become usable by itself; a hosted service does not start.
        :raises StoreUnavailable: the store cannot be used now; a later use may succeed.
        """

    def close(self) -> None:  # noqa: B027  # A store may have nothing to release.
        """Commit what was submitted, if possible, and release all resources. A second call does nothing."""


def open_store(url: str) -> PlantStore:
    """Return the store for a URL; it connects at its first use.

    A package adds a scheme by an entry point in the group ``plants.stores``: its name is the scheme, and its value a
    callable that takes the URL and returns a ``PlantStore``, or raises ValueError.

    :raises ValueError: the URL names no store, or its driver is not installed; the message says how to fix it.
    """
    match url.partition(":")[0]:
        case "memory":
            from plants.stores.memory import MemoryStore

            if url != "memory:":
                raise ValueError("the dictionary store takes no path and no options: its URL is 'memory:'")
            return MemoryStore()
        case "sqlite":
            from plants.stores.sqlite import SQLiteStore

            return SQLiteStore.from_url(url)
        case "postgresql" | "postgres":
            try:
                from plants.stores.postgres import PostgresStore
            except ImportError as error:  # The driver may be too old, too.
                raise ValueError("a PostgreSQL store needs its driver: pip install 'plants[postgres]'") from error
            return PostgresStore.from_url(url)
        case scheme:
            return _open_plugin(scheme, url)


def _open_plugin(scheme: str, url: str) -> PlantStore:
    from importlib.metadata import entry_points  # It is slow to import.

    group = "plants.stores"
    plugins = {plugin.name: plugin for plugin in entry_points(group=group)}
    if not (plugin := plugins.get(scheme)):
        known = ", ".join(f"{name}:" for name in ("memory", "sqlite", "postgresql", *sorted(plugins)))
        raise ValueError(
            f"a store's URL starts with one of {known}; "
            f"another package can add a scheme by an entry point in the group {group}"
        )
    culprit = f"the store {scheme}: ({plugin.value})"
    try:
        store: PlantStore = plugin.load()(url)
    except ImportError as error:
        raise ValueError(f"{culprit} cannot be imported: {error}") from error
    except ValueError:
        raise  # As with our own stores, the message says what is wrong with the URL.
    except Exception as error:
        # Its message may quote the URL, and so a password.
        raise ValueError(f"{culprit} failed with {type(error).__name__}") from error
    return store
