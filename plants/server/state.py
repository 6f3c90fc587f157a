"""The states of a connection, and the state of an event loop, which all its connections share."""

import select
import time
from collections import Counter
from dataclasses import dataclass
from socket import AF_INET6, inet_pton
from typing import Any, Final

from plants.server.config import Config
from plants.server.exchange import Exchange
from plants.server.hooks import Hooks
from plants.server.poll import Poll


@dataclass(eq=False)
class State:
    """What a connection waits for.

    :param seconds: the field of ``Config`` that limits the wait.
    :param late: the error that is the response after that; if None, the connection is closed.
    :param evicts: whose connection a full worker may close in this state: that of ``anybody``, of ``strangers``, who
        have shown no token, of strangers whose request is for a ``public`` path, or of ``nobody``.
    :param keeps_slot: whether the connection may need the slot that it has acquired.
    :param successors: the states that may follow, besides CLOSED.
    """

    name: str
    seconds: str
    late: tuple[int, str | None] | None
    evicts: str
    keeps_slot: bool
    successors: tuple[str, ...]


_TOO_LATE: Final = (503, "The request could not be answered in time.")
# It waits for the first request; the rest of the request; the application; the client to read the response; the next
# request; the client to close its side.
OPEN: Final = State("open", "request_seconds", None, "strangers", False, ("receiving",))
RECEIVING: Final = State("receiving", "request_seconds", (408, None), "strangers", True, ("responding", "writing"))
RESPONDING: Final = State("responding", "response_seconds", _TOO_LATE, "public", True, ("writing",))
WRITING: Final = State("writing", "request_seconds", None, "strangers", True, ("idle", "closing"))
IDLE: Final = State("idle", "keepalive_seconds", None, "anybody", False, ("receiving",))
CLOSING: Final = State("closing", "request_seconds", None, "anybody", False, ())
CLOSED: Final = State("closed", "request_seconds", None, "nobody", False, ())
_STATES: Final = (OPEN, RECEIVING, RESPONDING, WRITING, IDLE, CLOSING, CLOSED)


class LoopState:
    """State that all connections of an event loop share.

    ``handlers`` maps the file descriptors that ``poll`` watches to what handles their events. ``now`` is the time of
    the current iteration (``time.monotonic()``). ``trusted`` are the connections whose clients have shown a token.
    A full worker makes room by closing one of ``strangers``, which maps connections of other clients to their networks,
    or else of ``idle_trusted``; both have the longest inactive connection first. ``lingering`` are the connections of
    clients that were turned away, until these have read that; ``turned_away`` counts such clients. ``slot_holders``
    have a large body or a large response. ``unfinished_connections`` have received bytes that are not parsed yet,
    because one step parses little. ``ready_exchanges`` have arrived completely.
    """

    def __init__(self, hooks: Hooks, config: Config, log: Any) -> None:
        self.poll: Any = getattr(select, "epoll", Poll)()
        self.handlers: dict[int, Any] = {}
        self.hooks = hooks
        self.config = config
        self.log = log
        self.seconds: dict[State, float] = {state: getattr(config, state.seconds) for state in _STATES}
        self.strangers: dict[Any, Any] = {}
        self.idle_trusted: dict[Any, Any] = {}
        self.lingering: dict[Any, Any] = {}
        self.trusted: set[Any] = set()
        self.slot_holders: set[Any] = set()
        self.turned_away: int = 0
        self.now: float = time.monotonic()
        self.stopping: bool = False
        self.connections: set[Any] = set()
        self.unfinished_connections: set[Any] = set()
        self.ready_exchanges: list[Exchange] = []

    def acquire_slot(self, connection: Any) -> bool:
        """Return whether the connection has a slot now, for a large body and for the response to it."""
        if connection not in self.slot_holders and len(self.slot_holders) >= self.config.slots:
            self.turned_away += 1
            return False
        self.slot_holders.add(connection)
        return True

    def watch(self, descriptor: int, events: int, handler: Any) -> None:
        """Watch a file descriptor for these events (0: none)."""
        if not events:
            if self.handlers.pop(descriptor, None):
                self.poll.unregister(descriptor)
        elif descriptor in self.handlers:
            self.poll.modify(descriptor, events)
        else:
            self.poll.register(descriptor, events)
            self.handlers[descriptor] = handler

    def connection_to_evict(self, network: Any) -> Any:
        """Return the connection to close for a new one from ``network``, or None.

        It is the longest inactive stranger of the network with the most of them; in a tie, of that of the new client.
        If there are no strangers, it is the longest idle connection of the other clients.
        """
        if not self.strangers:
            return next(iter(self.idle_trusted), None)
        counts = Counter(self.strangers.values())
        ((largest, count),) = counts.most_common(1)
        if counts[network] == count:
            largest = network
        return next(connection for connection, other in self.strangers.items() if other == largest)


def network_of(host: str) -> Any:
    """Return what counts as one client: an IPv4 address, the first half of an IPv6 address, or "" for a Unix socket."""
    host = host.removeprefix("::ffff:")  # A listener for both versions has it before an IPv4 address.
    return inet_pton(AF_INET6, host.partition("%")[0])[:8] if ":" in host else host
